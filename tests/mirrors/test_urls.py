"""Where a redirect may lead, who is the same origin, and which proxy is asked."""

from __future__ import annotations

import pytest

from envcheck.errors import ConfigError
from envcheck.mirrors.net.urls import host_of, origin_of, proxy_login, proxy_of, redirect_target, split_sha256


def test_a_redirect_stays_as_secure_as_it_was() -> None:
    assert redirect_target("http://a/x/y", "../z") == "http://a/z"
    assert redirect_target("http://a/x", "https://b/y") == "https://b/y"
    for target in ("http://a/x", "ftp://a/x", "file:///etc/passwd", "http://[x"):
        with pytest.raises(ValueError, match=r"^a redirects to"):
            redirect_target("https://a/x", target)


def test_an_origin_is_scheme_host_and_port() -> None:
    assert origin_of("https://A.example/x") == origin_of("https://a.example:443/y")
    assert origin_of("https://a.example/x") != origin_of("http://a.example/x")
    assert origin_of("https://a.example:8443/x") != origin_of("https://a.example/x")
    assert host_of("https://me:secret@a.example:8443/x") == "a.example:8443"


def test_the_proxy_is_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all_proxy", "ALL_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert proxy_of("https://a.example/x") == "http://proxy.example:3128"
    assert proxy_of("https://inside.example/x") is None
    assert proxy_login("http://me:p%40ss@proxy.example") == "me:p@ss"
    assert proxy_login("http://proxy.example") is None


def test_only_a_fragment_of_a_sha256_is_a_hash() -> None:
    assert split_sha256("https://a/x.bin?y=1") == ("https://a/x.bin?y=1", None)
    for fragment in ("", "section", "page=3", "0" * 64):
        assert split_sha256(f"https://a/x.bin#{fragment}") == ("https://a/x.bin", None)
    assert split_sha256(f"https://a/x.bin#sha256={'0A' * 32}") == ("https://a/x.bin", "0a" * 32)
    for fragment in ("sha256=", f"sha256={'0' * 63}", f"sha256={'0' * 64}\n", "md5=0", f"sha512={'0' * 64}"):
        with pytest.raises(ConfigError, match=r"^'https://a/x\.bin\?\.\.\.' has no valid hash after its #"):
            split_sha256(f"https://a/x.bin?token=canary#{fragment}")
