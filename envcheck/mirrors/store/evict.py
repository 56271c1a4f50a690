"""Measure how much a store uses of what it may use, and evict its least recently used objects."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from envcheck.mirrors.store import versions
from envcheck.mirrors.store.objects import HELD, Store, StoredObject

# For so many seconds, another process may continue what a killed process left.
_STALE: Final = 86400.0


class EvictionLimits(NamedTuple):
    """Eviction starts when more than the share `high` of the room is used and stops at the share `low`.

    The room is the file system, or `size` bytes for the objects of the store alone.
    """

    high: float = 0.85
    low: float = 0.75
    size: int | None = None


class Eviction(NamedTuple):
    """What was evicted, or would be; the bytes that are `left` over the limit; those `used` before, of the `room`."""

    evicted: list[StoredObject]
    left: int
    used: int
    room: int


def objects_to_evict(objects: Iterable[StoredObject], pinned: set[str], excess: int) -> list[StoredObject]:
    """Return the objects to evict to free `excess` bytes, least recently used first.

    Leaves out pinned objects and those with another name elsewhere: unlinking these would free no room.
    """
    chosen: list[StoredObject] = []
    for stored in sorted(objects, key=lambda stored: (stored.used, stored.sha256)):
        if excess <= 0:
            break
        if stored.sha256 not in pinned and stored.links == 1:
            chosen.append(stored)
            excess -= stored.size
    return chosen


def bytes_over_limit(used: int, room: int, limits: EvictionLimits) -> int:
    """Return how many bytes to evict: 0 up to the high limit; above it, all bytes over the low limit."""
    return used - int(room * limits.low) if used > room * limits.high else 0


def gc(store: Store, limits: EvictionLimits, *, dry: bool, note: Callable[[str], None]) -> Eviction:
    """Evict until the low limit is reached or all the rest is in use. With `dry`, only tell what would be evicted."""
    with store.locked(note=note):
        if not dry:
            _remove_leftovers(store)
        objects = store.objects()
        used, room = _used_and_total(store, objects, limits)
        over = bytes_over_limit(used, room, limits)
        chosen = objects_to_evict(objects, versions.pinned_digests(store) | _digests_in_use(store, objects), over)
        for stored in chosen if not dry else []:
            store.evict(stored.sha256)
        return Eviction(chosen, max(0, over - sum(stored.size for stored in chosen)), used, room)


def _digests_in_use(store: Store, objects: Iterable[StoredObject]) -> set[str]:
    """Return the digests that running processes hold: those they list, and all that were used since they started."""
    digests, since = set(), math.inf
    for path in (store.root / HELD).glob("*"):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                since = min(since, os.fstat(file.fileno()).st_mtime)
                digests |= set(file.read().decode("ascii", "replace").split())
            else:
                path.unlink()  # its process was killed
    return digests | {stored.sha256 for stored in objects if stored.used >= since}


def _used_and_total(store: Store, objects: Iterable[StoredObject], limits: EvictionLimits) -> tuple[int, int]:
    if limits.size is not None:
        return sum(stored.size for stored in objects), limits.size
    folder = next(path for path in [store.root, *store.root.parents] if path.exists())
    disk = shutil.disk_usage(folder)
    # As df does, do not count blocks that are reserved for root.
    return disk.used, disk.used + disk.free


def _remove_leftovers(store: Store) -> None:
    """Remove the files of killed processes, unless a process has them open or may still continue them."""
    for path in filter(Path.is_file, [*store.root.glob("sha256/??/.*"), *store.root.glob("import/*")]):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            if time.time() - path.stat().st_mtime < _STALE:
                continue
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
    # Wheels linked for a build that was killed: these second names would prevent the eviction of their objects.
    for folder in store.root.glob(".view-*"):
        if time.time() - folder.stat().st_mtime >= _STALE:
            shutil.rmtree(folder, ignore_errors=True)
