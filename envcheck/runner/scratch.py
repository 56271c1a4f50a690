"""A run's directory for what the worker is told and tells, and what a run that was killed left of its own.

A run that ends removes it, and so does a guard whose envcheck was killed. What is left because both were killed, or the
guard was in a container, the next run of the same user removes. That an owner lives is told by a lock, which ends with
whoever holds it: the number of a process may be another one's by then, or one of another container.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PREFIX: Final = "envcheck-run-"
_INNER: Final = "plan"
_OWNER: Final = "owner"


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """Yield a new directory that any user of a container may write to, but none of this machine; it is gone afterwards.

    Those of runs that were killed are gone, too.
    """
    sweep(Path(tempfile.gettempdir()))
    outer = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        inner = outer / _INNER
        inner.mkdir()
        inner.chmod(0o777)
        with _owned(inner):
            yield inner
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def sweep(place: Path) -> None:
    """Remove this user's directories of runs whose owner is gone; what is not marked as one is left alone."""
    for found in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody's, somebody else was faster, or its owner lives
            _sweep(found)


def _sweep(found: Path) -> None:
    state = found.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
        return
    mark = os.open(found / _INNER / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(found, ignore_errors=True)
    finally:
        os.close(mark)


@contextlib.contextmanager
def _owned(made: Path) -> Iterator[None]:
    """Hold the lock of the directory's mark, which is there only once it is locked; without locks there is no mark."""
    unlocked = made / f".{_OWNER}"
    with unlocked.open("w", encoding="ascii") as mark:
        with contextlib.suppress(OSError):  # a filesystem without locks: nobody will take it for left behind
            fcntl.flock(mark, fcntl.LOCK_EX)
            unlocked.rename(made / _OWNER)
        yield
