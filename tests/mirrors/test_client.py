"""What a request with a body sends, where it may be redirected to, who is the same origin, and which proxy is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from envcheck.errors import ConfigError
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.urls import origin_of, proxy_login, proxy_of, redirect_target, split_sha256
from envcheck.mirrors.profiles.model import host_of
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


def test_a_file_that_is_not_there_or_that_a_proxy_cannot_have_is_one_line(tmp_path: Path, servers: Servers) -> None:
    server = servers.start(Server(lambda _: Answer(201)))
    with pytest.raises(NetworkError, match="No such file"):
        Client().send("PUT", server.url, body=tmp_path / "gone")
    assert server.requests == []


def test_a_redirect_stays_as_secure_as_it_was() -> None:
    assert redirect_target("http://a/x/y", "../z") == "http://a/z"
    assert redirect_target("http://a/x", "https://b/y") == "https://b/y"
    for target in ("http://a/x", "ftp://a/x", "file:///etc/passwd", "http://[x", "https://:443/x", "data:text/html,x"):
        with pytest.raises(ValueError, match=r"^a redirects to"):
            redirect_target("https://a/x", target)
    for target in ("ftp://a/x", "file:///etc/passwd", "https://:443/x"):
        with pytest.raises(ValueError, match=r"^a redirects to"):
            redirect_target("http://a/x", target)


def test_an_origin_is_scheme_host_and_port() -> None:
    assert origin_of("https://A.example/x") == origin_of("https://a.example:443/y")
    assert origin_of("https://a.example/x") != origin_of("http://a.example/x")
    assert origin_of("https://a.example:8443/x") != origin_of("https://a.example/x")
    assert host_of("https://me:secret@a.example:8443/x") == "a.example:8443"


def test_the_proxy_is_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all_proxy", "ALL_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "proxy.example:3128")
    # github.com/python/cpython/pull/156336: networks, and hosts with their port
    monkeypatch.setenv("no_proxy", "inside.example, 10.0.0.0/8,fd00::/8,10.0/x,other.example:8443")
    assert proxy_of("https://a.example/x") == "http://proxy.example:3128"
    for host in ("inside.example", "me@10.1.2.3:8081", "[fd00::1]:8081", "other.example:8443"):
        assert proxy_of(f"https://{host}/x") is None
    for host in ("11.1.2.3", "[fe00::1]", "other.example", "10.0.0.1.example"):
        assert proxy_of(f"https://{host}/x") == "http://proxy.example:3128"
    # github.com/psf/requests/issues/3183: all_proxy alone; a SOCKS proxy was never asked
    monkeypatch.delenv("https_proxy")
    for name, value, proxy in (
        ("all_proxy", "socks5://s.example:1", None),
        ("ALL_PROXY", "SOCKS5://s.example:1", None),
        ("ALL_PROXY", "a.example:2", "http://a.example:2"),
    ):
        monkeypatch.setenv(name, value)
        assert proxy_of("https://b.example/x") == proxy
        assert proxy_of("http://localhost:5999/x") is None  # a registry or a mirror of this machine
        monkeypatch.delenv(name)
    assert proxy_login("http://me:p%40ss@proxy.example") == "me:p@ss"
    assert proxy_login("http://proxy.example") is None


def test_tls_and_socks_where_there_is_plain_http(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """github.com/pypa/pip/issues/10893: https_proxy=https://... of a proxy that speaks no TLS."""
    plain = servers.start(Server(lambda _: Answer(200)))
    with pytest.raises(NetworkError, match=r"^TLS: .*it speaks plain http there"):
        Client().get(f"https://{plain.netloc}/x")
    monkeypatch.delenv("no_proxy", raising=False)
    proxies = {f"https://{plain.netloc}": "it speaks plain http there", "socks5://s.invalid:1": "only an http or https"}
    for proxy, message in proxies.items():
        monkeypatch.setenv("https_proxy", proxy)
        with pytest.raises(NetworkError, match=f"^its proxy: .*{message}") as caught:
            Client().get("https://mirror.invalid/x")
        assert caught.value.fix.startswith("correct https_proxy")


def test_only_a_fragment_of_a_sha256_is_a_hash() -> None:
    assert split_sha256("https://a/x.bin?y=1") == ("https://a/x.bin?y=1", None)
    for fragment in ("", "section", "page=3", "0" * 64):
        assert split_sha256(f"https://a/x.bin#{fragment}") == ("https://a/x.bin", None)
    assert split_sha256(f"https://a/x.bin#sha256={'0A' * 32}") == ("https://a/x.bin", "0a" * 32)
    for fragment in ("sha256=", f"sha256={'0' * 63}", f"sha256={'0' * 64}\n", "md5=0", f"sha512={'0' * 64}"):
        with pytest.raises(ConfigError, match=r"^'https://a/x\.bin\?\.\.\.' has no valid hash after its #"):
            split_sha256(f"https://a/x.bin?token=canary#{fragment}")
