"""How far a rank has come, in a file that the process above it reads when the group hangs.

A rank that waits for another one looks like the one it waits for. What tells them apart is how many collectives each
has begun: the one that is missing has begun fewer.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# In this order. A rank of which there is no file has not come to its check yet.
STARTED, LOADED, JOINING, JOINED, LEFT = range(5)
_PERIOD = 0.5
_LIMIT = 100  # bytes


def path(directory: Path, rank: int) -> Path:
    """Return where a rank writes it."""
    return directory / f"rank{rank}.progress"


def write(directory: Path, rank: int, stage: int, begun: int = 0) -> None:
    """Say which stage a rank has reached, and how many collectives of the whole group it has begun."""
    unfinished = directory / f".rank{rank}.progress"
    unfinished.write_text(json.dumps([stage, begun]), encoding="ascii")
    unfinished.replace(path(directory, rank))


def read(directory: Path, rank: int) -> tuple[int, int]:
    """Return the stage and the number of collectives; (-1, 0) for a rank that wrote neither."""
    try:
        stage, begun = json.loads(content(path(directory, rank), _LIMIT) or b"")
        return int(stage), int(begun)
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return -1, 0


@contextlib.contextmanager
def followed(group: Any, directory: Path, rank: int) -> Iterator[None]:
    """Write down, twice a second, how many collectives of a process group this rank has begun."""
    ended = threading.Event()

    def follow() -> None:
        last = 0
        while not ended.wait(_PERIOD):
            try:
                begun = int(group._get_sequence_number_for_group())  # noqa: SLF001 (torch has no public name for it)
            except (AttributeError, RuntimeError):
                return  # a torch or a backend that does not count
            if begun != last:
                write(directory, rank, JOINED, begun)
                last = begun

    thread = threading.Thread(target=follow, daemon=True)
    write(directory, rank, JOINED)
    thread.start()
    yield
    ended.set()
    thread.join()
    write(directory, rank, LEFT)


def content(path: Path, limit: int, start: int = 0) -> bytes | None:
    """Return at most `limit` + 1 bytes of a regular file from `start` on, None for what is none; may raise OSError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "it is no regular file")
        stream.seek(start)
        return stream.read(limit + 1)
