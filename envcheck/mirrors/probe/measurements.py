"""What a probe saw of one mirror: plain numbers, no judgement, as they are stored and judged again later."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

SCHEMA: Final = "envcheck/probe/1"

# How a mirror's page has a file: under a hash of the lock; by its exact name, where pages give no hash; as
# the URL that a person gave; under another hash; not at all; or the page could not be read.
Listed = Literal["hash", "name", "url", "other", "absent", "unread"]


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request for a file's first byte, at the end of its redirects. Sizes in bytes.

    Without `hosts` it is a file in a directory of this machine, of the right hash: nobody was asked for it.
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


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """One file that is needed, as one mirror has it. `why` says what is missing; `url` holds no query."""

    need: str
    listed: Listed
    sha256: str | None = None
    name: str | None = None
    size: int | None = None
    url: str | None = None
    reached: Reached | None = None
    why: str | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """An index page that was read: who served it, when it says it was changed, and its serial, which only grows."""

    host: str
    bytes: int
    json: bool
    modified: float | None = None
    serial: int | None = None


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until a request could be sent: name, connection and TLS, each the median of `times`."""

    dns: float
    tcp: float
    tls: float | None
    version: str | None
    alpn: str | None
    times: int

    @property
    def total(self) -> float:
        """Return the seconds in all."""
        return self.dns + self.tcp + (self.tls or 0.0)


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A range out of the middle of the largest file: what came, in how many seconds, and why it ended early."""

    bytes: int
    seconds: float
    offset: int
    host: str
    why: str | None = None

    @property
    def speed(self) -> float:
        """Return bytes a second."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """Where a mirror has a branch or tag, and where who is trusted has it.

    `changed` are seconds of the day's clock, where they are told; `why` says why the mirror's is not known.
    """

    ref: str
    trusted: str
    trusted_changed: float | None = None
    commit: str | None = None
    changed: float | None = None
    why: str | None = None

    @property
    def lag(self) -> float | None:
        """Return the seconds between the two commits, where both are told."""
        known = self.trusted_changed is not None and self.changed is not None
        return (self.trusted_changed or 0.0) - (self.changed or 0.0) if known else None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen of one mirror for one part of a lock. `at` is the time of day, in seconds.

    `own` are the hosts the profile itself names; `origin` says that it is the clients' own default, whose other hosts
    are no leak. `rate_why` says why there is no `rate`,
    `range_fault` what came where a range out of a file's middle was asked for.
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
    pages: list[Page] = []
    files: list[Sight] = []
    rate: Rate | None = None
    rate_why: str | None = None
    range_fault: str | None = None
    commit: str | None = None
    branch: Branch | None = None
    stored: bool = False

    @property
    def answered(self) -> bool:
        """Tell whether any host answered at all."""
        return bool(self.pages) or any(file.reached is not None and file.reached.hosts for file in self.files)
