"""Memory, CPU time and bytes of a process and all that it started, from /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, NamedTuple

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the command's name (proc(5) counts from 1, with the name as 2).
_PPID, _UTIME, _STIME, _RSS = 1, 11, 12, 21


class ProcessUse(NamedTuple):
    """One process: its parent, CPU seconds, bytes in memory, and bytes read from and written to disks."""

    parent: int
    cpu: float
    rss: int
    read: int
    written: int


class TreeUse:
    """The processes below one. Those that have ended keep their CPU seconds and bytes, as far as they were seen."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[int, ProcessUse] = {}
        self._first_traffic = traffic(root)

    def look(self) -> tuple[int, int, float, int, int, int, int]:
        """Return processes, bytes in memory, CPU seconds, bytes read, written, received and sent."""
        alive = below(self._root)
        self._seen |= alive
        ended = self._seen.values()
        received, sent = (now - then for now, then in zip(traffic(self._root), self._first_traffic, strict=True))
        return (
            len(alive),
            sum(use.rss for use in alive.values()),
            sum(use.cpu for use in ended),
            sum(use.read for use in ended),
            sum(use.written for use in ended),
            max(received, 0),
            max(sent, 0),
        )


def below(root: int) -> dict[int, ProcessUse]:
    """Return a process and its descendants by their ids."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (thousands of names many times a minute)
        if name.isdigit() and (parent := _parent(name)) is not None:
            parents.setdefault(parent, []).append(int(name))
    descendants, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        waiting += parents.get(pid, [])
        with contextlib.suppress(OSError, ValueError, IndexError):
            descendants[pid] = _use(pid)
    return descendants


def _parent(pid: str) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_stat(pid)[_PPID])
    return None


def _stat(pid: int | str) -> list[str]:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:  # noqa: PTH123 (as above)
        return stream.read().rpartition(")")[2].split()


def _use(pid: int) -> ProcessUse:
    fields = _stat(pid)
    io = {"read_bytes": 0, "write_bytes": 0}
    with contextlib.suppress(OSError, ValueError):  # another user's process does not say
        rows = (line.partition(":") for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines())
        io |= {name: int(value) for name, _, value in rows if name in io}
    cpu = (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS
    return ProcessUse(int(fields[_PPID]), cpu, int(fields[_RSS]) * _PAGE, io["read_bytes"], io["write_bytes"])


def traffic(pid: int) -> tuple[int, int]:
    """Return the bytes that the process's network namespace received and sent, without the loopback."""
    received = sent = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]:
            name, _, counts = line.partition(":")
            if name.strip() != "lo":
                received += int(counts.split()[0])
                sent += int(counts.split()[8])
    return received, sent
