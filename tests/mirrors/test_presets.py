"""The profiles that are no file: the mirrors that can be named, and what this machine tells its own clients."""

import datetime as dt
import errno
import os
import re
from pathlib import Path, PurePath
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles import model
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
from envcheck.mirrors.profiles.load import (
    Kind,
    Preset,
    PresetEntry,
    load,
    parse_presets,
    preset_profile,
    presets,
    validate,
)
from envcheck.mirrors.profiles.model import Conda, HuggingFace, Index, Profile
from tests.tables import each

NAMES = ("tuna", "ustc", "sjtu", "aliyun", "tencent", "huawei", "nju", "hf-mirror", "modelscope")


def test_the_mirrors_people_use_are_there_in_order() -> None:
    assert set(NAMES) <= set(presets())
    places = zip(presets(), sorted(presets()), strict=True)
    assert [f"{name}: {first} comes before it" for name, first in places if name != first] == [], "sort them by name"


@each("name", presets())
def test_a_preset_is_a_profile_that_a_file_could_hold(name: str) -> None:
    profile = validate(load(name), str)
    assert profile.name == name
    assert profile != Profile(name=name)
    assert profile.credentials == {}
    assert profile.netrc is None


@each("name", presets())
def test_every_address_has_its_source_and_what_its_kind_may_have(name: str) -> None:
    kinds = [entry.kind for entry in presets()[name].entries]
    assert [kind for kind in set(kinds) - {"pypi", "pytorch", "apt", "registry"} if kinds.count(kind) > 1] == []
    for entry in presets()[name].entries:
        assert len(entry.source) > 8
        assert entry.url.startswith("https://") == (entry.kind not in {"registry", "modelscope"})
        assert not entry.url.endswith("/")
        assert entry.last_verified is None or entry.last_verified <= dt.datetime.now(tz=dt.timezone.utc).date()
        assert entry.layout == "simple" or entry.kind in {"pypi", "pytorch"}
        assert entry.upstream == "docker.io" or entry.kind == "registry"
        assert not entry.channels or entry.kind == "conda"


def test_a_wrong_preset_is_named_with_its_key_and_line() -> None:
    text = (
        "example:\n  title: Example\n  region: eu\n  entries:\n    - {kind: pypi, url: 'https://u:s3cr3t@m.example'}\n"
    )
    for change, message in (
        ("", ":5: example.entries[0].url: a user"),
        ("u:s3cr3t@", ":5: example.entries[0]: missing key `source`"),
    ):
        with pytest.raises(ConfigError) as refused:
            parse_presets(text.replace(change, "").encode(), Path("p.yaml"))
        assert str(refused.value).startswith(f"p.yaml{message}")
        assert "s3cr3t" not in str(refused.value)


def test_each_kind_of_entry_becomes_its_part_of_the_profile() -> None:
    fields: list[dict[str, Any]] = [
        {"kind": "pypi", "url": "https://a.example/simple"},
        {"kind": "pytorch", "url": "https://a.example/{variant}", "layout": "find-links"},
        {"kind": "hf", "url": "https://hf.example"},
        {"kind": "apt", "url": "https://a.example"},
        {"kind": "conda", "url": "https://a.example/c", "channels": ["pytorch"]},
        {"kind": "npm", "url": "https://npm.example"},
        {"kind": "registry", "url": "r.example", "upstream": "ghcr.io"},
        {"kind": "modelscope", "url": "ms.example"},
    ]
    entries = [PresetEntry(source="s", last_verified=None, **entry) for entry in fields]
    assert {entry.kind for entry in entries} == set(get_args(Kind))
    profile = preset_profile("x", Preset(title="t", region="cn", entries=entries))
    assert profile.pypi == [Index(url="https://a.example/simple")]
    assert profile.pytorch == [Index(url="https://a.example/{variant}", kind="find-links")]
    assert profile.hf.endpoint == "https://hf.example"
    assert profile.apt == ["https://a.example"]
    assert profile.conda == Conda(
        default_channels=[f"https://a.example/c/pkgs/{name}" for name in ("main", "r", "msys2")],
        custom_channels={"pytorch": "https://a.example/c/cloud"},
    )
    assert profile.npm == "https://npm.example"
    assert profile.registries == {"ghcr.io": ["r.example"]}
    assert profile.modelscope == "ms.example"


def test_user_is_what_was_chosen_and_none_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load("user") == Profile(name="none")
    assert model.write_choice("tuna") == tmp_path / "envcheck/mirror"
    assert load("user") == load("tuna")
    model.write_choice("/gone.yaml")
    with pytest.raises(ConfigError, match=r"no mirror profile '/gone\.yaml'; .*`envcheck mirror use none`"):
        load("user")
    assert model.write_choice(None) == model.write_choice(None) == tmp_path / "envcheck/mirror"
    assert load("user") == Profile(name="none")
    (tmp_path / "envcheck/mirror").write_text("tuna")
    monkeypatch.setattr(Path, "read_text", _refuse)
    with pytest.raises(ConfigError, match=r"/mirror: cannot read the chosen mirror: Permission denied.* --mirror none"):
        model.read_choice()


def _refuse(*_: object, **__: object) -> str:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


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
    "UV_DEFAULT_INDEX": " https://e.example ",  # uv ignores the blanks
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


@each(
    "variable, value, told",
    [
        ("HF_ENDPOINT", '"https://hf.example"', "hf.endpoint (HF_ENDPOINT): "),  # github.com/docker/docs/issues/13398
        ("UV_DEFAULT_INDEX", "a.example/simple", "pypi[0].url (of pip or uv): 'a.example/simple' is not a URL"),
        ("PIP_INDEX_URL", "https://a.example https://b.example", "pypi[0].url (of pip or uv): a blank"),
        ("SSL_CERT_FILE", "/gone.pem", "ca (SSL_CERT_FILE, PIP_CERT, "),  # github.com/lee88688/aider-composer/issues/49
    ],
)
def test_a_setting_that_no_client_can_use_is_named(variable: str, value: str, told: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable, value)
        with pytest.raises(ConfigError, match=re.escape(told)):
            load("host")


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
