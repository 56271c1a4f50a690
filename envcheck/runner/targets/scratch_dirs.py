"""A run's directory for the worker's plan and events, and what a run that was killed left of its own.

A run that ends removes it, and so does a guard whose envcheck was killed. What is left because both were killed, or the
guard was in a container, the next run of the same user removes. A lock shows that an owner lives, which ends with
whoever holds it: the number of a process may be another one's by then, or one of another container.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import resource
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from envcheck.errors import ConfigError

_PREFIX: Final = "envcheck-run-"
_INNER: Final = "plan"
_OWNER: Final = "owner"
_WORTH: Final = 1 << 16  # bytes that a worker writes before it can do anything


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """Yield a new directory that any user of a container may write to, but none of this machine; it is gone afterwards.

    Those of runs that were killed are gone, too. A ConfigError says why there can be none, or none with room in it.
    """
    with filling():
        sweep(Path(tempfile.gettempdir()))
        outer = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        inner = outer / _INNER
        with filling():
            inner.mkdir()
            inner.chmod(0o777)
            _demand_room(inner)
        with _owned(inner):
            yield inner
    finally:
        shutil.rmtree(outer, ignore_errors=True)


@contextlib.contextmanager
def filling() -> Iterator[None]:
    """Turn what the system says where files cannot be made there into one line with what to do."""
    try:
        yield
    except OSError as error:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        small = "" if limit == resource.RLIM_INFINITY else f" (a file may have {limit} bytes, see `ulimit -f`)"
        message = f"no writable directory for temporary files: {_why(error)}{small}"
        raise ConfigError(message, fix="set TMPDIR to a writable directory with free space") from error


def _why(error: OSError) -> str:
    """Return what the system says; copying a tree raises a list of (from, to, the text of an OSError)."""
    copied = re.search(r"\[Errno (\d+)\]", str(error)) if isinstance(error, shutil.Error) else None
    return os.strerror(int(copied[1])) if copied else str(error.strerror or error)


def _demand_room(place: Path) -> None:
    why = refusal(place)
    if why:
        raise OSError(0, why)


def refusal(place: Path) -> str:
    """Return why nothing more can be written to a directory, and "" while it can be.

    A worker that ends for it can leave no word of it there.
    """
    try:
        with tempfile.TemporaryFile(dir=place, buffering=0) as probe:
            probe.write(bytes(_WORTH))
            probe.seek(0, os.SEEK_END)
            return "" if probe.tell() == _WORTH else os.strerror(errno.ENOSPC)
    except FileNotFoundError:
        return ""  # the run has removed it
    except OSError as error:
        return _why(error)


def sweep(place: Path) -> None:
    """Remove this user's directories of runs whose owner is gone; what is not marked as one is left alone."""
    for directory_path in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody's, somebody else was faster, or its owner lives
            _sweep(directory_path)


def _sweep(directory_path: Path) -> None:
    state = directory_path.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
        return
    mark = os.open(directory_path / _INNER / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory_path, ignore_errors=True)
    finally:
        os.close(mark)


@contextlib.contextmanager
def _owned(directory_path: Path) -> Iterator[None]:
    """Hold the lock of the directory's mark, which is there only once it is locked; without locks there is no mark."""
    unlocked = directory_path / f".{_OWNER}"
    with unlocked.open("w", encoding="ascii") as mark:
        with contextlib.suppress(OSError):  # a filesystem without locks: nobody will take it for left behind
            fcntl.flock(mark, fcntl.LOCK_EX)
            unlocked.rename(directory_path / _OWNER)
        yield
