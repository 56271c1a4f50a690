"""Where each part of a build really came from, and what was tried in vain before it: read off the build's log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from envcheck.images.build.failure_causes import diagnose, said_of

# What install.sh and os.sh say of each attempt; the rest of the log is the installer's.
_SAID: Final = re.compile(
    r"envcheck: (?P<group>[a-z]+): (?:used (?P<used>.+)|(?P<failed>.+) failed rc=(?P<status>\d+))"
)


class UsedSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a lock group, or of the distribution's packages ("os"). `failed` maps those before it to why."""

    group: str
    source: str
    failed: dict[str, str]


def used(log: str) -> list[UsedSource]:
    """Return the source of each group that this build installed, in order; what came out of a cache is not there."""
    sources = []
    failed: dict[str, str] = {}
    for entry, before in _attempts(log):
        if entry["used"]:
            sources.append(UsedSource(group=entry["group"], source=entry["used"], failed=failed))
            failed = {}
        else:
            cause = diagnose(before)
            failed[entry["failed"]] = cause.what if cause else f"exit status {entry['status']}"
    return sources


def _attempts(log: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield the result of each attempt, with the lines since the one before."""
    since: list[str] = []
    for line in map(said_of, log.splitlines()):
        match = _SAID.fullmatch(line.rstrip())
        if match is None:
            since.append(line)
        else:
            yield match, "\n".join(since)
            since = []
