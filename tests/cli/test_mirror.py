"""`envcheck mirror`: the profile one has, in every form; what it wrote is what it says it wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.cli.commands import mirror as profiles
from envcheck.mirrors.profiles.load import presets

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


def refused(*args: str) -> str:
    completed = subprocess.run(
        [sys.executable, "-m", "envcheck", "mirror", *args], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 2
    assert completed.stderr.count("\n") == 1
    return completed.stderr


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


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "tunna"),
        ("show", "tuna", "--format", "npm"),
        ("show", "tuna", "--variant", "12.8; rm"),
        ("show",),
        ("use", "user"),
        ("use", "nowhere.yaml"),
        ("env", "nowhere.yaml"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...]) -> None:
    assert "; " in refused(*arguments)


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
