"""Find the report files of a fleet: regular files, none too long, and no link to a directory followed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from envcheck.errors import ConfigError

# A report of 64 ranks has a few MiB. One of 16 MiB that is made to cost memory takes at most 0.5 GB when it is read.
LONGEST: Final = 16 << 20
_FIX: Final = "name the directory that `envcheck run --output DIR/` wrote, or its files"


class FoundFile(NamedTuple):
    """A file that may be a report. `stamp` changes with the file; `modified` is the time in seconds, UTC.

    `problem` says why the file cannot be read; then the other fields are what is known.
    """

    path: str
    stamp: str
    modified: float
    problem: str = ""


def find(places: Iterable[Path]) -> Iterator[FoundFile]:
    """Yield the named files and every *.json below the named directories, by name.

    Names that begin with a dot are left out: they are locks and unfinished files. Raise ConfigError for a place that is
    not there.
    """
    for place in places:
        if place.is_dir():
            yield from _below(str(place))
        elif os.path.lexists(place):
            yield _looked_at(str(place))
        else:
            message = f"{place}: no such file or directory"
            raise ConfigError(message, fix=_FIX)


def _below(folder: str) -> Iterator[FoundFile]:
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError as error:
        yield FoundFile(folder, "", 0.0, f"cannot list the directory: {error.strerror}")
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path)
        elif entry.name.endswith(".json"):
            yield _looked_at(entry.path)


def _looked_at(path: str) -> FoundFile:
    try:
        facts = os.stat(path)  # noqa: PTH116 (ten thousand paths; Path costs more than the call)
    except OSError as error:
        return FoundFile(path, "", _link_made(path), f"cannot be read: {error.strerror}")
    stamp = f"{facts.st_dev}:{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}:{facts.st_ctime_ns}"
    problem = ""
    if not stat.S_ISREG(facts.st_mode):
        problem = "is not a regular file"
    elif facts.st_size > LONGEST:
        problem = f"has {facts.st_size >> 20} MiB, and no report has more than {LONGEST >> 20}"
    return FoundFile(path, stamp, facts.st_mtime, problem)


def _link_made(path: str) -> float:
    """Return when a link that leads nowhere was made; 0 for what cannot be looked at at all."""
    with contextlib.suppress(OSError):
        return os.lstat(path).st_mtime
    return 0.0
