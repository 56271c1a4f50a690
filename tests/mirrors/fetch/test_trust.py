"""Whom a request asks and where it may be led, who sees which secret, and that none ends up in what is written."""

import dataclasses
import itertools
import ssl
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.net.client import Client, hub_client
from envcheck.mirrors.net.credentials import OriginLogin
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.urls import origin_of, proxy_login, proxy_of, redirect_target, split_sha256
from envcheck.mirrors.profiles.model import HuggingFace, Index, Profile
from tests.certificates import Certificate, resigned, signed
from tests.http_server import Answer, Request, Server, Servers
from tests.mirrors.fetch.conftest import CONTENT, Lab
from tests.tables import each

CANARY = "c4n4ry-s3cret"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_token_goes_to_its_origin_alone(lab: Lab) -> None:
    target = lab.serve()
    front = lab.serve(redirect=target.url)
    lab.fetch(lab.want(front), client=Client(logins=[OriginLogin(front.url, f"Bearer {CANARY}")]))
    assert front.logins == {f"Bearer {CANARY}"}
    assert target.logins == {None}
    port = front.port
    for other in (front.url.replace("http:", "https:"), front.url.replace(f":{port}", f":{port + 1}")):
        front.requests.clear()
        with Client(logins=[OriginLogin(other, f"Bearer {CANARY}")]).get(front.url):
            assert front.logins == {None}


def test_a_url_that_two_parsers_read_as_two_hosts_is_not_asked(lab: Lab) -> None:
    """github.com/urllib3/urllib3/pull/5143: the login of the second host went to the first one."""
    front = lab.serve()
    url = f"http://{front.netloc}\\@mirror.example/file.bin"
    client = Client(logins=[OriginLogin("http://mirror.example", f"Bearer {CANARY}")], within=["mirror.example"])
    with pytest.raises(NetworkError, match="names two hosts"):
        client.get(url)
    assert front.requests == []
    with pytest.raises(NetworkError, match=r"redirected to mirror\.example: its URL names two hosts"):
        Client().get(lab.serve(redirect=url).url)


def test_a_ca_that_only_strict_verification_refuses_is_trusted(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """github.com/python/cpython/issues/138193: Python 3.13 is strict, and curl, uv and older Pythons are not."""
    context = ssl.create_default_context()
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    monkeypatch.setattr(ssl, "create_default_context", lambda: context)
    ca = signed(tmp_path, "127.0.0.2").ca
    certificate = resigned(ca, tmp_path, "127.0.0.2", extension="authorityKeyIdentifier=none")
    with Client(ca=ca).get(lab.serve(tls=certificate.context).url) as answer:
        assert answer.status == 200


def test_a_closed_profile_asks_no_host_it_does_not_name(lab: Lab) -> None:
    """Neither where a mirror leads, nor what was asked for by its own URL; a probe finds out who leads there."""
    target = lab.serve()
    front, own = lab.serve(redirect=target.url), lab.serve()
    open_ = Profile(name="site", pypi=[Index(url=front.url)], hf=HuggingFace(endpoint=own.url))
    closed = msgspec.structs.replace(open_, closed=True)
    client = hub_client(closed)
    with pytest.raises(UnavailableError, match="is not in the profile, and the profile is closed"):
        lab.fetch(lab.want(front), client=client)
    with pytest.raises(UnavailableError):
        lab.fetch(lab.want(target), client=client)
    assert target.requests == []
    want = lab.want(front, own)
    lab.fetch(want, client=client)
    assert want.path.read_bytes() == CONTENT
    assert target.requests == []
    for asks in (hub_client(open_), hub_client(closed, probes=True)):
        with asks.get(front.url) as answer:
            assert answer.hosts[-1] == target.url.split("/")[2]


def test_a_private_ca_is_trusted_when_given_and_plain_http_behind_https_is_not(
    lab: Lab, certified: Certificate
) -> None:
    server = lab.serve(tls=certified.context)
    want = lab.want(server)
    with pytest.raises(UnavailableError, match="TLS: "):
        lab.fetch(want)
    client = Client(ca=certified.ca)
    lab.fetch(want, client=client)
    assert want.path.read_bytes() == CONTENT
    server.faults.redirect = lab.serve().url
    with pytest.raises(NetworkError, match="redirects to http, which is not trusted"):
        client.get(want.urls[0])


def test_the_proxy_of_the_environment_is_asked(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy gets the whole URL: this one serves the file itself, and the host behind it does not exist."""
    proxy = lab.serve()
    monkeypatch.setenv("http_proxy", f"http://me:{CANARY}@{proxy.netloc}")
    want = lab.want(proxy, urls=("http://nobody.invalid/file.bin",))
    lab.fetch(want)
    assert want.path.read_bytes() == CONTENT
    assert set(proxy.paths) == {"http://nobody.invalid/file.bin"}
    assert all("Proxy-Authorization" in request.headers for request in proxy.requests)


def test_no_secret_is_written_or_said(lab: Lab, tmp_path: Path) -> None:
    """In a URL's query, a netrc and a token; in the journal of an unfinished file, what is printed, and the JSON."""
    server = lab.serve(gone_after=6)
    netrc, profile, to = tmp_path / f"{CANARY}.netrc", tmp_path / "site.yaml", tmp_path / "to"
    netrc.write_text(f"machine 127.0.0.2 login me password {CANARY}\n")
    profile.write_text(f"netrc: {netrc}\n")
    message = ""
    for faults in ({"gone_after": 6}, {"status": 404}, {"redirect": f"ftp://x/?{CANARY}"}, {}):
        server.faults = dataclasses.replace(type(server.faults)(), **faults)
        words = ["fetch", f"{server.url}?token={CANARY}", "--sha256", "0" * 64, "--mirror", str(profile)]
        result = CliRunner().invoke(cli, [*words, "--output", str(to), "--json"])
        assert result.exit_code != 0
        message += result.output + result.stderr + str(result.exception)
        message += "".join(path.name for path in to.iterdir())
        message += "".join(path.read_text() for path in to.iterdir() if path.name.endswith(".journal"))
    assert server.requests
    assert CANARY not in message


BODY = bytes(range(256)) * 5000


def test_a_body_is_sent_whole_with_its_length_and_again_after_a_redirect_at_the_same_origin(servers: Servers) -> None:
    def answer(request: Request) -> Answer:
        status = request.path.lstrip("/")
        return Answer(int(status), headers={"Location": "/there"}) if status.isdigit() else Answer(201)

    server = servers.start(Server(answer))
    for path, body in (("/307", BODY), ("/308", BODY), ("/", b"")):
        server.requests.clear()
        with Client().send("PUT", f"{server.url}{path}", {"Content-Type": "x/y"}, body=body) as answered:
            assert answered.status == 201
        assert server.paths == ([path, "/there"] if body else [path])
        for request in server.requests:
            assert (request.body, request.headers["Content-Length"]) == (body, str(len(body)))
            assert (request.headers["Content-Type"], request.headers["Transfer-Encoding"]) == ("x/y", None)


@each(("method", "status"), itertools.product(("POST", "PUT"), (301, 302, 303, 307, 308)))
def test_no_body_follows_a_redirect_to_another_origin(servers: Servers, method: str, status: int) -> None:
    other = servers.start(Server(lambda _: Answer(200)))
    server = servers.start(Server(lambda _: Answer(status, headers={"Location": other.url})))
    with pytest.raises(NetworkError, match=f"redirects a {method} to {other.netloc}, which is not followed"):
        Client().send(method, server.url, body=b"secret")
    assert other.requests == []


def test_a_redirect_stays_as_secure_as_it_was() -> None:
    assert origin_of("https://A.example/x") == origin_of("https://a.example:443/y")
    assert redirect_target("http://a/x/y", "../z") == "http://a/z"
    assert redirect_target("http://a/x", "https://b/y") == "https://b/y"
    for target in ("http://a/x", "ftp://a/x", "file:///etc/passwd", "http://[x", "https://:443/x", "data:text/html,x"):
        with pytest.raises(ValueError, match=r"^a redirects to"):
            redirect_target("https://a/x", target)
    for target in ("ftp://a/x", "file:///etc/passwd", "https://:443/x"):
        with pytest.raises(ValueError, match=r"^a redirects to"):
            redirect_target("http://a/x", target)


def test_the_proxy_is_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
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
    proxies = {f"https://{plain.netloc}": "it speaks plain http there", "socks5://s.invalid:1": "only an http or https"}
    proxies |= {'"http://p.invalid:1"': "only an http or https"}  # github.com/docker/docs/issues/13398
    for proxy, message in proxies.items():
        monkeypatch.setenv("https_proxy", proxy)
        with pytest.raises(NetworkError, match=f"^its proxy: .*{message}") as caught:
            Client().get("https://mirror.invalid/x")
        named = "no host" if proxy[0] == chr(34) else proxy.partition("//")[2]
        assert caught.value.fix.startswith(f"correct https_proxy, which names {named}")


def test_only_a_fragment_of_a_sha256_is_a_hash() -> None:
    assert split_sha256("https://a/x.bin?y=1") == ("https://a/x.bin?y=1", None)
    for fragment in ("", "section", "page=3", "0" * 64):
        assert split_sha256(f"https://a/x.bin#{fragment}") == ("https://a/x.bin", None)
    assert split_sha256(f"https://a/x.bin#sha256={'0A' * 32}") == ("https://a/x.bin", "0a" * 32)
    for fragment in ("sha256=", f"sha256={'0' * 63}", f"sha256={'0' * 64}\n", "md5=0", f"sha512={'0' * 64}"):
        with pytest.raises(ConfigError, match=r"^'https://a/x\.bin\?\.\.\.' has no valid hash after its #"):
            split_sha256(f"https://a/x.bin?token=canary#{fragment}")
