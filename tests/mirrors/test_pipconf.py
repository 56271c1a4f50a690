"""pip's and uv's configuration is read as they read it."""

from __future__ import annotations

from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles.host_config import ClientConfig, pip_config, uv_config
from tests.tables import each

PIP = PurePath("/etc/pip.conf")
UV = PurePath("/etc/uv/uv.toml")
urls = st.from_regex(r"https://[a-z]{1,8}\.example/[a-z]{0,8}", fullmatch=True)


@given(
    extra=st.lists(urls, min_size=1, max_size=4), lines=st.booleans(), section=st.sampled_from(["global", "install"])
)
def test_every_url_of_a_pip_file_is_found_in_order(extra: list[str], *, lines: bool, section: str) -> None:
    value = "\n    ".join(["", *extra]) if lines else " ".join(extra)
    client_config = pip_config([(PIP, f"[{section}]\nextra-index-url = {value}\n")], {})
    assert client_config == ClientConfig(extra=extra)


def test_later_files_win_and_the_environment_wins_over_all() -> None:
    system = (PIP, "[global]\nindex-url = https://a.example\ncert = /a.pem\n")
    user = (PIP, "[global]\nindex_url = https://b.example\n[install]\nfind-links = /w1 /w2\n")
    assert pip_config([system, user], {}) == ClientConfig(
        index="https://b.example", find_links=["/w1", "/w2"], cert="/a.pem"
    )
    assert pip_config([system, user], {"PIP_INDEX_URL": "https://c.example"}).index == "https://c.example"
    assert pip_config([system], {"PIP_INDEX_URL": ""}).index == "https://a.example"


def test_a_percent_sign_in_a_pip_file_is_only_a_percent_sign() -> None:
    assert pip_config([(PIP, "[global]\nindex-url = https://a.example/a%20b\n")], {}).index == "https://a.example/a%20b"


@each("text", ["index-url = x\n", "[global]\nindex-url\n\n[global\n"])
def test_a_broken_pip_file_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^/etc/pip\.conf: "):
        pip_config([(PIP, text)], {})


def test_a_uv_file_names_a_default_and_others() -> None:
    text = """
    find-links = ["/w"]
    [[index]]
    name = "torch"
    url = "https://a.example/whl/cpu"
    [[index]]
    url = "https://b.example/simple"
    default = true
    """
    assert uv_config([(UV, text)], {}) == ClientConfig(
        index="https://b.example/simple", extra=["https://a.example/whl/cpu"], find_links=["/w"]
    )


def test_uvs_older_keys_and_its_pip_table_count_too() -> None:
    text = 'extra-index-url = ["https://x.example"]\n[pip]\nindex-url = "https://a.example"\n'
    assert uv_config([(UV, text)], {}) == ClientConfig(index="https://a.example", extra=["https://x.example"])


def test_uvs_environment_goes_before_its_files() -> None:
    environ = {
        "UV_DEFAULT_INDEX": "https://e.example",
        "UV_INDEX": "lab=https://l.example https://m.example/?a=b",
        "UV_FIND_LINKS": "/w1,/w2",
        "SSL_CERT_FILE": "/ca.pem",
    }
    client_config = uv_config(
        [(UV, 'index-url = "https://a.example"\nextra-index-url = ["https://x.example"]\n')], environ
    )
    assert client_config == ClientConfig(
        index="https://e.example",
        extra=["https://l.example", "https://m.example/?a=b", "https://x.example"],
        find_links=["/w1", "/w2"],
        cert="/ca.pem",
    )


@each("text", ["index = 1", "[[index]]\nname = 'x'\n", "not toml", "index = ['x']"])
def test_a_broken_uv_file_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^/etc/uv/uv\.toml: "):
        uv_config([(UV, text)], {})
