"""Hugging Face endpoints: the pinned commit, the lock's hashes, and where the bytes really come from."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.mirrors.hub.revision import Head, HubFile, Revision, format_lock
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.probe.budget import Budget
from envcheck.mirrors.probe.hub import HubProbeRequest, probe_hub
from envcheck.mirrors.probe.probe import Mirror
from envcheck.mirrors.probe.ranking import REDIRECT_NOTE, RankedMirror, rank
from envcheck.mirrors.profiles.model import HuggingFace, Profile
from tests.http_server import Answer, Request, Server, Servers, ranged

BODY = b"weights" * 30_000
SHA256 = hashlib.sha256(BODY).hexdigest()
COMMIT = "a" * 40
REVISION = Revision(
    repo="org/tiny",
    revision=COMMIT,
    files=[
        HubFile(path="empty.txt", size=0, sha256=hashlib.sha256(b"").hexdigest()),
        HubFile(path="model.safetensors", size=len(BODY), sha256=SHA256),
    ],
)
PINNED = HubProbeRequest(REVISION)
BRANCH = HubProbeRequest(msgspec.structs.replace(REVISION, ref="main"), Head(COMMIT, 1_772_323_200.0))


@dataclasses.dataclass
class Faults:
    """What an endpoint does wrong."""

    commit: str | None = COMMIT
    linked: str = SHA256
    body: bytes = BODY
    at: str = ""
    xet: bool = False
    lacks: bool = False
    main: str = COMMIT
    changed: str | None = "2026-03-01T00:00:00.000Z"


def answer(faults: Faults, request: Request) -> Answer:
    """Return what an endpoint with these faults answers."""
    headers = {"X-Repo-Commit": faults.commit} if faults.commit else {}
    if request.path == "/api/models/org/tiny/revision/main":
        return Answer(200, json.dumps({"sha": faults.main, "lastModified": faults.changed}).encode())
    if faults.lacks and COMMIT in request.path:
        return Answer(404)
    if request.path.endswith("model.safetensors"):
        headers |= {"X-Linked-Etag": f'"{faults.linked}"'} | ({"X-Xet-Hash": "f" * 64} if faults.xet else {})
        if faults.at:
            return Answer(302, headers={**headers, "Location": f"{faults.at}/cdn"})
    return ranged(request, b"" if request.path.endswith("empty.txt") else faults.body, headers)


@pytest.fixture
def serve(servers: Servers) -> Callable[..., Server]:
    """Give a function that starts an endpoint, each on an address of its own."""
    addresses = (f"127.0.0.{number}" for number in itertools.count(2))

    def start(**faults: Any) -> Server:
        return servers.start(Server(functools.partial(answer, Faults(**faults)), next(addresses)))

    return start


def judged(url: str, wish: HubProbeRequest = PINNED, *, no_redirects: bool = False) -> RankedMirror:
    profile = Profile(name="hub", hf=HuggingFace(endpoint=url))
    mirror = Mirror("hub", profile, Client(connect=1.0, read=2.0))
    return rank(probe_hub([mirror], wish, Budget(32 << 20, 10.0)), no_redirects=no_redirects)[0]


def why(ranked: RankedMirror, gate: str) -> str:
    return next(one.why for one in ranked.criteria if one.name == gate)


def test_an_endpoint_that_is_right_passes_every_gate(serve: Callable[..., Server]) -> None:
    ranked = judged(serve().url, no_redirects=True)
    assert ranked.passed, ranked.criteria
    assert why(ranked, "commit") == "aaaaaaaaaaaa for every file"
    assert why(ranked, "hash") == "X-Linked-Etag equals the lock's sha256 for 1 file, the size for 2 of 2"
    assert ranked.measured.rate is not None
    assert ranked.measured.rate.bytes == len(BODY) // 2


@pytest.mark.parametrize(
    ("faults", "gate", "message"),
    [
        ({"commit": "b" * 40}, "commit", "empty.txt: X-Repo-Commit is bbbbbbbbbbbb"),
        ({"commit": None}, "commit", "empty.txt: no X-Repo-Commit, so huggingface_hub refuses the file"),
        ({"linked": "0" * 64}, "hash", "model.safetensors: served with sha256 000000000000..., expected "),
        ({"body": BODY + b"x"}, "hash", f"has {len(BODY) + 1} bytes, expected {len(BODY)}"),
    ],
)
def test_what_is_not_what_was_pinned_fails_its_gate(
    serve: Callable[..., Server], faults: dict[str, object], gate: str, message: str
) -> None:
    ranked = judged(serve(**faults).url)
    assert ranked.failed_criteria == {gate}
    assert message in why(ranked, gate)
    assert ranked.measured.rate is None


def test_the_commit_is_read_off_the_first_host_and_the_bytes_off_the_last(serve: Callable[..., Server]) -> None:
    cdn = serve(commit=None)
    front = serve(at=cdn.url, xet=True)
    result, gated = judged(front.url), judged(front.url, no_redirects=True)
    assert result.passed, result.criteria
    assert gated.failed_criteria == {"stays"}
    assert why(result, "stays") == f"1 of 2 files from {cdn.url.removeprefix('http://')}"
    assert result.notes == [
        "it offers xet, which ignores HF_ENDPOINT: keep HF_HUB_DISABLE_XET=1",
        REDIRECT_NOTE,
    ]


@pytest.mark.parametrize(
    ("faults", "points", "message"),
    [
        ({}, 5.0, "its main is at the commit of the trusted endpoint"),
        (
            {"main": "b" * 40, "changed": "2026-02-26T12:00:00.000Z"},
            3.2,
            "its main is 60.0 h behind the trusted endpoint's",
        ),
        (
            {"main": "b" * 40, "changed": "2026-01-01T00:00:00.000Z"},
            0.0,
            "its main is 1416.0 h behind the trusted endpoint's",
        ),
        (
            {"main": "b" * 40, "changed": None},
            0.0,
            "its main is not at the trusted endpoint's",
        ),
        (
            {"main": "b" * 40, "changed": "2026-03-02T00:00:00.000Z"},
            0.0,
            "its main is not at the trusted endpoint's",
        ),
        ({"main": "no commit"}, 0.0, "the commit of main is unknown: its response has no commit"),
    ],
)
def test_a_branch_that_lags_behind_is_scored_and_said(
    serve: Callable[..., Server], faults: dict[str, object], points: float, message: str
) -> None:
    ranked = judged(serve(**faults).url, BRANCH)
    assert ranked.passed
    mark = next(mark for mark in ranked.score_parts if mark.name == "freshness")
    assert (mark.points, mark.why) == (points, message)
    elsewhere = faults.get("main") == "b" * 40
    result = (
        "its main is at bbbbbbbbbbbb, the trusted endpoint's at aaaaaaaaaaaa: it serves another model under that name"
    )
    assert ranked.notes == ([result] if elsewhere else [])


def test_a_commit_that_a_mirror_lacks_fails_its_gate_however_it_was_asked_by(serve: Callable[..., Server]) -> None:
    for wish in (PINNED, BRANCH):
        ranked = judged(serve(lacks=True, main="b" * 40).url, wish)
        assert not ranked.passed
        assert "lacks commit aaaaaaaaaaaa: has 0 of 2 files; empty.txt: " in why(ranked, "coverage")
        assert ranked.measured.rate is None


def test_what_one_endpoint_of_a_profile_lacks_another_has(serve: Callable[..., Server]) -> None:
    lacking, whole = serve(lacks=True), serve()
    profile = Profile(name="hub", hf=HuggingFace(endpoint=lacking.url, fallbacks=[whole.url]))
    mirror = Mirror("hub", profile, Client(connect=1.0, read=2.0))
    ranked = rank(probe_hub([mirror], PINNED, Budget(32 << 20, 10.0)), no_redirects=True)[0]
    assert ranked.passed, ranked.criteria


def test_a_model_lock_is_probed_for(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model.lock").write_bytes(format_lock(REVISION))
    (tmp_path / "site.yaml").write_text(f"hf: {{endpoint: '{serve().url}'}}\n")
    arguments = [
        "mirror",
        "probe",
        "--mirror",
        str(tmp_path / "site.yaml"),
        "--lock",
        str(tmp_path / "model.lock"),
        "--json",
    ]
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert result.return_value == 0, result.output
    assert json.loads(result.output)["parts"]["hf"][0]["measured"]["commit"] == COMMIT
