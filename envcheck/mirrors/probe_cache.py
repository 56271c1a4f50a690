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

from envcheck.mirrors.budget import Budget
from envcheck.mirrors.measured import Measured
from envcheck.mirrors.probe import Mirror, probe
from envcheck.mirrors.sights import Asked

HOUR: Final = 3600.0
# What did not answer may be back soon, and must not be waited for in every build until then.
_DEAD: Final = 600.0


def place() -> Path:
    """Return the directory: $XDG_CACHE_HOME/envcheck/probe, else below ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "envcheck", "probe")


def key(mirror: Mirror, asked: Sequence[Asked]) -> str:
    """Return what a measurement is found by: all that the profile says, and all that was asked for."""
    needs = sorted((one.part, one.label, *sorted(one.sha256)) for one in asked)
    said = msgspec.json.encode([msgspec.to_builtins(mirror.profile), mirror.name, needs], order="sorted")
    return hashlib.sha256(said).hexdigest()


def read(name: str) -> Measured | None:
    """Return what is stored under a key, or None for nothing, for garbage, and for another version's."""
    try:
        return msgspec.json.decode(place().joinpath(f"{name}.json").read_bytes(), type=Measured)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
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

    `offline` takes what is stored, however old; a mirror of which nothing is stored is left out.
    """
    keys = [key(mirror, asked) for mirror in mirrors]
    stored = [msgspec.structs.replace(one, stored=True) for name in keys if (one := read(name)) is not None]
    young = [one for one in stored if 0 <= time.time() - one.at <= (age if one.answered else min(age, _DEAD))]
    if offline or len(young) == len(mirrors):
        return stored
    fresh = measure(mirrors, asked, budget)
    for name, one in zip(keys, fresh, strict=True):
        write(name, one)
    return fresh
