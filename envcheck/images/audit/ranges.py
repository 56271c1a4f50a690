"""Whether a version is one of those that an OSV record calls affected, in the order of PEP 440."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from packaging.version import InvalidVersion, Version

# Before every version, dev releases included (ossf.github.io/osv-schema, "introduced").
_FIRST: Final = "0"
_NO_LIMIT: Final = "*"
# Those that order package versions; GIT orders commits, of which a lock knows nothing.
ORDERED: Final = ("ECOSYSTEM", "SEMVER")


class OsvEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a range; a record sets one of the fields."""

    introduced: str | None = None
    fixed: str | None = None
    last_affected: str | None = None
    limit: str | None = None


class OsvRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of versions of one type."""

    type: str
    events: list[OsvEvent]


class UncomparableError(Exception):
    """Why a record cannot be compared with a version."""


def affects(version: str, versions: Sequence[str], ranges: Sequence[OsvRange]) -> bool:
    """Return whether a record with these versions and ranges affects a version; UncomparableError if it cannot tell.

    A local label is left out: 2.6.0+cu124 is built from 2.6.0, and records name that. A version that is listed is
    affected whatever the ranges say; one that is not needs every range to be comparable.
    """
    candidate = Version(Version(version).public)
    if candidate in _known(versions):
        return True
    ordered = [one for one in ranges if one.type in ORDERED]
    if not ordered and not versions:
        message = "it names no versions, only commits" if ranges else "it names no versions"
        raise UncomparableError(message)
    # Each is looked at, so that one that cannot be compared hides none that can.
    results = [_result(candidate, one.events) for one in ordered]
    if True in results:
        return True
    for result in results:
        if isinstance(result, UncomparableError):
            raise result
    return False


def _result(version: Version, events: Sequence[OsvEvent]) -> bool | UncomparableError:
    try:
        return _in_range(version, events)
    except UncomparableError as error:
        return error


def _known(versions: Iterable[str]) -> set[Version]:
    """Return the listed versions that are of PEP 440; a lock holds no other."""
    parsed = (_parsed_or_none(version) for version in versions)
    return {Version(version.public) for version in parsed if version is not None}


def _parsed_or_none(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:
        return None


def _in_range(version: Version, events: Sequence[OsvEvent]) -> bool:
    """Walk the events in order of their versions, those of one version in the record's own order."""
    limits = [event.limit for event in events if event.limit is not None]
    if limits and not any(limit == _NO_LIMIT or version < _parsed(limit) for limit in limits):
        return False
    affected = False
    for event in sorted((event for event in events if event.limit is None), key=_place):
        kind, at = _kind(event)
        if kind == "introduced" and (at == _FIRST or version >= _parsed(at)):
            affected = True
        elif (kind == "fixed" and version >= _parsed(at)) or (kind == "last_affected" and version > _parsed(at)):
            affected = False
    return affected


def _kind(event: OsvEvent) -> tuple[Literal["introduced", "fixed", "last_affected"], str]:
    if event.introduced is not None:
        return "introduced", event.introduced
    if event.fixed is not None:
        return "fixed", event.fixed
    if event.last_affected is not None:
        return "last_affected", event.last_affected
    message = "an event of its ranges says nothing that is known"
    raise UncomparableError(message)


def _place(event: OsvEvent) -> tuple[bool, Version]:
    """Return where an event stands; "0" comes before all."""
    kind, at = _kind(event)
    first = kind == "introduced" and at == _FIRST
    return not first, _parsed(at)


def _parsed(version: str) -> Version:
    parsed = _parsed_or_none(version)
    if parsed is None:
        message = f"{version!r} in its ranges is not a version of PEP 440"
        raise UncomparableError(message)
    return parsed
