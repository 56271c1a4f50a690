"""The host profile is this machine's own configuration, as pip, uv and apt read it."""

import os
from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles.host_config import (
    AptSource,
    ClientConfig,
    apt_sources,
    base_urls,
    host_profile,
    pip_config,
    system_roots,
    uv_config,
)
from envcheck.mirrors.profiles.model import HuggingFace, Index

PIP = PurePath("/etc/pip.conf")
UV = PurePath("/etc/uv/uv.toml")
urls = st.from_regex(r"https://[a-z]{1,8}\.example/[a-z]{0,8}", fullmatch=True)


@given(
    extra=st.lists(urls, min_size=1, max_size=4), lines=st.booleans(), section=st.sampled_from(["global", "install"])
)
def test_every_url_of_a_pip_file_is_found_in_order(extra: list[str], *, lines: bool, section: str) -> None:
    value = "\n    ".join(["", *extra]) if lines else " ".join(extra)
    assert pip_config([(PIP, f"[{section}]\nextra-index-url = {value}\n")], {}) == ClientConfig(extra=extra)


def test_later_files_win_and_the_environment_wins_over_all() -> None:
    system = (PIP, "[global]\nindex-url = https://a.example/a%20b\ncert = /a.pem\n")
    user = (PIP, "[global]\nindex_url = https://b.example\n[install]\nfind-links = /w1 /w2\n")
    assert pip_config([system, user], {}) == ClientConfig(
        index="https://b.example", find_links=["/w1", "/w2"], cert="/a.pem"
    )
    assert pip_config([system, user], {"PIP_INDEX_URL": "https://c.example"}).index == "https://c.example"
    assert pip_config([system], {"PIP_INDEX_URL": ""}).index == "https://a.example/a%20b"


UV_FILE = """
find-links = ["/w"]
[[index]]
name = "torch"
url = "https://a.example/whl/cpu"
[[index]]
url = "https://b.example/simple"
default = true
"""
UV_OLDER = 'extra-index-url = ["https://x.example"]\n[pip]\nindex-url = "https://a.example"\n'
UV_ENVIRONMENT = {
    "UV_DEFAULT_INDEX": "https://e.example",
    "UV_INDEX": "lab=https://l.example https://m.example/?a=b",
    "UV_FIND_LINKS": "/w1,/w2",
    "SSL_CERT_FILE": "/ca.pem",
}


def test_uvs_environment_goes_before_its_files_and_its_older_keys_count() -> None:
    index, torch = "https://b.example/simple", "https://a.example/whl/cpu"
    assert uv_config([(UV, UV_FILE)], {}) == ClientConfig(index=index, extra=[torch], find_links=["/w"])
    assert uv_config([(UV, UV_OLDER)], {}) == ClientConfig(index="https://a.example", extra=["https://x.example"])
    assert uv_config([(UV, UV_OLDER)], UV_ENVIRONMENT) == ClientConfig(
        index="https://e.example",
        extra=["https://l.example", "https://m.example/?a=b", "https://x.example"],
        find_links=["/w1", "/w2"],
        cert="/ca.pem",
    )


def test_a_broken_file_is_named() -> None:
    for text in ("index-url = x\n", "[global]\nindex-url\n\n[global\n"):
        with pytest.raises(ConfigError, match=r"^/etc/pip\.conf: "):
            pip_config([(PIP, text)], {})
    for text in ("index = 1", "[[index]]\nname = 'x'\n", "not toml", "index = ['x']"):
        with pytest.raises(ConfigError, match=r"^/etc/uv/uv\.toml: "):
            uv_config([(UV, text)], {})


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    for directory in ("etc/uv", "etc/apt/sources.list.d", "home/.config/pip", "venv"):
        (tmp_path / directory).mkdir(parents=True)
    return tmp_path


def _environ(machine: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(machine / "home"), "VIRTUAL_ENV": str(machine / "venv")} | more


def test_files_environment_and_certificates_are_joined(machine: Path) -> None:
    profile = host_profile(_environ(machine), machine)
    assert (profile.pypi, profile.pytorch, profile.ca) == ([Index(url="default")], [], None)
    assert (profile.netrc, profile.hf) == (None, HuggingFace())
    (machine / "etc/pip.conf").write_text("[global]\nindex-url = https://system.example/simple\ncert = /system.pem\n")
    (machine / "home/.config/pip/pip.conf").write_text(
        "[global]\nextra-index-url = file:///srv/simple\n    https://a.example/whl/cu128\n"
    )
    (machine / "etc/uv/uv.toml").write_text('[[index]]\nurl = "https://lab.example/simple"\n')
    (machine / "home/.netrc").touch()
    environ = _environ(machine, PIP_FIND_LINKS="/srv/wheels", HF_ENDPOINT="https://hf.example")
    profile = host_profile(environ, machine)
    links = Index(url="/srv/wheels", kind="find-links")
    simple = ["https://system.example/simple", "https://lab.example/simple", "file:///srv/simple"]
    assert profile.pypi == [*(Index(url=url) for url in simple), links]
    assert profile.pytorch == [Index(url="https://a.example/whl/{variant}"), links]
    assert (profile.ca, profile.netrc) == ("/system.pem", str(machine / "home/.netrc"))
    assert profile.hf.endpoint == "https://hf.example"
    assert host_profile({**environ, "REQUESTS_CA_BUNDLE": "/r.pem", "PIP_CERT": "/p.pem"}, machine).ca == "/p.pem"
    assert host_profile({**environ, "SSL_CERT_FILE": "/s.pem"}, machine).ca == "/s.pem"


def test_pip_without_configuration_files_is_obeyed(machine: Path) -> None:
    (machine / "etc/pip.conf").write_text("[global]\nindex-url = https://a.example\n")
    assert host_profile(_environ(machine, PIP_CONFIG_FILE=os.devnull), machine).pypi == [Index(url="default")]
    (machine / "other.conf").write_text("[global]\nindex-url = https://b.example\n")
    profile = host_profile(_environ(machine, PIP_CONFIG_FILE=str(machine / "other.conf")), machine)
    assert profile.pypi == [Index(url="https://b.example")]


def test_an_unreadable_file_is_an_error_and_no_guess(machine: Path) -> None:
    (machine / "etc/pip.conf").write_bytes(b"[global]\nindex-url = \xff\xfe\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        host_profile(_environ(machine), machine)


def test_the_machines_roots_are_a_file_that_exists(tmp_path: Path) -> None:
    roots = tmp_path / "roots.pem"
    roots.touch()
    assert system_roots({"SSL_CERT_FILE": str(tmp_path / "gone.pem"), "PIP_CERT": str(roots)}) == roots


DEB822 = """\
Types: deb deb-src
# a comment
URIs: https://a.example/debian
  https://b.example/debian/
Suites: bookworm bookworm-updates
Components: main

Types: deb-src
URIs: https://c.example/debian
Suites: bookworm

Enabled: no
Types: deb
URIs: https://d.example/debian
Suites: bookworm
"""
ONE_LINE = """\
# deb https://e.example/debian bookworm main
deb [arch=amd64 signed-by=/x.gpg] https://f.example/debian bookworm main contrib
deb-src https://g.example/debian bookworm main
deb https://h.example/ubuntu noble main
deb cdrom:[Debian]/debian bookworm main
"""


def test_enabled_binary_apt_sources_of_the_bases_suite_count_and_backups_do_not(machine: Path) -> None:
    directory = machine / "etc/apt/sources.list.d"
    (machine / "etc/apt/sources.list").write_text(ONE_LINE)
    (directory / "b.sources").write_text(DEB822)
    (directory / "c.list.save").write_text("deb https://c.example/debian bookworm main\n")
    sources = apt_sources(machine)
    both = ["https://a.example/debian", "https://b.example/debian/"]
    assert sources[-1] == AptSource(uris=both, suites=["bookworm", "bookworm-updates"])
    assert base_urls(sources, "debian", "bookworm") == ["https://f.example", "https://a.example", "https://b.example"]
    assert base_urls(sources, "ubuntu", "noble") == ["https://h.example"]
    assert base_urls(sources, "ubuntu", "jammy") == []
