"""What a rank left in its directory, read so that nothing there can hold up the process that reads it.

A check may leave anything under the name of a result: a link to a device, a FIFO that nobody writes to, a directory.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def content(path: Path, limit: int) -> bytes | None:
    """Return at most `limit` + 1 bytes of a regular file; None for what is absent, a link, or no file.

    Raises OSError where there is a file that cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "it is no regular file")
        return stream.read(limit + 1)
