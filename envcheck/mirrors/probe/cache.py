"""What was measured of mirrors, kept for a while below the user's cache directory; no query of a URL is in it."""

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
from envcheck.mirrors.probe.directories import glance
from envcheck.mirrors.probe.file_matches import Asked
from envcheck.mirrors.probe.measurements import Measured
from envcheck.mirrors.probe.probe import Mirror, probe

HOUR: Final = 3600.0


def place() -> Path:
    """Return the directory: $XDG_CACHE_HOME/envcheck/probe, else below ~/.cache."""
    return xdg("XDG_CACHE_HOME", ".cache") / "envcheck" / "probe"


def key(mirror: Mirror, asked: Sequence[Asked]) -> str:
    """Return what a measurement is found by: all that the profile says and its directories hold, and what was asked."""
    needs = sorted((one.part, one.label, *sorted(one.sha256)) for one in asked)
    profile, ours = msgspec.to_builtins(mirror.profile), glance(mirror.profile, asked)
    said = msgspec.json.encode([profile, mirror.name, needs, *ours], order="sorted")
    return hashlib.sha256(said).hexdigest()


def read(name: str) -> Measured | None:
    """Return what is stored under a key, or None for nothing, for garbage, and for another version's."""
    try:
        return msgspec.json.decode(place().joinpath(f"{name}.json").read_bytes(), type=Measured)
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def write(name: str, measured: Measured) -> None:
    """Store a measurement, whole or not at all. A cache that cannot be written is none: nothing is said."""
    try:
        place().mkdir(parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(dir=place(), prefix=".probe-")
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(measured))
        Path(fresh).replace(place() / f"{name}.json")
    except OSError:
        return


def measured(
    mirrors: Sequence[Mirror],
    asked: Sequence[Asked],
    budget: Budget,
    *,
    age: float = HOUR,
    offline: bool = False,
    measure: Callable[[Sequence[Mirror], Sequence[Asked], Budget], list[Measured]] = probe,
) -> list[Measured]:
    """Return what was stored when all of it is younger than `age` seconds, else measure all anew and store that.

    A mirror that did not answer is never stored, as this machine's network may be back at once: it is asked again, and
    the others only if it answers. `offline` takes what is stored, however old, and leaves out what is not.
    """
    keys = [key(mirror, asked) for mirror in mirrors]
    stored = [_stored(name) for name in keys]
    if offline:
        return [one for one in stored if one is not None]
    known = [one for one in stored if one is not None and 0 <= time.time() - one.at <= age]
    silent = [mirror for mirror, one in zip(mirrors, stored, strict=True) if one is None]
    if known and len(known) + len(silent) == len(mirrors):
        again = measure(silent, asked, budget) if silent else []
        if not any(one.answered for one in again):
            rest = iter(again)
            return [one or next(rest) for one in stored]
    fresh = measure(mirrors, asked, budget)
    for name, one in zip(keys, fresh, strict=True):
        if one.answered:
            write(name, one)
    return fresh


def _stored(name: str) -> Measured | None:
    """Return what is stored of a mirror that answered; earlier versions stored silence too."""
    found = read(name)
    return msgspec.structs.replace(found, stored=True) if found is not None and found.answered else None
