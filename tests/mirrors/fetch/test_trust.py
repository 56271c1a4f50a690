"""Who may see which secret, whom a fetch asks, and that neither ends up in what it writes or says."""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.net.client import Client, hub_client
from envcheck.mirrors.net.credentials import OriginLogin
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.profiles.model import HuggingFace, Index, Profile
from tests.certificates import Certificate, resigned, signed
from tests.mirrors.fetch.conftest import CONTENT

Serve = Callable[..., Any]
Want = Callable[..., WantedFile]
CANARY = "c4n4ry-s3cret"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_token_goes_to_its_origin_alone(serve: Serve, wanted_file: Want, means: TransferOptions) -> None:
    target = serve()
    front = serve(redirect=target.url)
    fetch(
        wanted_file(front),
        dataclasses.replace(means, client=Client(logins=[OriginLogin(front.url, f"Bearer {CANARY}")])),
    )
    assert front.logins == {f"Bearer {CANARY}"}
    assert target.logins == {None}
    port = front.port
    for other in (front.url.replace("http:", "https:"), front.url.replace(f":{port}", f":{port + 1}")):
        front.requests.clear()
        with Client(logins=[OriginLogin(other, f"Bearer {CANARY}")]).get(front.url):
            assert front.logins == {None}


def test_a_url_that_two_parsers_read_as_two_hosts_is_not_asked(serve: Serve) -> None:
    """github.com/urllib3/urllib3/pull/5143: the login of the second host went to the first one."""
    front = serve()
    url = f"http://{front.netloc}\\@mirror.example/file.bin"
    client = Client(logins=[OriginLogin("http://mirror.example", f"Bearer {CANARY}")], within=["mirror.example"])
    with pytest.raises(NetworkError, match="names two hosts"):
        client.get(url)
    assert front.requests == []
    with pytest.raises(NetworkError, match=r"redirected to mirror\.example: its URL names two hosts"):
        Client().get(serve(redirect=url).url)


def test_a_ca_that_only_strict_verification_refuses_is_trusted(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """github.com/python/cpython/issues/138193: Python 3.13 is strict, and curl, uv and older Pythons are not."""
    context = ssl.create_default_context()
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    monkeypatch.setattr(ssl, "create_default_context", lambda: context)
    ca = signed(tmp_path, "127.0.0.2").ca
    certificate = resigned(ca, tmp_path, "127.0.0.2", extension="authorityKeyIdentifier=none")
    with Client(ca=ca).get(serve(tls=certificate.context).url) as answer:
        assert answer.status == 200


def test_a_closed_profile_asks_no_host_it_does_not_name(
    serve: Serve, wanted_file: Want, means: TransferOptions
) -> None:
    """Neither where a mirror leads, nor what was asked for by its own URL; a probe finds out who leads there."""
    target = serve()
    front, own = serve(redirect=target.url), serve()
    open_ = Profile(name="site", pypi=[Index(url=front.url)], hf=HuggingFace(endpoint=own.url))
    closed = msgspec.structs.replace(open_, closed=True)
    messages: list[str] = []
    asking = dataclasses.replace(means, client=hub_client(closed), note=messages.append)
    with pytest.raises(UnavailableError, match="is not in the profile, and the profile is closed"):
        fetch(wanted_file(front), asking)
    with pytest.raises(UnavailableError):
        fetch(wanted_file(target), asking)
    assert target.requests == []
    want = wanted_file(front, own)
    fetch(want, asking)
    assert want.path.read_bytes() == CONTENT
    assert target.requests == []
    for asks in (hub_client(open_), hub_client(closed, probes=True)):
        with asks.get(front.url) as answer:
            assert answer.hosts[-1] == target.url.split("/")[2]


def test_a_private_ca_is_trusted_when_given_and_plain_http_behind_https_is_not(
    serve: Serve, certified: Certificate, wanted_file: Want, means: TransferOptions
) -> None:
    server = serve(tls=certified.context)
    want = wanted_file(server)
    with pytest.raises(UnavailableError, match="TLS: "):
        fetch(want, means)
    trusting = dataclasses.replace(means, client=Client(ca=certified.ca))
    fetch(want, trusting)
    assert want.path.read_bytes() == CONTENT
    server.faults.redirect = serve().url
    with pytest.raises(NetworkError, match="redirects to http, which is not trusted"):
        trusting.client.get(want.urls[0])


def test_the_proxy_of_the_environment_is_asked(
    serve: Serve, wanted_file: Want, means: TransferOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy gets the whole URL: this one serves the file itself, and the host behind it does not exist."""
    proxy = serve()
    monkeypatch.setenv("http_proxy", f"http://me:{CANARY}@{proxy.netloc}")
    want = dataclasses.replace(wanted_file(proxy), urls=("http://nobody.invalid/file.bin",))
    fetch(want, means)
    assert want.path.read_bytes() == CONTENT
    assert set(proxy.paths) == {"http://nobody.invalid/file.bin"}
    assert all("Proxy-Authorization" in request.headers for request in proxy.requests)


@pytest.mark.usefixtures("means")
def test_no_secret_is_written_or_said(serve: Serve, tmp_path: Path) -> None:
    """In a URL's query, a netrc and a token; in the journal of an unfinished file, what is printed, and the JSON."""
    server = serve(gone_after=6)
    netrc, profile, to = tmp_path / f"{CANARY}.netrc", tmp_path / "site.yaml", tmp_path / "to"
    netrc.write_text(f"machine {server.server_address[0]} login me password {CANARY}\n")
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
