"""What `site render` takes and what it refuses, with why: all before anybody is asked."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.site import Tls
from envcheck.mirrors.site_sources import cache_sizes, check_certificate
from tests.certificates import Certificate, openssl
from tests.mirrors.site.upstreams import free_port
from tests.tables import each

LINK = ("--link", "https://x.example")


def render(site: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["mirror", "site", "render", str(site), *options])


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no request be made."""

    def get(_client: Client, url: str, *_arguments: object) -> None:
        pytest.fail(f"{url} was asked")

    monkeypatch.setattr(Client, "get", get)


@pytest.mark.usefixtures("unasked")
@each(
    ("options", "says"),
    [
        (("--address", "300.1.1.1"), "300.1.1.1"),
        (("--name", "a;b"), "'a;b'"),
        (("--allow", "192.0.2.0/33"), "192.0.2.0/33"),
        (("--registry", "docker.io"), "'docker.io' has no URL"),
        (("--registry", "docker.io=x"), "'x' is not a URL"),
        (("--registry", "a=https://x.example", "--registry", "a=https://y.example"), "'a' is given twice"),
        (("--sync", "a=/x", "--sync", "a=/y"), "'a' is given twice: /x and /y"),
        (("--tree", "a=https://x.example", "--tree", "a=https://y.example"), "'a' is given twice"),
        (("--sync", "a=/x`id`"), "a blank or one of"),
        (("--sync", "a=host:/x|id"), "a blank or one of"),
        (("--sync", "a=/x\x1b"), "a blank or one of"),
        (("--tree", "a=https://x.example/`id`"), "a blank or one of"),
        (("--tree", "a=https://x.example/a&b"), "a blank or one of"),
        (("--link", "garbage"), "'garbage' is not a URL"),
        (("--cache-size", "999999T"), "more than the whole disk"),
        (("--min-free", "999999T"), "more than the whole disk"),
        (("--sync", "main=https://other.example/main"), "not a source for rsync"),
        (("--sync", "store=/srv/tree"), "the name store is reserved"),
        (("--sync", "main=-e"), "not a source for rsync"),
        (("--sync", "main=me:c4nary@other.example::main"), "has a password"),
        (("--address", "192.0.2.1"), "has no TLS"),
        (("--users", __file__), "does not protect Hugging Face"),
        (("--registry", "docker.io=https://me:c4nary@registry.example"), "has a password"),
    ],
)
def test_arguments_are_read_before_anybody_is_asked(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    done = render(tmp_path / "site", *options)
    assert isinstance(done.exception, ConfigError)
    assert says in done.exception.message
    assert "c4nary" not in str(done.exception)
    assert not (tmp_path / "site").exists()


def test_a_store_that_is_not_there_is_said(tmp_path: Path) -> None:
    words = (*LINK, "--store", str(tmp_path / "store"))
    assert f"warning: {tmp_path / 'store'} does not exist" in render(tmp_path / "site", *words).output
    (tmp_path / "store").mkdir()
    assert "does not exist" not in render(tmp_path / "site", *words).output


def test_who_cannot_be_asked_is_named(tmp_path: Path) -> None:
    at = f"127.0.0.1:{free_port('127.0.0.1')}"
    (tmp_path / "dead.yaml").write_text(f"pypi: [{{url: 'http://{at}/simple'}}]\n")
    done = render(tmp_path / "site", "--no-pytorch", "--mirror", str(tmp_path / "dead.yaml"))
    assert isinstance(done.exception, UnavailableError)
    assert "reading what 1 index link to: " in done.output  # said before the first answer
    assert f"{at}: no connection" in done.exception.message


def test_sizes_are_shares_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**12))
    assert cache_sizes(tmp_path, None, None) == (7 * 10**11, 15 * 10**10)
    assert cache_sizes(tmp_path, 10**12, 0) == (10**12, 0)


def expired(authority: Certificate, to: Path) -> Path:
    request, ca = to / "request.pem", authority.ca
    subject = ("-subj", "/CN=mirror", "-addext", "subjectAltName=IP:127.0.0.1")
    openssl(to, "req", "-new", "-key", authority.key, *subject, "-out", request)
    sign = ("-CA", ca, "-CAkey", ca.with_name("ca.key"), "-copy_extensions", "copy", "-days", "-1")
    openssl(to, "x509", "-req", "-in", request, *sign, "-set_serial", "7", "-out", to / "old.pem")
    return to / "old.pem"


def stranger(to: Path) -> tuple[Path, Path]:
    key, ca = to / "other.key", to / "other.pem"
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=127.0.0.1")
    names = ("-addext", "subjectAltName=IP:127.0.0.1")
    openssl(to, "req", "-x509", *new, *names, "-keyout", key, "-out", ca)
    return ca, key


def test_a_certificate_that_clients_would_not_take_is_said(authority: Certificate, tmp_path: Path) -> None:
    own = Tls(certificate=str(authority.certificate), key=str(authority.key))
    other, key = stranger(tmp_path)
    old = Tls(certificate=str(expired(authority, tmp_path)), key=own.key)
    for ca in (authority.ca, None):
        check_certificate(own, "127.0.0.1", ca)
        check_certificate(own, "localhost", ca)
        for tls, name, says in (
            (own, "192.0.2.1", "mismatch"),
            (own, "mirror.example", "mismatch"),
            (old, "127.0.0.1", "certificate has expired"),
            (Tls(certificate=own.key, key=own.certificate), "localhost", ""),
            (Tls(certificate=own.certificate, key=str(key)), "localhost", "MISMATCH"),
            (own, ".x", ""),
        ):
            with pytest.raises(ConfigError, match=f"clients would refuse .* for {name}.*{says}"):
                check_certificate(tls, name, ca)
    with pytest.raises(ConfigError, match="clients would refuse"):
        check_certificate(own, "127.0.0.1", other)
    check_certificate(Tls(certificate=str(other), key=str(key)), "127.0.0.1", other)


def test_render_holds_the_certificate_against_the_name(authority: Certificate, tmp_path: Path) -> None:
    tls = ("--tls", str(authority.certificate), str(authority.key))
    done = render(tmp_path / "site", *LINK, *tls, "--name", "mirror.example")
    assert isinstance(done.exception, ConfigError)
    assert "for mirror.example: " in done.exception.message
    done = render(tmp_path / "site", *LINK, *tls)
    assert done.exception is None
    assert "https://127.0.0.1 (https://github.com/pypa/pip/issues/12906)" in done.stderr
    named = render(tmp_path / "site", *LINK, *tls, "--name", "localhost")
    assert (named.exception, "pypa/pip" in named.stderr) == (None, False)
