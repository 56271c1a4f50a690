"""The file to fetch, the options of the transfer, and its result."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from envcheck.mirrors.fetch.limits import BandwidthLimiter, HostSlots
from envcheck.mirrors.net.advice import OTHER_MIRROR
from envcheck.mirrors.net.client import Client


class StoppedError(Exception):
    """The fetch was stopped; complete pieces are kept for the next run."""


@dataclasses.dataclass(frozen=True)
class WantedFile:
    """One file to fetch: its URLs in order of preference, its hash and its path. `size` is None if it is unknown.

    `hint` is the size that an index page claims. It only sets the order of downloads, because pages are not trusted.
    `local` are files on this machine that may have the hash: they are checked before any request. `other_fix` is what
    to do about sources without it, if they do not say.
    """

    urls: tuple[str, ...]
    sha256: str
    size: int | None
    path: Path
    local: tuple[Path, ...] = ()
    hint: int | None = None
    other_fix: str = OTHER_MIRROR

    @property
    def expected(self) -> int | None:
        """Return the known size, else the size that a page claims."""
        return self.hint if self.size is None else self.size


@dataclasses.dataclass(frozen=True)
class FetchedFile:
    """A fetched file: the bytes that came over the network (`moved`), those found on disk, and the bytes by source."""

    path: Path
    size: int
    moved: int
    found: int
    seconds: float
    sources: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class TransferOptions:
    """How to fetch files.

    `progress` gets (bytes present, bytes in total) twice a second; `note` gets text for the user.

    All files share `limiter` and `slots`. Setting `stop` ends every transfer.
    """

    client: Client
    connections: int = 16
    limiter: BandwidthLimiter = dataclasses.field(default_factory=lambda: BandwidthLimiter(None))
    progress: Callable[[int, int], None] = lambda _there, _all: None
    note: Callable[[str], None] = lambda _text: None
    slots: HostSlots = dataclasses.field(default_factory=lambda: HostSlots(64))
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
