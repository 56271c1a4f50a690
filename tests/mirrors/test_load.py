"""A site's own profile: what is wrong in it is named with key and line, no password gets past, and what it means."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envcheck.errors import ConfigError
from envcheck.mirrors.net.credentials import Netrc
from envcheck.mirrors.profiles.load import load, parse
from envcheck.mirrors.profiles.model import (
    Conda,
    Credential,
    HuggingFace,
    Index,
    Profile,
    has_userinfo,
    network_indexes,
    redacted,
    without_queries,
)
from tests.tables import beside, each

CASES = beside(__file__)

WHOLE = """\
name: site
pypi:
  - url: https://mirror.example/pypi/simple
  - {url: /srv/wheels, kind: find-links}
  - {url: default}
pytorch:
  - url: "https://mirror.example/whl/{variant}"
hf:
  endpoint: https://hf.mirror.example
  token: allow
apt: [https://mirror.example]
registry: registry.example:5000
ca: ca.pem
netrc: netrc
keep: true
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "netrc").touch()
    (tmp_path / "site.yaml").write_text(WHOLE)
    return tmp_path


def test_a_whole_profile_is_read_and_its_paths_are_relative_to_it(site: Path) -> None:
    assert load(site / "site.yaml") == Profile(
        name="site",
        pypi=[
            Index(url="https://mirror.example/pypi/simple"),
            Index(url="/srv/wheels", kind="find-links"),
            Index(url="default"),
        ],
        pytorch=[Index(url="https://mirror.example/whl/{variant}")],
        hf=HuggingFace(endpoint="https://hf.mirror.example", token="allow"),  # noqa: S106 (a policy)
        apt=["https://mirror.example"],
        registry="registry.example:5000",
        ca=str(site / "ca.pem"),
        netrc=str(site / "netrc"),
        keep=True,
    )


MORE = """\
registries: {docker.io: [mirror.example:5000, "http://10.0.0.1:5000/hub"], ghcr.io: [mirror.example:5001]}
conda: {channel_alias: "https://conda.example", custom_channels: {conda-forge: "https://conda.example/cloud"}}
npm: https://npm.example
modelscope: modelscope.example
credentials:
  Npm.Example: {token_env: NPM_TOKEN}
  pypi.example:8443: {user: joe, password_file: secret}
"""


def test_the_other_clients_and_credentials_by_reference(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    profile = parse(MORE.encode(), tmp_path / "x.yaml")
    assert profile.registries["docker.io"] == ["mirror.example:5000", "http://10.0.0.1:5000/hub"]
    assert profile.conda == Conda(
        channel_alias="https://conda.example", custom_channels={"conda-forge": "https://conda.example/cloud"}
    )
    assert (profile.npm, profile.modelscope) == ("https://npm.example", "modelscope.example")
    assert profile.credentials == {
        "npm.example": Credential(token_env="NPM_TOKEN"),  # noqa: S106 (the name of a variable)
        "pypi.example:8443": Credential(user="joe", password_file=str(tmp_path / "secret")),
    }


@each(("change", "message"), CASES["other parts"])
def test_what_is_wrong_in_the_other_parts_is_named_and_no_secret_repeated(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    (tmp_path / "secret").write_text("hunter2")
    with pytest.raises(ConfigError) as refused:
        parse(MORE.replace(*change).encode(), tmp_path / "x.yaml")
    assert refused.value.message.startswith(f"{tmp_path}/x.yaml{message}")
    assert "s3cr3t" not in str(refused.value)


def test_none_is_every_clients_own_default() -> None:
    assert load("none") == Profile(name="none")


@each(
    ("change", "message"),
    [
        *CASES["its key and line"],
        (("ca: ca.pem", f"ca: {'a' * 5000}"), ":13: ca: "),
        (("[https://mirror.example]", "[" * 100_000), ":11: nested more than 32 deep"),
        ((WHOLE, "[" * 5000 + "]" * 5000), ":1: nested more than 32 deep"),
        ((WHOLE, "keep: true\npypi: []"), ":2: pypi: the list is empty"),
        ((WHOLE, "- a\n"), ": not a mirror profile"),
        ((WHOLE, ""), ": not a mirror profile"),
    ],
)
def test_what_is_wrong_is_named_with_its_key_and_line(site: Path, change: tuple[str, str], message: str) -> None:
    (site / "site.yaml").write_text(WHOLE.replace(*change))
    with pytest.raises(ConfigError) as refused:
        load(site / "site.yaml")
    assert refused.value.message.startswith(f"{site}/site.yaml{message.replace('{site}', str(site))}")
    assert "\n" not in str(refused.value)


@each(
    ("text", "keys"),
    [(b"x: 1", "name, pypi, pytorch, hf"), (b"hf: {x: 1}", "endpoint, "), (b"apt: []\npypi: [{x: 1}]", "url, kind")],
)
def test_an_unknown_key_is_answered_with_the_known_ones_of_its_place(text: bytes, keys: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(text, Path("x.yaml"))
    assert refused.value.fix.startswith(f"use one of {keys}")


def test_a_certificate_file_must_hold_certificates_and_no_key(site: Path) -> None:
    for content in ("", "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n"):
        (site / "ca.pem").write_text(content)
        with pytest.raises(ConfigError, match="no private key"):
            load(site / "site.yaml")


@each(
    ("name", "message"),
    [
        ("hosst", "no mirror profile 'hosst'; did you mean 'host'"),
        ("tunna", "did you mean 'tuna'"),
        ("qqqq", "pass none, host, user, a name from `envcheck mirror list`, a YAML file, or auto"),
        ("auto", "auto is a choice among mirrors, only for build and fetch"),
        ("/", "/ is a directory, not a mirror profile"),
    ],
)
def test_an_unknown_profile_says_what_there_is(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(name)


STRUCTS = (Profile, HuggingFace, Conda, Credential, Index)
KEYS = sorted({field.name for struct in STRUCTS for field in msgspec.structs.fields(struct)})
# What an error's text could be taken apart at, and what is read as a path, a URL or a host.
TEXTS = [
    "$.registries[...]",
    " - at `$.credentials[...]`",
    "unknown field `x`",
    "~no.such.user/x",
    "~",
    "default",
    "a" * 5000,
]
TEXTS += ["https://a.example/x", "http://[x", "https://a:1@b", "/srv", "host:80", "x\0", "{variant}", "{", "file://%"]
TEXT = st.sampled_from([*TEXTS, *KEYS, "never", "simple"]) | st.text(max_size=8)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.dates() | st.binary(max_size=4)
NAMES = TEXT | st.none() | st.booleans() | st.integers() | st.dates()
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


@pytest.mark.parametrize("key", [field.name for field in msgspec.structs.fields(Profile)])
@settings(max_examples=40)
@given(value=VALUES)
@example(value=[{"a": {"b": 1}}])
@example(value={"a": [{"b": 1}]})
@example(value={1: ["x"]})
@example(value="~no.such.user/x")
@example(value="a" * 5000)
@example(value="http://[x")
@example(value={" - at `$.credentials[...]`": None})
@example(value=[{" - at `$.hf": None}])
@example(value={"a": {"b": "c"}})
@example(value={"a\nb": None})
def test_any_value_of_a_key_is_accepted_or_refused_by_name(key: str, value: Any) -> None:
    message = outcome({key: value})
    assert message is None or re.fullmatch(rf"x\.yaml:\d+: {key}\b.*", message), message


@given(value=st.dictionaries(NAMES, VALUES, max_size=4))
@example(value={"a - at `$x": 1})
@example(value={"a - at `$": 1})
@example(value={"a\nb": None})
@example(value={"pypi": [{"url": "/x", "kind": "a\nb"}]})
@example(value={"pypi": [{"url": "/x", "kind": "a?b"}]})
def test_any_mapping_is_a_profile_or_one_line(value: Any) -> None:
    message = outcome(value)
    assert message is None or re.fullmatch(r"x\.yaml:\d+: .+", message), message


class UnaliasedDumper(yaml.SafeDumper):
    """Writes what is in two places twice: an alias is refused before anything else is read."""

    def ignore_aliases(self, data: Any) -> bool:
        """Tell that nothing is to become an alias."""
        return data is not self


def outcome(value: Any) -> str | None:
    text = yaml.dump(value, Dumper=UnaliasedDumper)
    try:
        parse(text.encode(), Path("x.yaml"))
    except ConfigError as error:
        return str(error)
    return None


def test_local_sources_add_to_the_default_and_do_not_replace_it() -> None:
    local = [Index(url="/srv/wheels", kind="find-links"), Index(url="file:///srv/simple")]
    assert network_indexes(local) == [Index(url="default")]
    remote = Index(url="https://a.example/simple")
    assert network_indexes([*local, remote]) == [remote]


@each(
    ("url", "path"),
    [("/srv/w", "/srv/w"), ("file:///srv/a%20b", "/srv/a b"), ("https://a.example/x", None), ("default", None)],
)
def test_what_lies_on_this_machine_is_known_as_such(url: str, path: str | None) -> None:
    assert Index(url=url).local == (None if path is None else Path(path))


@each(("url", "has"), CASES["urls"])
def test_a_user_or_password_in_a_url_is_seen_and_hidden(url: str, *, has: bool) -> None:
    assert has_userinfo(url) is has
    hidden = f"{'https://' if '//' in url else ''}***@a.example{'/x' if url.endswith('/x') else ''}"
    assert redacted(url) == (hidden if has else url)


def test_a_query_is_hidden() -> None:
    assert redacted("https://a.example/x?token=a@b") == "https://a.example/x?..."
    message = "error (https://a.example/x?sig=s): `https://b.example/?t=s` is gone, is it? https://c.example/y"
    hidden = "error (https://a.example/x?...): `https://b.example/?...` is gone, is it? https://c.example/y"
    assert without_queries(message) == hidden


HOST = "mirror.example"


@pytest.fixture
def netrc(tmp_path: Path) -> Path:
    path = tmp_path / "netrc"
    path.write_text(f"machine {HOST} login me password secret\nmachine 127.0.0.1 login me password secret\n")
    path.chmod(0o600)
    return path


@each(
    ("url", "named", "goes"),
    [
        (f"https://{HOST}/a", [], True),
        (f"https://{HOST}:443/a", [], True),
        (f"https://{HOST}:8443/a", [], False),
        (f"http://{HOST}/a", [], False),
        (f"https://{HOST}:8443/a", [f"https://{HOST}:8443/simple"], True),
        (f"https://{HOST}/a", [f"https://{HOST}:8443/simple"], False),
        (f"https://{HOST}:9443/a", [f"https://{HOST}:8443/simple"], False),
        (f"http://{HOST}/a", [f"https://{HOST}/simple"], False),
        (f"http://{HOST}:8080/a", [f"http://{HOST}:8080/simple"], True),
        (f"http://{HOST}:8081/a", [f"http://{HOST}:8080/simple"], False),
        (f"https://other.{HOST}/a", [], False),
        ("http://127.0.0.1:1234/a", [], True),
    ],
)
def test_a_login_goes_to_its_host_over_tls_and_on_the_port_that_the_profile_names(
    netrc: Path,
    url: str,
    named: list[str],
    goes: bool,  # noqa: FBT001 (a column)
) -> None:
    assert (Netrc(netrc, named).header(url) is not None) is goes


def test_comments_in_a_netrc_are_none_of_its_words(netrc: Path) -> None:
    """github.com/python/cpython/issues/104306, github.com/astral-sh/uv/issues/16083: after a blank line, too."""
    own = netrc.read_text()
    old = "macdef m\n# in\n cd\n\n  # machine old.example\n# login x\n#\n"
    netrc.write_text(f"# top\n{own}{old}machine b.example\nlogin u\n")
    known = Netrc(netrc)
    hosts = (HOST, "b.example", "old.example")
    assert [known.header(f"https://{host}/") is not None for host in hosts] == [True, True, False]


@pytest.mark.parametrize("bad", ["`id`", "$(id)", "'", '"', "\\", ";id", "|id", "<x", "${x}"])
@pytest.mark.parametrize("key", ["pypi: [{url: %s}]", "hf: {endpoint: %s}", "apt: [%s]", "npm: %s"])
def test_what_a_shell_would_run_is_no_url(bad: str, key: str) -> None:
    quoted = "'" + f"https://{HOST}/{bad}".replace("'", "''") + "'"
    with pytest.raises(ConfigError):
        parse(f"name: t\n{key % quoted}\n".encode(), Path("p.yaml"))
