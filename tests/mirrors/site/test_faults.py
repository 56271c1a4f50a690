"""What goes wrong at an upstream or with a client, and what a real nginx, as rendered, makes of it."""

import collections
import contextlib
import dataclasses
import http.client
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http_server import Answer, Request, Server, Servers, ranged
from tests.mirrors.site.conftest import envcheck, running
from tests.mirrors.site.upstreams import free_ports, get
from tests.waiting import eventually

pytestmark = pytest.mark.tools
CONTENT = bytes(range(256)) * 80_000  # 20 MB: three slices


class Upstream(Server):
    """An upstream that breaks off the second slice, or redirects, as it is told; it has CONTENT at every path."""

    fault = ""

    def __init__(self, address: str, port: int = 0) -> None:
        super().__init__(self.answer, address, port)

    def answer(self, request: Request) -> Answer:
        """Return a range of it."""
        if self.fault == "redirect":
            return Answer(302, headers={"Location": "http://127.0.0.9/elsewhere"})
        if request.path.startswith("/simple/"):
            return Answer(200, b"page", {"Content-Type": "text/html"})
        answer = ranged(request, CONTENT, {"ETag": '"one"'})
        if self.fault == "break" and (request.span(len(CONTENT)) or (0, 0))[0]:
            assert isinstance(answer.body, bytes)
            return dataclasses.replace(answer, body=answer.body[:1000], close=True)
        return answer


@pytest.fixture
def behind(
    tmp_path: Path, nginx: str, servers: Servers, request: pytest.FixtureRequest
) -> Iterator[tuple[Upstream, Path, int]]:
    """Return an upstream, the directory of a site before it (with the test's own options), and its port."""
    server = servers.start(Upstream("127.0.0.8"))
    site, port = tmp_path / "site", free_ports(130)
    for name, content in {"users": "me:{PLAIN}secret\n", "tokens": '"Bearer right" 1;\n'}.items():
        (tmp_path / name).write_text(content)
    more = [option.format(root=tmp_path) for option in getattr(request, "param", ())]
    (tmp_path / "profile.yaml").write_text(f"pypi: [{{url: {server.url}/simple}}]\n")
    options = ("--no-pytorch", "--mirror", str(tmp_path / "profile.yaml"), "--link", server.url, "--min-free", "0")
    done = envcheck("mirror", "site", "render", str(site), *options, "--port", str(port), *more)
    assert done.returncode == 0, done.stderr
    assert nginx
    with running(site, "olah"):
        yield server, site, port


def logged(site: Path, key: str) -> list[Any]:
    return [json.loads(line)[key] for line in (site / "logs/access.json").read_text().splitlines()]


def url(server: Upstream, port: int, path: str = "file.whl") -> str:
    return f"http://127.0.0.1:{port}/files/{server.netloc}/{path}"


def are_counted(site: Path, **expected: int) -> bool:
    """Tell whether the requests had these outcomes and no other, as mtail counts them, once nginx has its log."""

    def outcomes() -> dict[str, int]:
        lines = [json.loads(line) for line in (site / "logs/access.json").read_text().splitlines()]
        short = [one["outcome"] == "ok" and one["bytes"] < one["promised"] for one in lines if one["part"] == "files"]
        named = [one["outcome"] for one in lines if one["part"] == "files"]
        return dict(collections.Counter("truncated" if cut else name for cut, name in zip(short, named, strict=True)))

    assert eventually(outcomes, expected) == expected
    return True


def test_an_upstream_that_breaks_off_is_the_mirrors_failure_and_leaves_no_wrong_bytes(
    behind: tuple[Upstream, Path, int],
) -> None:
    server, site, port = behind
    server.fault = "break"
    with pytest.raises(http.client.IncompleteRead):
        get(url(server, port))
    assert are_counted(site, truncated=1)
    server.fault = ""
    assert get(url(server, port))[1] == CONTENT
    assert are_counted(site, truncated=1, ok=1)


def test_a_client_that_goes_away_is_not_the_mirrors_failure(behind: tuple[Upstream, Path, int]) -> None:
    server, site, port = behind
    with socket.create_connection(("127.0.0.1", port)) as client:
        request = f"GET {url(server, port).partition(str(port))[2]} HTTP/1.1\r\nHost: x\r\n\r\n"
        client.sendall(request.encode())
        client.recv(1000)
    assert are_counted(site, client_abort=1)


def test_a_redirect_of_an_upstream_leads_no_client_round_the_mirror(behind: tuple[Upstream, Path, int]) -> None:
    server, site, port = behind
    server.fault = "redirect"
    status, body, headers = get(url(server, port))
    assert (status, "Location" in headers) == (502, False)
    assert b"--link" in body
    assert are_counted(site, error=1)


@pytest.mark.parametrize("behind", [("--users", "{root}/users", "--no-hf")], indirect=True)
def test_only_users_get_in_and_their_password_goes_no_further(behind: tuple[Upstream, Path, int]) -> None:
    server, site, port = behind
    assert get(url(server, port))[0] == 401
    assert get(url(server, port), Authorization="Basic bWU6c2VjcmV0")[0] == 200  # me:secret
    assert server.logins == {None}
    assert are_counted(site, refused=1, ok=1)
    assert get(f"http://127.0.0.1:{port}/healthz")[0] == 200


@pytest.mark.parametrize("behind", [("--allow", "192.0.2.0/24", "--allow", "127.0.0.5")], indirect=True)
def test_who_is_allowed_gets_in_and_nobody_else(behind: tuple[Upstream, Path, int]) -> None:
    server, _, port = behind
    status = {}
    for client in ("127.0.0.5", "127.0.0.1"):
        made = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(client, 0))
        with contextlib.closing(made) as connection:
            connection.request("GET", url(server, port).partition(str(port))[2])
            status[client] = connection.getresponse().status
    assert status == {"127.0.0.5": 200, "127.0.0.1": 403}


@pytest.mark.parametrize("behind", [("--hf-tokens", "{root}/tokens")], indirect=True)
def test_the_bearer_of_a_token_reaches_hugging_faces_mirror_without_it(
    behind: tuple[Upstream, Path, int], servers: Servers
) -> None:
    _, site, port = behind
    inner = servers.start(Upstream("127.0.0.1", port + 102))
    hf = f"http://127.0.0.1:{port + 1}/api/models/x"
    assert get(hf)[0] == get(hf, Authorization="Bearer wrong")[0] == 401
    assert inner.requests == []
    assert get(hf, Authorization="Bearer right")[1] == CONTENT
    assert inner.logins == {None}
    assert eventually(lambda: logged(site, "part"), ["hf"] * 3) == ["hf"] * 3
    assert "right" not in (site / "logs/access.json").read_text()
    assert [path for path in site.rglob("*") if path.is_file() and b"Bearer right" in path.read_bytes()] == []


def test_too_many_requests_at_once_are_told_to_wait(behind: tuple[Upstream, Path, int]) -> None:
    _, _, port = behind
    assert get(f"http://127.0.0.1:{port}/pypi/simple/x/")[0] == 200
    # In one breath, so that it takes nginx alone, and no machine is too slow to be too fast.
    requests, message = b"GET /pypi/simple/x/ HTTP/1.1\r\nHost: x\r\n", b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall((requests + b"\r\n") * 599 + requests + b"Connection: close\r\n\r\n")
        while chunk := client.recv(1 << 16):
            message += chunk
    statuses = re.findall(rb"HTTP/1.1 (\d+)", message)
    assert (len(statuses), set(statuses)) == (600, {b"200", b"429"})
    assert set(statuses[:199]) == {b"200"}
