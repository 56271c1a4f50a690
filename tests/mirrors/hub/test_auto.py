"""`--mirror auto` for a model: endpoints probed for its very files, ranked, and used in that order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.errors import ConfigError
from envcheck.mirrors import probe

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLD = "89abcdef0123456789abcdef0123456789abcdef"
REPO = "owner/tiny"
Hubs = Callable[[], Any]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Give a function that makes profiles of these texts all that there are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def set_to(**texts: str) -> None:
        for name, text in texts.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        actual = [probe.load_mirror(str(tmp_path / f"{name}.yaml")) for name in texts]
        monkeypatch.setattr(probe, "default_mirrors", lambda: actual)

    return set_to


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--mirror", "auto"], catch_exceptions=False, standalone_mode=False)


def test_the_fastest_that_has_all_comes_first_and_the_others_stand_by(
    hubs: Hubs, known: Callable[..., None], tmp_path: Path
) -> None:
    origin, slow, fast, lacking = hubs(), hubs(), hubs(), hubs()
    slow.pause = 0.04
    del lacking.content["vocab.txt"]
    sites = {"slow": slow, "fast": fast, "lacking": lacking}
    texts = {name: f"hf: {{endpoint: '{site.url}', trusted: '{origin.url}'}}\n" for name, site in sites.items()}
    known(**texts, none="pypi: [{url: 'https://mirror.example/simple'}]\n")
    done = run("fetch", "--model", REPO, "--output", str(tmp_path / "to"), "--json")
    assert (done.exception, done.return_value) == (None, None), done.output
    assert {host for file in json.loads(done.stdout)["files"] for host in file["sources"]} == {fast.netloc}
    text = " ".join(done.stderr.split())
    assert 0 <= text.find("hf: fast (") < text.find("hf: slow (")
    assert f"hf: not lacking: has 3 of 4 files; vocab.txt: {lacking.netloc} answers 404" in text
    assert not any(path.startswith(f"/{REPO}") for path in origin.paths)


def test_where_nobody_has_it_each_says_why(hubs: Hubs, known: Callable[..., None], tmp_path: Path) -> None:
    origin, old = hubs(), hubs()
    old.repo.commits = (OLD,)
    known(old=f"hf: {{endpoint: '{old.url}', trusted: '{origin.url}'}}\n")
    result = CliRunner().invoke(
        cli, ["fetch", "--model", f"{REPO}@{COMMIT}", "--mirror", "auto", "--output", str(tmp_path)]
    )
    assert "no mirror has all files of hf: old: has 0 of 4 files" in str(result.exception)
    assert not (tmp_path / "models--owner--tiny").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("https://mirror.example/x", "--sha256", "a" * 64), "--mirror auto does not apply to a URL"),
        (("--model", REPO, "--trust-mirror"), "--trust-mirror needs a named mirror"),
    ],
)
def test_auto_is_refused_where_there_is_nothing_to_choose(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run("fetch", *words)
