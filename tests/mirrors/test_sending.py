"""What a request with a body sends, where it may be redirected to, and when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.credentials import BearerToken
from envcheck.mirrors.net.network_errors import NetworkError
from tests.http_server import Answer, Request, Server, Servers

BODY = bytes(range(256)) * 5000


@pytest.mark.parametrize("kind", ["bytes", "file", "nothing"])
def test_a_body_is_sent_whole_with_its_length(servers: Servers, tmp_path: Path, kind: str) -> None:
    server = servers.start(Server(lambda _: Answer(201)))
    (tmp_path / "body").write_bytes(BODY)
    bodies: dict[str, bytes | Path] = {"bytes": BODY, "file": tmp_path / "body", "nothing": b""}
    body = bodies[kind]
    with Client().send("PUT", server.url, {"Content-Type": "x/y"}, body=body) as answer:
        assert answer.status == 201
    [request] = server.requests
    assert request.body == (b"" if kind == "nothing" else BODY)
    assert request.headers["Content-Length"] == str(len(request.body))
    assert (request.headers["Content-Type"], request.headers["Transfer-Encoding"]) == ("x/y", None)


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_at_the_same_origin_gets_the_body_again(servers: Servers, status: int) -> None:
    def answer(request: Request) -> Answer:
        return Answer(status, headers={"Location": "/there"}) if request.path == "/here" else Answer(201)

    server = servers.start(Server(answer))
    with Client().send("PUT", f"{server.url}/here", body=BODY) as answered:
        assert answered.status == 201
    assert [(request.path, request.body) for request in server.requests] == [("/here", BODY), ("/there", BODY)]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_no_body_follows_a_redirect_to_another_origin(servers: Servers, status: int, method: str) -> None:
    other = servers.start(Server(lambda _: Answer(200)))
    server = servers.start(Server(lambda _: Answer(status, headers={"Location": other.url})))
    with pytest.raises(NetworkError, match=f"redirects a {method} to {other.netloc}, which is not followed"):
        Client().send(method, server.url, body=b"secret")
    assert other.requests == []


def test_the_login_of_a_request_follows_no_redirect(servers: Servers) -> None:
    other = servers.start(Server(lambda _: Answer(200, b"blob")))
    server = servers.start(Server(lambda _: Answer(307, headers={"Location": other.url})))
    with Client().get(server.url, login=BearerToken(server.url, "CANARY")) as answer:
        assert answer.text(10) == b"blob"
    assert (server.logins, other.logins) == ({"Bearer CANARY"}, {None})


def test_a_file_that_is_not_there_or_that_a_proxy_cannot_have_is_one_line(tmp_path: Path, servers: Servers) -> None:
    server = servers.start(Server(lambda _: Answer(201)))
    with pytest.raises(NetworkError, match="No such file"):
        Client().send("PUT", server.url, body=tmp_path / "gone")
    assert server.requests == []
