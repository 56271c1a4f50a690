"""What is to be fetched, by what means, and what came of it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from envcheck.mirrors.fetch.limits import BandwidthLimiter, HostSlots
from envcheck.mirrors.net.client import Client


class StoppedError(Exception):
    """The fetch was told to stop; the pieces that are whole are kept for the next one."""


@dataclasses.dataclass(frozen=True)
class WantedFile:
    """One file: where it may be had, in order of preference, and what it must be. `size` is None where not known.

    `hint` is the size that an index page claims. It decides in which order files are fetched, and nothing else: pages
    are not trusted. `local` are files of this machine that may be it: they are looked at before anything is asked for.
    """

    urls: tuple[str, ...]
    sha256: str
    size: int | None
    path: Path
    local: tuple[Path, ...] = ()
    hint: int | None = None

    @property
    def expected(self) -> int | None:
        """Return the size that it has or is claimed to have."""
        return self.hint if self.size is None else self.size


@dataclasses.dataclass(frozen=True)
class FetchedFile:
    """What it came to: the bytes moved over the network, those found from before, and the sources by host."""

    path: Path
    size: int
    moved: int
    found: int
    seconds: float
    sources: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class TransferOptions:
    """How it is fetched. `progress` hears (bytes there, bytes in all) twice a second; `note` what a person reads.

    `limiter` and `slots` are shared by all files; `stop`, once set, ends them all.
    """

    client: Client
    connections: int = 16
    limiter: BandwidthLimiter = dataclasses.field(default_factory=lambda: BandwidthLimiter(None))
    progress: Callable[[int, int], None] = lambda _there, _all: None
    note: Callable[[str], None] = lambda _text: None
    slots: HostSlots = dataclasses.field(default_factory=lambda: HostSlots(64))
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
