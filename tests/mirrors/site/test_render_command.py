"""What `site render` takes and refuses, before anybody is asked, and what it makes of a site that is there."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.site import Tls, write
from envcheck.mirrors.site_sources import cache_sizes, check_certificate
from tests.certificates import Certificate, resigned, self_signed
from tests.tables import each

LINK = ("--link", "https://x.example")


def render(site: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["mirror", "site", "render", str(site), *options])


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
        *((("--sync", f"a={source}"), "a blank or one of") for source in ("/x`id`", "host:/x|id", "/x\x1b")),
        *((("--tree", f"a=https://x.example/{path}"), "a blank or one of") for path in ("`id`", "a&b")),
        (("--link", "garbage"), "'garbage' is not a URL"),
        *(((option, "999999T"), "more than the whole disk") for option in ("--cache-size", "--min-free")),
        (("--sync", "main=https://other.example/main"), "no rsync source"),
        (("--sync", "store=/srv/tree"), "the name store is reserved"),
        (("--sync", "main=-e"), "no rsync source"),
        (("--sync", "main=me:c4nary@other.example::main"), "has a password"),
        (("--address", "192.0.2.1"), "has no TLS"),
        (("--users", __file__), "does not protect Hugging Face"),
        (("--registry", "docker.io=https://me:c4nary@registry.example"), "has a password"),
    ],
)
def test_arguments_are_read_before_anybody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], says: str
) -> None:
    monkeypatch.setattr(Client, "get", lambda _client, url, *_more: pytest.fail(f"{url} was asked"))
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
    at = "127.0.0.1:9"
    (tmp_path / "dead.yaml").write_text(f"pypi: [{{url: 'http://{at}/simple'}}]\n")
    done = render(tmp_path / "site", "--no-pytorch", "--mirror", str(tmp_path / "dead.yaml"))
    assert isinstance(done.exception, UnavailableError)
    assert "reading what 1 index link to: " in done.output  # said before the first answer
    assert f"{at}: no connection" in done.exception.message


def test_sizes_are_shares_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**12))
    assert cache_sizes(tmp_path, None, None) == (7 * 10**11, 15 * 10**10)
    assert cache_sizes(tmp_path, 10**12, 0) == (10**12, 0)


def test_a_certificate_that_clients_would_not_take_is_said(authority: Certificate, tmp_path: Path) -> None:
    own = Tls(certificate=str(authority.certificate), key=str(authority.key))
    (tmp_path / "old").mkdir()
    other, expired = self_signed(tmp_path, "127.0.0.1"), resigned(authority.ca, tmp_path / "old", "127.0.0.1", days=-1)
    old = Tls(certificate=str(expired.certificate), key=str(expired.key))
    for ca in (authority.ca, None):
        check_certificate(own, "127.0.0.1", ca)
        check_certificate(own, "localhost", ca)
        for tls, name, says in (
            (own, "192.0.2.1", "mismatch"),
            (own, "mirror.example", "mismatch"),
            (old, "127.0.0.1", "certificate has expired"),
            (Tls(certificate=own.key, key=own.certificate), "localhost", ""),
            (Tls(certificate=own.certificate, key=str(other.key)), "localhost", "MISMATCH"),
            (own, ".x", ""),
        ):
            with pytest.raises(ConfigError, match=f"clients would refuse .* for {name}.*{says}"):
                check_certificate(tls, name, ca)
    with pytest.raises(ConfigError, match="clients would refuse"):
        check_certificate(own, "127.0.0.1", other.ca)
    check_certificate(Tls(certificate=str(other.certificate), key=str(other.key)), "127.0.0.1", other.ca)


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


def rendered(site: Path, *options: str) -> str:
    done = render(site, "--no-pytorch", *LINK, *options)
    assert done.exception is None, done.output
    return done.output


def files(site: Path) -> set[str]:
    return {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}


def test_a_render_with_other_options_leaves_nothing_of_the_earlier_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    more = ("--registry", "docker.io=https://registry.example", "--sync", "main=rsync://other.example/main")
    rendered(first, *more)
    for name in ("cache/files/a", "logs/access.json", "public/static/main", "systemd/mine.conf"):
        (first / name).write_text("mine")
    assert "systemd/envcheck-mirror-registry-docker.io.service" in files(first)
    assert "4 of an earlier render removed" not in rendered(first, *more)
    assert "removed" in rendered(first, "--no-hf")
    rendered(second, "--no-hf")
    mine = {"cache/files/a", "logs/access.json", "public/static/main", "systemd/mine.conf"}
    assert files(first) == files(second) | mine
    assert not (first / "registry").exists()
    assert not (first / "olah").exists()


def test_what_a_person_edited_is_kept_and_said(tmp_path: Path) -> None:
    site = tmp_path / "site"
    rendered(site)
    conf, olah = site / "nginx/nginx.conf", site / "olah/olah.toml"
    made = conf.read_text()
    for path in (conf, olah):
        path.write_text(path.read_text() + "# mine\n")
    text = rendered(site, "--no-hf")
    assert (site / "nginx/nginx.conf.edited").read_text() == made + "# mine\n"
    assert (site / "olah/olah.toml.edited").read_text().endswith("# mine\n")
    assert "# mine" not in conf.read_text()
    assert not olah.exists()
    assert f"{conf} was edited: renamed to {conf}.edited" in text
    assert f"{olah} was edited" in text
    assert "was edited" not in rendered(site, "--no-hf")
    conf.write_text("# again\n")
    rendered(site, "--no-hf")
    assert (site / "nginx/nginx.conf.edited1").read_text() == "# again\n"
    assert (site / "nginx/nginx.conf.edited").read_text() == made + "# mine\n"


@pytest.mark.parametrize("message", ["", "[]", '{"../outside": "0", "inside": "0"}'])
def test_a_manifest_that_says_something_else_removes_nothing_outside(tmp_path: Path, message: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    write(tmp_path / "site", {"site.json": "{}", "inside": "1"})
    (tmp_path / "site/rendered.json").write_text(message)
    write(tmp_path / "site", {"site.json": "{}"})
    assert outside.read_text() == "mine"


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="not a mirror site"):
        write(tmp_path, {"site.json": "{}"})


def test_clients_have_a_profile_of_the_site(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    site, more = tmp_path / "site", ("--registry", "docker.io=https://registry.example", "--port", "9000")
    rendered(site, *more, "--ca", str(tmp_path / "ca.pem"), "--store", str(tmp_path / "store"))
    assert "http://127.0.0.1:9000/static/store/simple" in (site / "client.yaml").read_text()
    for form, shown in {
        "pip": "http://127.0.0.1:9000/pypi/simple",
        "uv": "http://127.0.0.1:9000/pypi/simple",
        "hf": "http://127.0.0.1:9001",
        "daemon": '"http://127.0.0.1:9002"',
        "buildkitd": 'mirrors = ["127.0.0.1:9002"]',
        "registries": 'location = "127.0.0.1:9002"',
    }.items():
        done = CliRunner().invoke(cli, ["mirror", "show", str(site / "client.yaml"), "--format", form])
        assert (done.exception, shown in done.output) == (None, True), done.output
