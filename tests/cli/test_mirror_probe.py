"""`envcheck mirror probe`: what it prints and how it ends."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.errors import ConfigError
from envcheck.mirrors import probe
from tests.http_server import Server, Servers, directory

WHEEL = "demo-1.0-py3-none-any.whl"


@pytest.fixture
def site(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Serve a simple index of one wheel; the directory holds the lock and the profile too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    body = b"x" * 200_000
    digest = hashlib.sha256(body).hexdigest()
    (tmp_path / "simple/demo").mkdir(parents=True)
    (tmp_path / WHEEL).write_bytes(body)
    (tmp_path / "simple/demo/index.html").write_text(f'<a href="/{WHEEL}#sha256={digest}">{WHEEL}</a>')
    (tmp_path / "demo.lock").write_text(f"# index: pypi\ndemo==1.0 \\\n    --hash=sha256:{digest}\n")
    url = f"{servers.start(Server(directory(tmp_path))).url}/simple"
    (tmp_path / "site.yaml").write_text(f"pypi: [{{url: '{url}'}}]\n")
    (tmp_path / "dead.yaml").write_text("pypi: [{url: 'http://127.0.0.99:9/simple'}]\n")
    return tmp_path


def probed(site: Path, *arguments: str) -> Result:
    lock = ["--lock", str(site / "demo.lock")]
    return CliRunner().invoke(cli, ["mirror", "probe", *lock, *arguments], standalone_mode=False)


def test_a_table_within_80_columns_says_who_and_why(site: Path) -> None:
    done = probed(site, "--mirror", str(site / "dead.yaml"), "--mirror", str(site / "site.yaml"))
    assert (done.exception, done.return_value) == (None, None), done.output
    first, second = (line for line in done.output.splitlines() if line[:5].strip() in {"1", "-"})
    assert first.split()[:2] == ["1", "site"]
    assert second.split() == ["-", "dead", "not", "reached:", "coverage"]
    assert "rate: 0.10 MB from the middle of a file" in done.output
    assert max(map(len, done.output.splitlines())) <= 80


def test_none_that_passes_and_none_that_answers_end_otherwise(site: Path) -> None:
    (site / "simple/demo/index.html").write_text("nothing here")
    assert probed(site, "--mirror", str(site / "site.yaml")).return_value == 1
    assert probed(site, "--mirror", str(site / "dead.yaml")).return_value == 3


def test_json_holds_the_numbers(site: Path) -> None:
    done = probed(site, "--mirror", str(site / "site.yaml"), "--json")
    answer: dict[str, Any] = json.loads(done.output)
    (one,) = answer["parts"]["pypi"]
    assert (answer["schema"], one["mirror"], one["passed"]) == ("envcheck/ranking/2", "site", True)
    assert one["measured"]["rate"]["bytes"] == 100_000
    assert {gate["name"] for gate in one["gates"]} == {"tls", "coverage", "hash", "ranges", "stays"}


def test_a_mirror_without_an_index_is_not_applicable(site: Path) -> None:
    done = probed(site, "--mirror", "hf-mirror")
    assert isinstance(done.exception, ConfigError)
    message = "not applicable: hf-mirror: the profile names no Python index"
    assert str(done.exception).startswith(message)
    both = probed(site, "--mirror", "hf-mirror", "--mirror", str(site / "site.yaml"))
    assert (both.exception, both.return_value) == (None, None)
    assert "hf-mirror              not applicable: coverage" in both.output


def test_a_closed_profile_must_not_be_left(site: Path) -> None:
    profile = site / "site.yaml"
    page = site / "simple/demo/index.html"
    page.write_text(page.read_text().replace('href="/', f'href="{_elsewhere(profile)}/'))
    assert not probed(site, "--mirror", str(profile)).return_value
    profile.write_text(profile.read_text() + "closed: true\n")
    done = probed(site, "--mirror", str(profile))
    assert done.return_value == 1
    assert "not passed: stays" in done.output


def _elsewhere(profile: Path) -> str:
    """Return the site's address by another name."""
    return profile.read_text().partition("'")[2].partition("/simple")[0].replace("127.0.0.1", "localhost")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected one cell or --lock, found none"),
        (["torch*"], "names"),
        (["tuna"], "tuna"),
        (["torch2.13.0-cpu-py311", "torch2.13.0-cpu-py312"], "each mirror as --mirror NAME"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["mirror", "probe", *arguments], standalone_mode=False)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_fetch_takes_the_mirror_that_passed_and_says_so(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = [probe.load_mirror(str(site / name)) for name in ("dead.yaml", "site.yaml")]
    monkeypatch.setattr(probe, "default_mirrors", lambda: named)
    arguments = ["fetch", "--lock", str(site / "demo.lock"), "--mirror", "auto", "--output", str(site / "to")]
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert result.exit_code == 0, result.output
    assert (site / "to" / WHEEL).read_bytes() == (site / WHEEL).read_bytes()
    assert result.stderr.splitlines()[0].startswith("mirror  auto: pypi: site (")
    assert "pypi: not dead: has 0 of 1 file; demo==1.0: no connection" in result.stderr


@pytest.mark.parametrize(
    ("chosen", "arguments", "message"),
    [
        (None, [], "mirror  none chosen: each client uses its own default"),
        ("site.yaml", [], "mirror  {}/site.yaml: `envcheck mirror use` chose it"),
        ("site.yaml", ["--mirror", "user"], "mirror  {}/site.yaml: `envcheck mirror use` chose it"),
        ("dead.yaml", ["--mirror", "site.yaml"], None),
    ],
)
def test_a_mirror_that_is_not_named_is_told(
    site: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None, arguments: list[str], message: str | None
) -> None:
    monkeypatch.chdir(site)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(site / "config"))
    if chosen is not None:
        CliRunner().invoke(cli, ["mirror", "use", chosen])
    there = [message.format(site)] if message else []
    build = ["build", "torch2.13.0-cpu-py311", "--engine", "venv", "--dry-run", *arguments]
    assert CliRunner().invoke(cli, build).stderr.splitlines()[:1] == there
    fetch = ["fetch", "--lock", "demo.lock", "--output", "to", *arguments]
    lines = CliRunner().invoke(cli, fetch).stderr.splitlines()
    assert [line for line in lines if line.startswith("mirror")] == there
    assert CliRunner().invoke(cli, ["--quiet", *build]).stderr == ""
