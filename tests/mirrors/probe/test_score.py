"""Gates and points on both sides of what decides them."""

from __future__ import annotations

from typing import Any

import pytest

from envcheck.mirrors.probe.criteria import PeerFacts, criteria_of
from envcheck.mirrors.probe.measurements import FileResponse, FileStatus, IndexPage, Latency, MirrorMeasurement, Rate
from envcheck.mirrors.probe.ranking import (
    FAR,
    FAST,
    HUB_SIZE_LIMIT,
    NEAR,
    REDIRECT_NOTE,
    SLOW,
    WEIGHTS,
    ScorePart,
    rank,
)

REACHED = {"status": 206, "hosts": ["m"], "ranged": True, "total": 10}


def sight(*, listed: Any = "hash", size: int | None = 10, **reached: Any) -> FileStatus:
    there = FileResponse(**{**REACHED, **reached})
    return FileStatus(need="demo==1", listed=listed, sha256="a" * 64, size=size, reached=there)


def latency(seconds: float = 0.01, version: str | None = "TLSv1.3", alpn: str | None = "h2") -> Latency:
    return Latency(dns=0.0, tcp=seconds, tls=0.0 if version else None, version=version, alpn=alpn, times=3)


def seen(**changes: Any) -> MirrorMeasurement:
    usual: dict[str, Any] = {
        "mirror": "m",
        "part": "pypi",
        "at": 0.0,
        "own": ["m"],
        "needs": 1,
        "files": [sight()],
        "pages": [IndexPage(host="m", bytes=1, json=True)],
        "latency": latency(),
        "rate": Rate(bytes=1000, seconds=1.0, offset=5, host="m"),
    }
    return MirrorMeasurement(**{**usual, **changes})


def failed(one: MirrorMeasurement, others: PeerFacts | None = None, *, no_redirects: bool = False) -> set[str]:
    criterions = criteria_of(one, others or PeerFacts(), no_redirects=no_redirects)
    return {gate.name for gate in criterions if gate.hard and not gate.passed}


def mark(one: MirrorMeasurement, name: str, **options: Any) -> ScorePart:
    return next(mark for mark in rank([one], **options)[0].score_parts if mark.name == name)


@pytest.mark.parametrize(
    ("changes", "gate"),
    [
        ({"untrusted": "m: TLS: expired"}, "tls"),
        ({"files": [sight(status=404, ranged=False)]}, "coverage"),
        ({"files": [sight(status=403, ranged=False)]}, "coverage"),
        ({"files": [FileStatus(need="demo==1", listed="absent", why="not there")]}, "coverage"),
        ({"files": []}, "coverage"),
        ({"needs": 0, "files": []}, "coverage"),
        ({"missing": "no index", "files": []}, "coverage"),
        ({"files": [FileStatus(need="demo==1", listed="other", why="another")]}, "hash"),
        ({"files": [sight(total=11)]}, "hash"),
        ({"files": [sight(listed="name", size=None)]}, "hash"),
        ({"files": [sight(linked="b" * 64)]}, "hash"),
        ({"files": [sight(status=200, ranged=False)]}, "ranges"),
        ({"range_fault": "it sends whole files only"}, "ranges"),
        ({"commit": "c" * 40}, "commit"),
    ],
)
def test_each_fault_fails_its_gate_and_that_alone(changes: dict[str, Any], gate: str) -> None:
    assert failed(seen(**changes)) == {gate}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"files": [sight(total=None)]},
        {"files": [sight(linked="a" * 64)]},
        {"files": [sight(linked="b" * 40)]},
        {"files": [sight(size=0, status=416, ranged=False, total=0)]},
        {"latency": latency(version=None)},
        {"latency": None, "latency_why": "reached through a proxy"},
        {"commit": "c" * 40, "files": [sight(commit="c" * 40)]},
    ],
)
def test_what_is_right_fails_none(changes: dict[str, Any]) -> None:
    assert failed(seen(**changes)) == set()


def test_another_host_is_a_gate_for_a_closed_profile_or_when_asked_for() -> None:
    out = [sight(hosts=["m", "elsewhere"])]
    assert failed(seen(files=out)) == set()
    assert failed(seen(files=out), no_redirects=True) == {"stays"}
    assert failed(seen(files=out, closed=True)) == {"stays"}
    assert failed(seen(), no_redirects=True) == set()


def test_who_is_left_comes_after_who_is_not_however_fast_and_the_origin_is_no_mirror() -> None:
    def slow(name: str, hosts: list[str], *, origin: bool = False) -> MirrorMeasurement:
        rate = Rate(bytes=10**5, seconds=1.0, offset=0, host="m")
        return seen(mirror=name, files=[sight(hosts=hosts)], rate=rate, origin=origin)

    fast = seen(
        mirror="fast", files=[sight(hosts=["m", "cdn"])], rate=Rate(bytes=10**8, seconds=1.0, offset=0, host="c")
    )
    missing = seen(mirror="gone", files=[sight(status=404, ranged=False)])
    ranked = rank([fast, missing, slow("stays", ["m"]), slow("default", ["m", "files"], origin=True)])
    assert [one.mirror for one in ranked] == ["stays", "default", "fast", "gone"]
    assert [one.mirror for one in ranked if REDIRECT_NOTE in one.notes] == ["fast"]


def test_a_size_that_all_agree_on_holds_for_who_gives_no_hash() -> None:
    sure, unsure = seen(files=[sight(size=None)]), seen(mirror="flat", files=[sight(listed="name", size=None)])
    wrong = seen(mirror="wrong", files=[sight(listed="name", size=None, total=9)])
    ranked = {one.mirror: one.failed_criteria for one in rank([sure, unsure, wrong])}
    assert ranked == {"m": set(), "flat": set(), "wrong": {"hash"}}


def test_a_hard_gate_that_could_not_be_told_is_not_passed() -> None:
    unsure = rank([seen(files=[sight(listed="name", size=None)])])[0]
    assert next(gate.passed for gate in unsure.criteria if gate.name == "hash") is None
    assert not unsure.passed


def test_a_size_that_two_sure_ones_disagree_on_is_none() -> None:
    pair = [seen(files=[sight(size=None)]), seen(files=[sight(size=None, total=11)])]
    flat = seen(mirror="flat", files=[sight(listed="name", size=None)])
    assert {one.mirror: one.failed_criteria for one in rank([*pair, flat])}["flat"] == {"hash"}


@pytest.mark.parametrize(
    ("speed", "points"),
    [(SLOW / 2, 0.0), (SLOW, 0.0), (FAST, 60.0), (FAST * 2, 60.0), ((SLOW * FAST) ** 0.5, 30.0)],
)
def test_points_of_a_rate(speed: float, points: float) -> None:
    rate = Rate(bytes=int(speed), seconds=1.0, offset=0, host="m")
    assert mark(seen(rate=rate), "throughput").points == pytest.approx(points, abs=0.1)


@pytest.mark.parametrize(("seconds", "points"), [(NEAR / 2, 20.0), (NEAR, 20.0), (FAR, 0.0), (FAR * 2, 0.0)])
def test_points_of_a_latency(seconds: float, points: float) -> None:
    assert mark(seen(latency=latency(seconds)), "latency").points == points


def test_what_was_not_measured_has_no_points_and_says_why() -> None:
    unmeasured = mark(seen(rate=None, rate_why="not measured: the time ran out"), "throughput")
    assert (unmeasured.points, unmeasured.value, unmeasured.why) == (0.0, None, "not measured: the time ran out")
    stalled = mark(seen(rate=Rate(bytes=0, seconds=2.0, offset=0, host="m", why="it stalled")), "throughput")
    assert (stalled.points, stalled.why) == (0.0, "no bytes arrived: it stalled")


def test_the_region_is_a_prior_that_the_rate_outweighs() -> None:
    near = seen(mirror="near", region="cn", rate=Rate(bytes=10**6, seconds=1.0, offset=0, host="m"))
    fast = seen(mirror="fast", region="us", rate=Rate(bytes=10**7, seconds=1.0, offset=0, host="m"))
    assert [one.mirror for one in rank([near, fast], own_region="cn")] == ["fast", "near"]
    same = [seen(mirror="there", region="us"), seen(mirror="here", region="cn")]
    assert [one.mirror for one in rank(same, own_region="cn")] == ["here", "there"]
    assert mark(seen(region="cn"), "region").points == 0.0


@pytest.mark.parametrize(
    ("version", "alpn", "points"), [("TLSv1.3", "h2", 10), ("TLSv1.3", None, 8), ("TLSv1.2", None, 6), (None, None, 2)]
)
def test_points_of_a_protocol(version: str | None, alpn: str | None, points: float) -> None:
    assert mark(seen(latency=latency(version=version, alpn=alpn)), "protocol").points == points


def test_pages_that_are_older_have_less_for_freshness() -> None:
    day = 86400.0
    new, old = (
        seen(mirror=str(at), pages=[IndexPage(host="m", bytes=1, json=True, modified=at)]) for at in (7 * day, 0.0)
    )
    points = {one.mirror: one.score_parts[-1].points for one in rank([new, old])}
    assert points == {str(7 * day): 5.0, "0.0": 0.0}


def test_a_file_the_hub_refuses_is_told() -> None:
    assert rank([seen(files=[sight(size=None, total=HUB_SIZE_LIMIT)])])[0].notes == []
    assert "over 50 GB" in rank([seen(files=[sight(size=None, total=HUB_SIZE_LIMIT + 1)])])[0].notes[0]


def test_the_weights_are_of_100() -> None:
    assert sum(WEIGHTS.values()) == 100
