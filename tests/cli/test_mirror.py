"""`envcheck mirror`: the profile one has, in every form; what it wrote is what it says it wrote."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.cli.commands import mirror as profiles
from envcheck.errors import ConfigError
from envcheck.mirrors import probe
from envcheck.mirrors.profiles.load import presets
from tests.http_server import Server, Servers, directory

SITE = """\
pypi: [{url: "https://pypi.example/simple"}]
npm: https://npm.example
ca: ca.pem
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "state"))
    for name in ("SSL_CERT_FILE", "ENVCHECK_MIRROR_SET", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nsite\n-----END CERTIFICATE-----\n")
    (tmp_path / "site.yaml").write_text(SITE)
    return tmp_path


def run(*args: str) -> Any:
    return CliRunner().invoke(cli, ["mirror", *args], catch_exceptions=False)


def test_the_list_fits_a_terminal_and_is_json_for_programs(home: Path) -> None:
    text = run("list").output
    assert max(map(len, text.splitlines())) <= 80
    assert "tuna" in text
    assert text.startswith("chosen with `envcheck mirror use`: none\n")
    seen = any(entry.last_verified for preset in presets().values() for entry in preset.entries)
    assert ("never" in text, "name        seen" in text) == (seen, seen)
    answer = json.loads(run("list", "--json").output)
    assert answer["schema"] == "envcheck/mirrors/1"
    assert answer["chosen"] is None
    assert {"name", "title", "entries", "lacks"} <= set(answer["mirrors"][0])
    assert not (home / "config").exists()


def test_show_says_what_is_set_what_is_lacking_and_what_cannot_be_done(home: Path) -> None:
    text = run("show", "tuna").output
    assert text.startswith("chosen with `envcheck mirror use`: none\ntuna")
    assert text.index("--format sets it for") < text.index("\nLacks\n") < text.index("\nCannot\n")
    assert "no PyTorch wheels" in text
    assert "pypi, never seen to work: " in text
    assert "--torch-backend and UV_TORCH_BACKEND ignore every mirror" in text
    assert max(len(line) for line in text.splitlines() if "://" not in line) <= 80
    (home / "all.yaml").write_text(
        f"{SITE}hf: {{endpoint: https://hf.example, token: allow}}\n"
        "registries: {docker.io: [https://h.example, r.example]}\n"
        "credentials: {npm.example: {token_env: NPM_TOKEN}}\n"
    )
    text = run("show", str(home / "all.yaml")).output
    for row in (
        *("pypi        https://pypi.example/simple (simple)", "npm         https://npm.example"),
        *("hf          endpoint: https://hf.example", "            docker.io: r.example\n"),
        *(
            "credentials npm.example: token_env: NPM_TOKEN",
            "--format sets it for pip, uv, hf, npm, buildkitd, daemon, registries, env\n",
        ),
    ):
        assert row in text


def test_a_form_is_all_there_is_on_standard_output(home: Path) -> None:
    result = run("show", str(home / "site.yaml"), "--format", "uv")
    assert msgspec.toml.decode(result.stdout)["index"][0]["url"] == "https://pypi.example/simple"
    assert "note: --torch-backend" in result.stderr


def test_several_files_are_told_apart(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home
    monkeypatch.setattr(profiles, "distribution", lambda: ("ubuntu", "noble"))
    text = run("show", "tuna", "--format", "apt").stdout
    assert text.startswith("# ==> /etc/apt/sources.list.d/envcheck.sources <==\nTypes: deb\n")
    assert "# ==> /etc/apt/envcheck/ubuntu.mirrors <==\nhttps://" in text


def test_use_says_what_it_wrote_and_takes_it_back(home: Path) -> None:
    result = run("use", str(home / "site.yaml"))
    assert f"wrote {home}/config/envcheck/mirror: {home}/site.yaml" in result.output
    assert (home / "config/envcheck/mirror").read_text() == f"{home}/site.yaml\n"
    assert "`envcheck mirror show user` shows what it lacks and what its settings cannot do" in result.output
    shown = run("show", "user").output
    assert "https://npm.example" in shown
    assert "uv reads none of pip's settings" in shown
    assert f"chosen with `envcheck mirror use`: {home}/site.yaml" in run("list").output
    assert run("use", "none").output == f"removed {home}/config/envcheck/mirror\n"
    assert run("use", "none").output == "nothing was chosen\n"


def test_env_makes_one_bundle_of_all_roots_which_no_other_profile_inherits(home: Path) -> None:
    def exported(profile: str, environ: dict[str, str]) -> dict[str, str]:
        script = 'eval "$("$1" -m envcheck --quiet mirror show "$2" --format env)"; env'
        completed = subprocess.run(
            ["sh", "-c", script, "sh", sys.executable, profile], capture_output=True, text=True, check=True, env=environ
        )
        return dict(line.split("=", 1) for line in completed.stdout.splitlines() if "=" in line)

    (home / "other.pem").write_text("-----BEGIN CERTIFICATE-----\nother\n-----END CERTIFICATE-----\n")
    (home / "other.yaml").write_text("npm: https://o.example\nca: other.pem\n")
    before = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    first = exported(str(home / "site.yaml"), before)
    assert first["PIP_INDEX_URL"] == "https://pypi.example/simple"
    bundle = Path(first["SSL_CERT_FILE"])
    assert bundle.parent == home / "state/ca"
    assert (home / "ca.pem").read_text().strip() in bundle.read_text()
    assert bundle.read_text().count("BEGIN CERTIFICATE") > 1
    path = exported(str(home / "site.yaml"), first)
    assert path["SSL_CERT_FILE"] == str(bundle)
    other = exported(str(home / "other.yaml"), path)
    assert "site\n" not in Path(other["SSL_CERT_FILE"]).read_text()
    none = exported("none", other)
    assert "SSL_CERT_FILE" not in none
    assert not [name for name in none if name.startswith("ENVCHECK_MIRROR_")]
    assert len(list(bundle.parent.iterdir())) == 2


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
