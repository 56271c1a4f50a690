"""A site rendered over an earlier one: what is stale goes, what a person changed or put there stays."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.errors import ConfigError
from envcheck.mirrors.site import write

SMALL = ("--no-pytorch", "--link", "https://x.example")


def command(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["mirror", *arguments])


def rendered(site: Path, *options: str) -> str:
    done = command("site", "render", str(site), *SMALL, *options)
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
    data = {
        form: command("show", str(site / "client.yaml"), "--format", form)
        for form in ("pip", "uv", "hf", "daemon", "buildkitd", "registries")
    }
    assert {form: done.exception for form, done in data.items()} == dict.fromkeys(data), data
    assert "http://127.0.0.1:9000/pypi/simple" in data["pip"].output
    assert "http://127.0.0.1:9000/static/store/simple" in (site / "client.yaml").read_text()
    assert "http://127.0.0.1:9001" in data["hf"].output
    assert '"http://127.0.0.1:9002"' in data["daemon"].output
    assert 'mirrors = ["127.0.0.1:9002"]' in data["buildkitd"].output
    assert 'location = "127.0.0.1:9002"' in data["registries"].output
