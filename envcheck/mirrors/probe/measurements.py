"""The measurements of one mirror by a probe: plain numbers without a verdict, stored and ranked later."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

SCHEMA: Final = "envcheck/probe/1"

# How a mirror lists a file: with a hash of the lock; by its exact name on a page without hashes; as the URL on the
# command line; with another hash; not at all; or the page could not be read.
Listing = Literal["hash", "name", "url", "other", "absent", "unread"]


class FileResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request for a file's first byte, after all redirects. Sizes in bytes.

    Empty `hosts` mean a file with the right hash in a directory of this machine, which needs no request.
    """

    status: int
    hosts: list[str]
    ranged: bool
    total: int | None = None
    etag: str | None = None
    modified: str | None = None
    commit: str | None = None
    linked: str | None = None
    xet: bool = False


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one needed file on one mirror. `why` says what is missing; `url` has no query.

    `hashed` is the sha256 of the served bytes, if they were downloaded for it; `hash_why` says why they were not.
    """

    need: str
    listed: Listing
    sha256: str | None = None
    name: str | None = None
    size: int | None = None
    url: str | None = None
    reached: FileResponse | None = None
    why: str | None = None
    hashed: str | None = None
    hash_why: str | None = None


class IndexPage(msgspec.Struct, frozen=True, kw_only=True):
    """An index page: its host, its size, the date of its last change, and its serial, which only increases."""

    host: str
    bytes: int
    json: bool
    modified: float | None = None
    serial: int | None = None


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until a request can be sent: name lookup, connection and TLS, each the median of `times` handshakes."""

    dns: float
    tcp: float
    tls: float | None
    version: str | None
    alpn: str | None
    times: int

    @property
    def total(self) -> float:
        """Return the sum in seconds."""
        return self.dns + self.tcp + (self.tls or 0.0)


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A download of a range in the middle of the largest file. `why` says why it ended early."""

    bytes: int
    seconds: float
    offset: int
    host: str
    why: str | None = None

    @property
    def speed(self) -> float:
        """Return bytes per second."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of a branch or tag on a mirror, and its commit on the trusted endpoint.

    `changed` and `trusted_changed` are times in seconds since the epoch, or None. `why` says why `commit` is unknown.
    """

    ref: str
    trusted: str
    trusted_changed: float | None = None
    commit: str | None = None
    changed: float | None = None
    why: str | None = None

    @property
    def lag(self) -> float | None:
        """Return the seconds between the two commits, or None if a time is unknown."""
        both_known = self.trusted_changed is not None and self.changed is not None
        return (self.trusted_changed or 0.0) - (self.changed or 0.0) if both_known else None


class MirrorMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of one mirror for one part of a lock. `at` is the time in seconds since the epoch.

    `own` are the hosts that the profile names. `origin` marks the clients' own default, which may redirect to other
    hosts. `rate_why` says why there is no `rate`; `range_fault` says why a range request in the middle of a file
    failed.
    """

    schema: Literal["envcheck/probe/1"] = "envcheck/probe/1"
    mirror: str
    part: str
    at: float
    own: list[str]
    region: str | None = None
    closed: bool = False
    origin: bool = False
    needs: int = 0
    missing: str | None = None
    untrusted: str | None = None
    latency: Latency | None = None
    latency_why: str | None = None
    pages: list[IndexPage] = []
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
