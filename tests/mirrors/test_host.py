"""The host profile is this machine's own configuration, whatever it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles.host_config import apt_sources, host_profile, system_roots
from envcheck.mirrors.profiles.model import HuggingFace, Index
from tests.tables import each


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return an empty root directory with a home in it."""
    for directory in ("etc/uv", "etc/apt/sources.list.d", "home/.config/pip", "venv"):
        (tmp_path / directory).mkdir(parents=True)
    return tmp_path


def _environ(machine: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(machine / "home"), "VIRTUAL_ENV": str(machine / "venv")} | more


def test_a_machine_without_any_configuration_uses_the_clients_default(machine: Path) -> None:
    profile = host_profile(_environ(machine), machine)
    assert profile.pypi == [Index(url="default")]
    assert (profile.pytorch, profile.ca, profile.netrc, profile.hf) == ([], None, None, HuggingFace())


def test_pips_and_uvs_files_environment_and_certificates_are_joined(machine: Path) -> None:
    (machine / "etc/pip.conf").write_text("[global]\nindex-url = https://system.example/simple\ncert = /system.pem\n")
    (machine / "home/.config/pip/pip.conf").write_text(
        "[global]\nextra-index-url = file:///srv/simple\n    https://a.example/whl/cu128\n"
    )
    (machine / "etc/uv/uv.toml").write_text('[[index]]\nurl = "https://lab.example/simple"\n')
    (machine / "home/.netrc").touch()
    environ = _environ(machine, PIP_FIND_LINKS="/srv/wheels", HF_ENDPOINT="https://hf.example")
    profile = host_profile(environ, machine)
    links = Index(url="/srv/wheels", kind="find-links")
    assert profile.pypi == [
        Index(url="https://system.example/simple"),
        Index(url="https://lab.example/simple"),
        Index(url="file:///srv/simple"),
        links,
    ]
    assert profile.pytorch == [Index(url="https://a.example/whl/{variant}"), links]
    assert (profile.ca, profile.netrc) == ("/system.pem", str(machine / "home/.netrc"))
    assert profile.hf.endpoint == "https://hf.example"


def test_certificates_named_for_everyone_go_before_pips_own(machine: Path) -> None:
    environ = _environ(machine, REQUESTS_CA_BUNDLE="/r.pem", PIP_CERT="/p.pem")
    assert host_profile(environ, machine).ca == "/p.pem"
    assert host_profile(environ | {"SSL_CERT_FILE": "/s.pem"}, machine).ca == "/s.pem"


def test_pip_without_configuration_files_is_obeyed(machine: Path) -> None:
    (machine / "etc/pip.conf").write_text("[global]\nindex-url = https://a.example\n")
    assert host_profile(_environ(machine, PIP_CONFIG_FILE=os.devnull), machine).pypi == [Index(url="default")]
    (machine / "other.conf").write_text("[global]\nindex-url = https://b.example\n")
    profile = host_profile(_environ(machine, PIP_CONFIG_FILE=str(machine / "other.conf")), machine)
    assert profile.pypi == [Index(url="https://b.example")]


def test_a_query_in_the_machines_configuration_is_refused_and_not_repeated(machine: Path) -> None:
    with pytest.raises(ConfigError, match="query") as refused:
        host_profile(_environ(machine, PIP_INDEX_URL="https://a.example/simple?token=hunter2"), machine)
    assert "hunter2" not in str(refused.value)


@each("variable", ["PIP_INDEX_URL", "UV_INDEX", "PIP_FIND_LINKS", "HF_ENDPOINT"])
def test_a_password_in_the_machines_configuration_is_refused_and_not_repeated(machine: Path, variable: str) -> None:
    with pytest.raises(ConfigError, match=r"netrc") as refused:
        host_profile(_environ(machine, **{variable: "https://joe:hunter2@a.example/simple"}), machine)
    assert "hunter2" not in str(refused.value)


def test_apt_sources_of_both_forms_are_read_and_backups_are_not(machine: Path) -> None:
    (machine / "etc/apt/sources.list").write_text("deb https://a.example/debian bookworm main\n")
    directory = machine / "etc/apt/sources.list.d"
    (directory / "b.sources").write_text("Types: deb\nURIs: https://b.example/debian\nSuites: bookworm\n")
    (directory / "c.list.save").write_text("deb https://c.example/debian bookworm main\n")
    assert [source.uris for source in apt_sources(machine)] == [
        ["https://a.example/debian"],
        ["https://b.example/debian"],
    ]


def test_the_machines_roots_are_a_file_that_exists(tmp_path: Path) -> None:
    roots = tmp_path / "roots.pem"
    roots.touch()
    assert system_roots({"SSL_CERT_FILE": str(tmp_path / "gone.pem"), "PIP_CERT": str(roots)}) == roots


def test_an_unreadable_file_is_an_error_and_no_guess(machine: Path) -> None:
    (machine / "etc/pip.conf").write_bytes(b"[global]\nindex-url = \xff\xfe\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        host_profile(_environ(machine), machine)
