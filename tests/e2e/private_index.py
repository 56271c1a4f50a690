"""A package index as sites have them: HTTPS with a certificate of their own, behind a password, on this machine."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from tests.certificates import Certificate, self_signed
from tests.e2e.site_mirror import basic, page
from tests.http_server import Answer, Request, Server, Servers, ranged


class Index(Server):
    """A running index: its certificate, and the status and path of each of its answers."""

    def __init__(self, wheels: Path, path: str, login: str, *, hashed: bool, certified: Certificate) -> None:
        super().__init__(self.answer, tls=certified.context)
        self.wheels, self.prefix, self.login, self.hashed = wheels, f"/{path}/simple", login, hashed
        self.certificate = certified.certificate
        self.served: list[str] = []

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}{self.prefix}"

    def answer(self, request: Request) -> Answer:
        answer = self._answer(request)
        self.served.append(f"{answer.status} {request.path}")
        return answer

    def _answer(self, request: Request) -> Answer:
        if request.login != self.login:
            return Answer(401, headers={"WWW-Authenticate": 'Basic realm="site"'})
        remaining = unquote(request.path).removeprefix(self.prefix).strip("/")
        if not remaining.startswith("files/"):
            return page(self.wheels, remaining, f"{self.prefix}/files", hashed=self.hashed)
        actual = self.wheels / Path(remaining).name
        return ranged(request, actual) if actual.is_file() else Answer(404)


@contextlib.contextmanager
def private_index(
    wheels: Path, scratch: Path, *, path: str, login: str, password: str, hashed: bool = False
) -> Iterator[Index]:
    """Serve `wheels` at https://localhost:PORT/<path>/simple/ to who gives login and password.

    Its pages tell the files' hashes if it is `hashed`; the indexes of sites often do not.
    """
    certified = self_signed(scratch, "localhost")
    with Servers() as servers:
        yield servers.start(Index(wheels, path, basic(login, password), hashed=hashed, certified=certified))
