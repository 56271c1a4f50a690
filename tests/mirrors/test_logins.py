"""To whom a netrc login goes, and what a profile's URL may hold."""

from pathlib import Path

import pytest

from envcheck.errors import ConfigError
from envcheck.mirrors.net.credentials import Netrc
from envcheck.mirrors.profiles.load import parse
from tests.tables import each

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
