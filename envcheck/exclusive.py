"""One process at a time: a lock file that goes with its holder, however that ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def held(lock: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file while the block runs.

    Where another process holds it, `busy` is called once: it may raise, else the lock is waited for. A file system
    without locks excludes nobody.
    """
    number = _locked(lock, busy)
    try:
        yield
    finally:
        if number is not None:
            lock.unlink(missing_ok=True)
            os.close(number)


def _locked(lock: Path, busy: Callable[[], None]) -> int | None:
    how = fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        number = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(number, how)
            if _is_still(lock, number):
                return number
        except OSError as error:
            os.close(number)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            busy()
            how = fcntl.LOCK_EX
        else:
            os.close(number)


def _is_still(lock: Path, number: int) -> bool:
    """Tell whether the file is the one that was opened: its last holder has removed it."""
    try:
        return os.fstat(number).st_ino == lock.stat().st_ino
    except FileNotFoundError:
        return False
