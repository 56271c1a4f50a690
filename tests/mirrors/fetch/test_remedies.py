"""What a fetch says to do where a request failed: another mirror is no help against a CA, a login or a proxy."""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.net import advice
from envcheck.mirrors.net.credentials import Netrc
from tests.certificates import Certificate

Serve = Callable[..., Any]
Want = Callable[..., WantedFile]
LOGIN = "add a login for this host to the profile (`netrc:` or `credentials:`)"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "ssl_cert_file"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def error_text(want: WantedFile, means: TransferOptions) -> str:
    with pytest.raises(UnavailableError) as error:
        fetch(want, means)
    return str(error.value)


@pytest.fixture
def secure(serve: Serve, certified: Certificate, wanted_file: Callable[..., WantedFile]) -> WantedFile:
    return wanted_file(serve(tls=certified.context))


def test_a_certificate_of_an_unknown_authority(
    secure: WantedFile, means: TransferOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (secure.size, None):
        result = error_text(dataclasses.replace(secure, size=size), means)
        assert result.endswith(
            ": TLS: self-signed certificate; set its CA certificate as `ca:` in the profile, or in SSL_CERT_FILE"
        )
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    result = error_text(dataclasses.replace(secure, size=None), means)
    assert "SSL_CERT_FILE names /nowhere/ca.pem, which does not exist" in result


@pytest.mark.parametrize(("code", "fix"), [(10, "clock"), (62, "certificate has"), (1, "")])
def test_what_no_authority_mends(code: int, fix: str) -> None:
    error = ssl.SSLCertVerificationError("x")
    error.verify_code = code
    assert fix in advice.tls_advice(error)
    assert "ca:" not in advice.tls_advice(error)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("known", [True, False])
def test_a_refusal(serve: Serve, wanted_file: Want, means: TransferOptions, status: int, *, known: bool) -> None:
    want = wanted_file(serve(status=status))
    assert error_text(want if known else dataclasses.replace(want, size=None), means).endswith(f"; {LOGIN}")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there_or_refuses(
    serve: Serve, wanted_file: Want, means: TransferOptions, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = serve(status=407)
    want = dataclasses.replace(wanted_file(proxy), urls=(f"{scheme}://nobody.invalid/file.bin",), size=None)
    for named, why in (("http://me:s3cret@127.0.0.1:9", "no connection"), ("socks5://127.0.0.1:9", "its URL")):
        monkeypatch.setenv(f"{scheme}_proxy", named)
        result = error_text(want, means)
        assert f"its proxy: {why}" in result
        assert f"correct {scheme}_proxy, which names 127.0.0.1:9, or add the host to no_proxy" in result
        assert "s3cret" not in result
    monkeypatch.setenv(f"{scheme}_proxy", proxy.url.removesuffix("/file.bin"))
    assert f"{scheme}_proxy" in error_text(want, means)


def test_a_netrc_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_bytes(b"machine a login b password \xff\n")
    with pytest.raises(ConfigError, match=r"netrc: not a valid netrc file: not UTF-8 text; write `machine HOST"):
        Netrc(tmp_path / "netrc")
