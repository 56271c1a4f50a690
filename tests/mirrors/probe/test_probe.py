"""Mirrors that are dead, wrong, slow or untrusted, on real sockets: ranked right, and why."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from envcheck.mirrors.index import LockedPackage, network_sources, python_index
from envcheck.mirrors.probe.measure import Budget, Mirror, is_origin, own_hosts, probe_packages
from envcheck.mirrors.probe.ranking import RankedMirror, rank
from envcheck.mirrors.profiles.model import HuggingFace, Index, Profile

Serve = Callable[..., Any]
Make = Callable[..., Mirror]
DEMO = "demo-1.0-py3-none-any.whl"


def why(ranked: RankedMirror, gate: str) -> str:
    return next(one.why for one in ranked.criteria if one.name == gate)


def judged(
    mirrors: list[Mirror], wanted_packages: list[LockedPackage], size: int = 32 << 20, **options: Any
) -> dict[str, RankedMirror]:
    return {one.mirror: one for one in rank(probe_packages(mirrors, wanted_packages, Budget(size, 20.0)), **options)}


def test_the_faster_of_two_that_are_right_comes_first(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage]
) -> None:
    slow, fast = serve(pause=0.02), serve()
    ranked = judged([mirror("slow", slow.url), mirror("fast", fast.url)], wanted_packages)
    assert list(ranked) == ["fast", "slow"]
    assert all(one.passed and one.failed_criteria == set() for one in ranked.values())
    rates = {name: one.measured.rate for name, one in ranked.items()}
    assert all(rate is not None and rate.bytes == 150_000 and rate.why is None for rate in rates.values())
    assert (ranked["fast"].measured.latency or 0) > 0
    assert why(ranked["fast"], "stays") == "no request left the mirror's own hosts"


@pytest.mark.parametrize(
    ("faults", "gate", "message"),
    [
        ({"gone": DEMO}, "coverage", "has 1 of 2 files; demo==1.0: {host} answers 404"),
        ({"wrong_hash": DEMO}, "coverage", "has 1 of 2 files; demo==1.0: no file on its page has a hash of the lock"),
        ({"ranges": False}, "ranges", "{host} answers 200 to a range: no resume or split"),
        ({"middle": False}, "ranges", "range in the middle of a file: it sends whole files only"),
        ({"tls": "rogue"}, "tls", "{host}: TLS: self-signed certificate"),
    ],
)
def test_a_fault_is_a_gate_that_no_speed_outweighs(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage], faults: dict[str, Any], gate: str, message: str
) -> None:
    bad, slow = serve(**faults), serve(pause=0.01)
    ranked = judged([mirror("bad", bad.url), mirror("slow", slow.url)], wanted_packages)
    assert list(ranked) == ["slow", "bad"]
    assert not ranked["bad"].passed
    assert why(ranked["bad"], gate) == message.format(host=bad.netloc)
    assert gate in ranked["bad"].failed_criteria
    assert ranked["bad"].measured.rate is None


def test_a_dead_host_is_last_and_did_not_answer(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage]
) -> None:
    missing = serve(gone=DEMO)
    ranked = judged([mirror("dead", "https://127.0.0.99:9/simple"), mirror("gone", missing.url)], wanted_packages)
    assert list(ranked) == ["gone", "dead"]
    assert not ranked["dead"].measured.answered
    assert why(ranked["dead"], "coverage") == "has 0 of 2 files; demo==1.0: no connection (and 1 more)"


def test_where_files_really_come_from_is_told_and_can_be_a_gate(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage]
) -> None:
    origin = serve()
    front = serve(files_at=f"https://{origin.netloc}")
    measured = probe_packages([mirror("front", front.url)], wanted_packages, Budget(32 << 20, 20.0))
    result, gated = rank(measured)[0], rank(measured, no_redirects=True)[0]
    assert (result.passed, gated.passed) == (True, False)
    assert why(result, "stays") == f"2 of 2 files from {origin.netloc}"
    assert gated.failed_criteria == {"stays"}


def test_the_clients_own_default_is_the_origin_and_no_mirror_that_is_left() -> None:
    default = Index(url="default")
    assert is_origin(Profile(name="none"), "pypi")
    assert is_origin(Profile(name="host"), "hf")
    assert is_origin(Profile(name="site", pypi=[default, Index(url="/srv/wheels", kind="find-links")]), "pypi")
    mirrored = Profile(name="host", pypi=[Index(url="https://mirror.example/simple"), default])
    assert not is_origin(mirrored, "pypi")
    assert is_origin(mirrored, "pytorch/cpu")
    assert not is_origin(Profile(name="host", hf=HuggingFace(endpoint="https://hf.example")), "hf")
    assert not is_origin(Profile(name="site"), "pypi")
    none = Profile(name="none")
    assert own_hosts(none, [index.url for index in network_sources(none, "pypi")]) == [urlsplit(python_index()).netloc]


def test_a_page_without_hashes_is_matched_by_name_and_the_size_that_another_tells(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage]
) -> None:
    good, flat = serve(), serve(no_hash=True)
    alone = judged([mirror("flat", flat.url)], wanted_packages)["flat"]
    assert "demo==1.0: its page gives no hash, and no page gives the size" in why(alone, "hash")
    both = judged([mirror("good", good.url), mirror("flat", flat.url)], wanted_packages)
    assert why(both["flat"], "hash") == "2 by name and size; 2 of 2 sizes compared"
    assert both["flat"].passed


def test_a_file_of_another_size_is_not_the_one(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage]
) -> None:
    good, flat = serve(), serve(no_hash=True, other_size=DEMO)
    both = judged([mirror("good", good.url), mirror("flat", flat.url)], wanted_packages)
    assert why(both["flat"], "hash").endswith("has 300001 bytes, expected 300000")
    assert both["flat"].failed_criteria == {"hash"}


def test_a_second_index_of_one_profile_is_fallen_back_to(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage]
) -> None:
    first, second = serve(gone=DEMO), serve()
    ranked = judged([mirror("both", first.url, second.url)], wanted_packages)["both"]
    assert ranked.passed
    assert {host for file in ranked.measured.files if file.reached for host in file.reached.hosts} == {
        first.netloc,
        second.netloc,
    }


def test_no_more_is_moved_than_the_bytes_it_may_cost(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage]
) -> None:
    site = serve()
    ranked = judged([mirror("one", site.url)], wanted_packages, size=2_000)["one"]
    assert ranked.passed
    assert ranked.measured.rate is None
    assert ranked.measured.rate_why == "not measured: the probe's budget of bytes or seconds is used up"


def test_a_server_that_drips_for_ever_ends_with_the_time(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage]
) -> None:
    drips, good = serve(drip=True), serve()
    began = time.monotonic()
    measured = probe_packages(
        [mirror("drips", drips.url), mirror("good", good.url)], wanted_packages, Budget(32 << 20, 4.0)
    )
    assert time.monotonic() - began < 10
    ranked = {one.mirror: one for one in rank(measured)}
    assert not ranked["drips"].passed
    assert ranked["good"].passed  # asked at the same time, it waits for nobody
    assert "the probe's time ran out" in why(ranked["drips"], "coverage")


def test_a_profile_without_an_index_is_no_mirror(mirror: Make, wanted_packages: list[LockedPackage]) -> None:
    ranked = judged([mirror("empty")], wanted_packages)["empty"]
    assert why(ranked, "coverage").startswith("the profile names no Python index")


def test_verify_downloads_every_file_and_finds_the_wrong_one(
    serve: Serve, mirror: Make, wanted_packages: list[LockedPackage]
) -> None:
    good, bad = serve(), serve(flipped=DEMO)
    mirrors = [mirror("good", good.url), mirror("bad", bad.url)]
    assert all(one.passed for one in judged(mirrors, wanted_packages).values())
    verified = {
        one.mirror: one for one in rank(probe_packages(mirrors, wanted_packages, Budget(1 << 30, 20.0), verify=True))
    }
    assert why(verified["good"], "hash") == "2 by hashing the file; 2 of 2 sizes compared"
    assert verified["bad"].failed_criteria == {"hash"}
    assert why(verified["bad"], "hash").startswith("demo==1.0: served with sha256 ")
    small = rank(probe_packages(mirrors[:1], wanted_packages, Budget(5_000, 20.0), verify=True))[0]
    assert "more than are left of the probe's budget; raise --max-bytes" in why(small, "hash")
