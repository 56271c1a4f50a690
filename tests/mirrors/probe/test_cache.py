"""What is stored is used while it is young, and never trusted to be readable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.mirrors.probe import cache as probe_cache
from envcheck.mirrors.probe.budget import Budget
from envcheck.mirrors.probe.file_matches import WantedPackage
from envcheck.mirrors.probe.measurements import MirrorMeasurement
from envcheck.mirrors.probe.probe import Mirror

Serve = Callable[..., Any]
Make = Callable[..., Mirror]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the cache in the test's directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/envcheck/probe"


def measured(mirrors: list[Mirror], wanted_packages: list[WantedPackage], **options: Any) -> list[MirrorMeasurement]:
    return probe_cache.cached_or_measured(mirrors, wanted_packages, Budget(32 << 20, 10.0), **options)


def test_what_is_young_is_not_measured_again(serve: Serve, mirror: Make, wanted_packages: list[WantedPackage]) -> None:
    site = serve()
    one = mirror("one", site.url)
    (first,) = measured([one], wanted_packages)
    before = len(site.requests)
    (second,) = measured([one], wanted_packages)
    assert len(site.requests) == before
    assert (first.stored, second.stored) == (False, True)
    assert msgspec.structs.replace(second, stored=False) == first


def test_what_is_old_is_measured_again(serve: Serve, mirror: Make, wanted_packages: list[WantedPackage]) -> None:
    site = serve()
    one = mirror("one", site.url)
    (first,) = measured([one], wanted_packages)
    probe_cache.write(probe_cache.cache_key(one, wanted_packages), msgspec.structs.replace(first, at=first.at - 3601))
    before = len(site.requests)
    assert not measured([one], wanted_packages)[0].stored
    assert len(site.requests) > before


def test_offline_takes_what_is_old_and_asks_nobody(
    serve: Serve, mirror: Make, wanted_packages: list[WantedPackage]
) -> None:
    site = serve()
    one, other = mirror("one", site.url), mirror("other", "https://127.0.0.99:9/simple")
    (first,) = measured([one], wanted_packages)
    probe_cache.write(probe_cache.cache_key(one, wanted_packages), msgspec.structs.replace(first, at=0.0))
    before = len(site.requests)
    assert [actual.mirror for actual in measured([one, other], wanted_packages, offline=True)] == ["one"]
    assert len(site.requests) == before


@pytest.mark.parametrize("garbage", [b"", b"{", b"\xff\xfe", b"[]", b'{"schema":"envcheck/probe/9"}'])
def test_garbage_is_measured_again(
    serve: Serve, mirror: Make, wanted_packages: list[WantedPackage], cache: Path, garbage: bytes
) -> None:
    one = mirror("one", serve().url)
    cache.mkdir(parents=True)
    (cache / f"{probe_cache.cache_key(one, wanted_packages)}.json").write_bytes(garbage)
    assert measured([one], wanted_packages)[0].answered
    assert measured([one], wanted_packages)[0].stored


def test_silence_is_never_stored_and_holds_nobody_else_up(
    serve: Serve, mirror: Make, wanted_packages: list[WantedPackage], cache: Path
) -> None:
    site = serve()
    mirrors = [mirror("dead", "https://127.0.0.99:9/simple"), mirror("one", site.url)]
    assert [one.answered for one in measured(mirrors, wanted_packages)] == [False, True]
    assert [path.stem for path in cache.iterdir()] == [probe_cache.cache_key(mirrors[1], wanted_packages)]
    before = len(site.requests)
    assert [(one.mirror, one.stored) for one in measured(mirrors, wanted_packages)] == [("dead", False), ("one", True)]
    assert len(site.requests) == before


def test_an_outage_is_over_when_it_is_over(serve: Serve, mirror: Make, wanted_packages: list[WantedPackage]) -> None:
    one, other = mirror("one", serve().url), mirror("other", serve().url)
    measured([one], wanted_packages)
    away = mirror("other", "https://127.0.0.99:9/simple")
    (silent,) = measured([away], wanted_packages)
    probe_cache.write(probe_cache.cache_key(other, wanted_packages), silent)  # as an earlier version did
    assert [(actual.mirror, actual.answered, actual.stored) for actual in measured([one, other], wanted_packages)] == [
        ("one", True, False),
        ("other", True, False),
    ]


def test_another_profile_or_another_lock_is_another_measurement(
    mirror: Make, wanted_packages: list[WantedPackage]
) -> None:
    one = mirror("one", "https://127.0.0.99:9/simple")
    keys = {probe_cache.cache_key(one, wanted_packages), probe_cache.cache_key(one, wanted_packages[:1])}
    assert len(keys | {probe_cache.cache_key(mirror("one", "https://127.0.0.98:9/simple"), wanted_packages)}) == 3


def test_no_query_of_a_signed_link_is_stored(
    serve: Serve, mirror: Make, wanted_packages: list[WantedPackage], cache: Path
) -> None:
    measured([mirror("one", serve(query="?token=canary").url)], wanted_packages)
    stored = b"".join(path.read_bytes() for path in cache.iterdir())
    assert b"/files/demo" in stored
    assert b"canary" not in stored


def test_a_cache_that_cannot_be_written_is_none(
    serve: Serve, mirror: Make, wanted_packages: list[WantedPackage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert measured([mirror("one", serve().url)], wanted_packages)[0].answered
