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
from envcheck.mirrors.hub import api as hub_api
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.hub.download import lock_revision
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.probe.budget import Budget
from envcheck.mirrors.probe.hub import HubProbeRequest, probe_hub
from envcheck.mirrors.probe.probe import Mirror
from envcheck.mirrors.probe.ranking import RankedMirror, rank
from envcheck.mirrors.profiles.model import Credential, HuggingFace, Profile
from envcheck.mirrors.select import by_lock, by_model

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
        actual = [by_lock.load_mirror(str(tmp_path / f"{name}.yaml")) for name in texts]
        monkeypatch.setattr(by_lock, "default_mirrors", lambda: actual)

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
    assert done.return_value == 0, done.output
    assert {host for file in json.loads(done.stdout)["files"] for host in file["sources"]} == {fast.netloc}
    text = " ".join(done.stderr.split())
    assert 0 <= text.find("hf: fast (") < text.find("hf: slow (")
    assert f"hf: not lacking: has 3 of 4 files; vocab.txt: {lacking.netloc} answers 404" in text
    assert not any(path.startswith(f"/{REPO}") for path in origin.paths)


def test_a_dataset_is_probed_for_as_one(hubs: Hubs, known: Callable[..., None], tmp_path: Path) -> None:
    origin, mirror = hubs(), hubs()
    for server in (origin, mirror):
        server.repos = {f"datasets/{REPO}": server.repo}
    known(mirror=f"hf: {{endpoint: '{mirror.url}', trusted: '{origin.url}'}}\n")
    done = run("fetch", "--dataset", REPO, "--output", str(tmp_path / "to"))
    assert done.return_value == 0, done.output
    assert f"/datasets/{REPO}/resolve/{COMMIT}/vocab.txt" in mirror.paths
    assert (tmp_path / "to/datasets--owner--tiny/snapshots" / COMMIT / "vocab.txt").is_file()


def test_what_the_first_gives_wrong_the_next_one_mends(hubs: Hubs, known: Callable[..., None], tmp_path: Path) -> None:
    first, second = hubs(), hubs()
    second.pause = 0.04
    content = bytearray(first.content["sub/weights.bin"])
    content[1_200_000] ^= 1
    first.content["sub/weights.bin"] = bytes(content)
    (tmp_path / "lock").write_bytes(hub_revision.format_lock(locked_of(second)))
    known(first=f"hf: {{endpoint: '{first.url}'}}\n", second=f"hf: {{endpoint: '{second.url}'}}\n")
    done = run("fetch", "--lock", str(tmp_path / "lock"), "--output", str(tmp_path / "to"))
    assert done.return_value == 0, done.output
    assert f"1 bad piece came from {first.netloc}; fetched again from other sources" in done.stderr


def locked_of(endpoint: Any) -> hub_revision.Revision:
    return lock_revision(Client(), endpoint.url, hub_revision.Reference("model", REPO, "main"))


def test_where_nobody_has_it_each_says_why(hubs: Hubs, known: Callable[..., None], tmp_path: Path) -> None:
    origin, old = hubs(), hubs()
    old.repo.commits = (OLD,)
    known(old=f"hf: {{endpoint: '{old.url}', trusted: '{origin.url}'}}\n")
    result = CliRunner().invoke(
        cli, ["fetch", "--model", f"{REPO}@{COMMIT}", "--mirror", "auto", "--output", str(tmp_path)]
    )
    assert "no mirror has all files: old: lacks commit 0123456789ab: has 0 of 4 files" in str(result.exception)
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


def ranked(hubs: Hubs, *names: str) -> list[RankedMirror]:
    """Return honest rankings of as many endpoints."""
    wish, actual = HubProbeRequest(locked_of(hubs())), []
    for name in names:
        profile = Profile(name=name, hf=HuggingFace(endpoint=hubs().url))
        actual += rank(probe_hub([Mirror(name, profile, hub_api.hub_client(profile))], wish, Budget(1 << 20, 5.0)))
    return actual


def test_a_token_is_for_the_endpoints_of_the_profile_that_allows_it(hubs: Hubs) -> None:
    """Joined to one profile, a mirror that may see HF_TOKEN does not take another one along."""
    open_to = Profile(name="a", hf=HuggingFace(endpoint="https://a.example", token="allow"))  # noqa: S106
    closed = Profile(name="b", hf=HuggingFace(endpoint="https://b.example"))
    own = Credential(token_env="OTHER")  # noqa: S106
    named = Profile(name="c", hf=HuggingFace(endpoint="https://c.example"), credentials={"c.example": own})
    profiles = {"a": open_to, "b": closed, "c": named}
    joined = by_model.combine(ranked(hubs, "a", "b", "c"), profiles, {"HF_TOKEN": "canary"}).profile
    assert set(joined.hf.endpoints) == {"https://a.example", "https://b.example", "https://c.example"}
    assert joined.hf.token == "never"  # noqa: S105
    assert joined.credentials == {"a.example": Credential(token_env="HF_TOKEN"), "c.example": own}  # noqa: S106
    environ = {"HF_TOKEN": "canary", "OTHER": "other"}
    logins = hub_api.logins(joined, environ=environ)
    data = {url: [one.header(f"{url}/x") for one in logins] for url in joined.hf.endpoints}
    assert [one for one in data["https://b.example"] if one] == []
    assert [one for one in data["https://c.example"] if one] == ["Bearer other"]
