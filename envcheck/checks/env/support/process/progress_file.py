"""How far a rank has come, in a file that the process above it reads when the group hangs.

A rank that waits for another one looks like the one it waits for. What tells them apart is how many collectives each
has begun: the one that is missing has begun fewer.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envcheck.checks.env.support.process import rank_files

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
        stage, begun = json.loads(rank_files.content(path(directory, rank), _LIMIT) or b"")
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
