"""What a profile means to the clients."""

from pathlib import Path

import pytest

from envcheck.errors import ConfigError
from envcheck.mirrors.net.credentials import Netrc
from envcheck.mirrors.profiles.load import parse
from envcheck.mirrors.profiles.model import (
    HuggingFace,
    Index,
    Profile,
    has_userinfo,
    hf_environment,
    network_indexes,
    redacted,
    without_queries,
)
from tests.tables import beside, each

CASES = beside(__file__)


def test_an_endpoint_turns_xet_off_because_its_data_would_go_elsewhere() -> None:
    data = hf_environment(Profile(name="t", hf=HuggingFace(endpoint="https://hf.example/", etag_timeout=90)))
    assert (data["HF_ENDPOINT"], data["HF_HUB_DISABLE_XET"]) == ("https://hf.example", "1")
    assert (data["HF_HUB_ETAG_TIMEOUT"], data["HF_HUB_DOWNLOAD_TIMEOUT"]) == ("90", "60")


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


@pytest.mark.parametrize("bad", ["`id`", "$(id)", "'", '"', "\\", ";id", "|id", "<x", "${x}"])
@pytest.mark.parametrize("key", ["pypi: [{url: %s}]", "hf: {endpoint: %s}", "apt: [%s]", "npm: %s"])
def test_what_a_shell_would_run_is_no_url(bad: str, key: str) -> None:
    quoted = "'" + f"https://{HOST}/{bad}".replace("'", "''") + "'"
    with pytest.raises(ConfigError):
        parse(f"name: t\n{key % quoted}\n".encode(), Path("p.yaml"))
