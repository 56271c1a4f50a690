"""Measurements of mirrors, cached below the user's cache directory. They contain no query of a URL."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from envcheck.data import xdg
from envcheck.mirrors.probe.budget import Budget
from envcheck.mirrors.probe.directories import file_stamps
from envcheck.mirrors.probe.file_matches import WantedPackage
from envcheck.mirrors.probe.measurements import MirrorMeasurement
from envcheck.mirrors.probe.probe import Mirror, probe

HOUR: Final = 3600.0


def directory() -> Path:
    """Return the directory of the cache: $XDG_CACHE_HOME/envcheck/probe, else ~/.cache/envcheck/probe."""
    return xdg("XDG_CACHE_HOME", ".cache") / "envcheck" / "probe"


def cache_key(mirror: Mirror, packages: Sequence[WantedPackage]) -> str:
    """Return the key of a measurement: a hash of the profile, its local files, and the requested packages."""
    needs = sorted((package.part, package.label, *sorted(package.sha256)) for package in packages)
    profile, stamps = msgspec.to_builtins(mirror.profile), file_stamps(mirror.profile, packages)
    content = msgspec.json.encode([profile, mirror.name, needs, *stamps], order="sorted")
    return hashlib.sha256(content).hexdigest()


def read(name: str) -> MirrorMeasurement | None:
    """Return the measurement under a key, or None if it is missing, damaged, or of another version."""
    try:
        return msgspec.json.decode(directory().joinpath(f"{name}.json").read_bytes(), type=MirrorMeasurement)
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def write(name: str, cached_or_measured: MirrorMeasurement) -> None:
    """Store a measurement atomically. Ignore a cache that cannot be written."""
    try:
        directory().mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory(), prefix=".probe-")
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(cached_or_measured))
        Path(temporary).replace(directory() / f"{name}.json")
    except OSError:
        return


def cached_or_measured(
    mirrors: Sequence[Mirror],
    packages: Sequence[WantedPackage],
    budget: Budget,
    *,
    age: float = HOUR,
    offline: bool = False,
    measure: Callable[[Sequence[Mirror], Sequence[WantedPackage], Budget], list[MirrorMeasurement]] = probe,
) -> list[MirrorMeasurement]:
    """Return the stored measurements if all are younger than `age` seconds, else measure all mirrors and store that.

    The measurement of a silent mirror is never stored, because the network may be back soon: measure it again, and the
    others only if it answers. `offline` returns what is stored, of any age.
    """
    keys = [cache_key(mirror, packages) for mirror in mirrors]
    stored = [_read_answered(name) for name in keys]
    if offline:
        return [measurement for measurement in stored if measurement is not None]
    recent = [
        measurement for measurement in stored if measurement is not None and 0 <= time.time() - measurement.at <= age
    ]
    silent = [mirror for mirror, measurement in zip(mirrors, stored, strict=True) if measurement is None]
    if recent and len(recent) + len(silent) == len(mirrors):
        repeated = measure(silent, packages, budget) if silent else []
        if not any(measurement.answered for measurement in repeated):
            remeasured = iter(repeated)
            return [measurement or next(remeasured) for measurement in stored]
    fresh = measure(mirrors, packages, budget)
    for name, measurement in zip(keys, fresh, strict=True):
        # With a larger budget the file that was not hashed can be.
        if measurement.answered and not any(file.hash_why for file in measurement.files):
            write(name, measurement)
    return fresh


def _read_answered(name: str) -> MirrorMeasurement | None:
    """Return the stored measurement if the mirror answered; earlier versions stored silent mirrors too."""
    measurement = read(name)
    return (
        msgspec.structs.replace(measurement, stored=True) if measurement is not None and measurement.answered else None
    )
