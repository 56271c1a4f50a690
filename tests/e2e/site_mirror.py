"""A site's mirror on sockets it is given: HTTPS by a private CA, indexes behind a password, links signed, apt relayed.

What it has as files it serves itself; Debian's packages it takes from where this machine has its own from. Each file is
behind a redirect to a link with a signature in its query, as object stores and hubs hand them out.
"""

import base64
import contextlib
import functools
import hashlib
import html
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from envcheck.mirrors.profiles.host_config import apt_sources, base_urls
from tests.http_server import BLOCK, Answer, Request, Server, ranged

SUITE = "bookworm"


class Site(Server):
    """Serves wheels to who has login and password. `refuse` makes it answer so to what is signed."""

    def __init__(self, wheels: Path, path: str, login: str, password: str, signature: str, **options: Any) -> None:
        super().__init__(self.answer, **options)
        self.wheels, self.path, self.login, self.password, self.signature = wheels, path, login, password, signature
        self.refuse = 0
        self.archives = base_urls(apt_sources(), "debian", SUITE)

    def answer(self, request: Request) -> Answer:
        """Return a page, a redirect to a signed link, or what is there."""
        path, _, query = request.path.partition("?")
        kind, _, remaining = unquote(path).removeprefix(f"/{self.path}/").strip("/").partition("/")
        if path.startswith(("/debian/", "/debian-security/")):
            return self._relayed(request.method, path)
        if kind == "signed":
            right = query == f"X-Amz-Signature={self.signature}" and not self.refuse
            file = self.wheels / Path(remaining).name
            if not right:
                return Answer(self.refuse or 403)
            return ranged(request, file, {"ETag": f'"{file.name}"'}) if file.is_file() else Answer(404)
        if request.login != basic(self.login, self.password):
            return Answer(401, headers={"WWW-Authenticate": 'Basic realm="site"'})
        if kind == "files":
            to = f"/{self.path}/signed/{remaining.replace('+', '%2B')}?X-Amz-Signature={self.signature}"
            return Answer(302, headers={"Location": to})
        project = remaining.rpartition("/")[2] if kind in {"simple", "whl"} else ""
        return page(self.wheels, project, f"/{self.path}/files", hashed=True)

    def _relayed(self, method: str, path: str) -> Answer:
        """Pass on a file of Debian's from the first place of this machine's that has it."""
        for base in self.archives:
            with contextlib.suppress(urllib.error.HTTPError):
                request = urllib.request.Request(base.rstrip("/") + path, method=method)  # noqa: S310 (apt's own)
                answer = urllib.request.urlopen(request, timeout=60)  # noqa: S310 (as above)
                known = {name: answer.headers[name] for name in ("Content-Length", "Last-Modified")}
                data = {name: value for name, value in known.items() if value is not None}
                return Answer(200, iter(functools.partial(answer.read, BLOCK), b""), data)
        return Answer(404)


def basic(login: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{login}:{password}".encode()).decode()


def page(wheels: Path, project: str, files: str, *, hashed: bool) -> Answer:
    """Return the PEP 503 page of a project, if there is one; `files` is where its links lead."""
    actual = [path for path in sorted(wheels.glob("*.whl")) if _normal(path.name.partition("-")[0]) == project]
    hashes = (f"#sha256={_digest(path)}" if hashed else "" for path in actual)
    links = (f"{files}/{path.name.replace('+', '%2B')}{hash_}" for path, hash_ in zip(actual, hashes, strict=True))
    rows = (f'<a href="{link}">{html.escape(path.name)}</a>' for link, path in zip(links, actual, strict=True))
    body = f"<!DOCTYPE html><html><body>{'<br>'.join(rows)}</body></html>".encode()
    return Answer(200, body, {"Content-Type": "text/html"}) if actual else Answer(404)


@functools.cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
