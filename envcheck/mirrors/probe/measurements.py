"""The measurements of one mirror by a probe: plain facts without a verdict, stored and ranked later."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

SCHEMA: Final = "envcheck/probe/2"
# How a mirror lists a file: with a hash of the lock; by its exact name on a page without hashes; as the URL on the
# command line; or not at all.
Listing = Literal["hash", "name", "url", "absent"]


class FileResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request for a file's first byte, after all redirects. Sizes in bytes.

    Empty `hosts` mean a file with the right hash in a directory of this machine, which needs no request.
    """

    status: int
    hosts: list[str]
    ranged: bool
    total: int | None = None
    commit: str | None = None
    linked: str | None = None
    xet: bool = False

    @property
    def available(self) -> bool:
        """Tell whether the file is there."""
        return self.status in {200, 206} or self.total == 0


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one needed file on one mirror. `why` says what is missing; `url` has no query.

    `hashed` is the sha256 of the served bytes, if they were downloaded for it; `hash_why` says why they were not.
    """

    need: str
    listed: Listing
    sha256: str | None = None
    size: int | None = None
    url: str | None = None
    reached: FileResponse | None = None
    why: str | None = None
    hashed: str | None = None
    hash_why: str | None = None

    @property
    def served_size(self) -> int | None:
        """Return the size in bytes that the serving host reports, or None."""
        return self.reached.total if self.reached is not None else None

    @property
    def available(self) -> bool:
        """Tell whether the file is there."""
        return self.reached is not None and self.reached.available

    @property
    def local(self) -> bool:
        """Tell whether the file is in a directory of this machine, so that no host serves it."""
        return self.reached is not None and not self.reached.hosts


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A download of a range in the middle of the largest file. `why` says why it ended early."""

    bytes: int
    seconds: float
    host: str
    why: str | None = None

    @property
    def speed(self) -> float:
        """Return bytes per second."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of a branch or tag on a mirror, and its commit on the trusted endpoint; `why` it is unknown."""

    ref: str
    trusted: str
    commit: str | None = None
    why: str | None = None


class MirrorMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of one mirror for one part of a lock. `at` is the time in seconds since the epoch.

    `own` are the hosts that the profile names. `origin` marks the clients' own default, which may redirect to other
    hosts. `latency`: the seconds until the first answer. `rate_why` says why there is no `rate`; `range_fault` says why
    a range request in the middle of a file failed.
    """

    schema: Literal["envcheck/probe/2"] = "envcheck/probe/2"
    mirror: str
    part: str
    at: float
    own: list[str]
    closed: bool = False
    origin: bool = False
    needs: int = 0
    missing: str | None = None
    untrusted: str | None = None
    plain: bool = False
    latency: float | None = None
    pages: int = 0
    files: list[FileStatus] = []
    rate: Rate | None = None
    rate_why: str | None = None
    range_fault: str | None = None
    commit: str | None = None
    branch: Branch | None = None
    stored: bool = False

    @property
    def answered(self) -> bool:
        """Tell whether any host answered."""
        return bool(self.pages) or any(file.reached is not None and file.reached.hosts for file in self.files)
