"""Whether a version is one of those that an OSV record calls affected, in the order of PEP 440."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec
from packaging.version import Version

# Before every version, dev releases included (ossf.github.io/osv-schema, "introduced").
_FIRST: Final = "0"
_NO_LIMIT: Final = "*"
# Those that order package versions; GIT orders commits, of which a lock knows nothing.
ORDERED: Final = ("ECOSYSTEM", "SEMVER")
_OF_COMMITS: Final = "GIT"
_Event: TypeAlias = tuple[Literal["introduced", "fixed", "last_affected", "limit"], str]


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
    affected whatever the ranges say; one that is not needs every range to be comparable, or without a range every
    listed version.
    """
    candidate = Version(Version(version).public)
    if candidate in _parsed_versions(versions):
        return True
    ordered = [one for one in ranges if one.type != _OF_COMMITS]
    if not ordered:
        _refuse_unless_listed(versions, ranges)
    # Each is looked at, so that one that cannot be compared hides none that can.
    results = [_result(candidate, one) for one in ordered]
    if True in results:
        return True
    for result in results:
        if isinstance(result, UncomparableError):
            raise result
    return False


def in_order(versions: Iterable[str]) -> list[str]:
    """Return versions in the order of PEP 440, those that are not of it last."""
    parsed = {version: _parsed_or_none(version) for version in versions}
    return sorted(parsed, key=lambda version: (parsed[version] is None, parsed[version] or Version(_FIRST), version))


def _refuse_unless_listed(versions: Sequence[str], ranges: Sequence[OsvRange]) -> None:
    """Raise unless the list of versions alone can be compared with."""
    if not versions:
        message = "it names no versions, only commits" if ranges else "it names no versions"
        raise UncomparableError(message)
    for version in versions:
        if _parsed_or_none(version) is None:
            message = f"{version!r} of its versions is not a version of PEP 440, and it has no range"
            raise UncomparableError(message)


def _result(version: Version, within: OsvRange) -> bool | UncomparableError:
    if within.type not in ORDERED:
        return UncomparableError(f"{within.type!r} is no known type of a range")
    try:
        return _in_range(version, within.events)
    except UncomparableError as error:
        return error


def _parsed_versions(versions: Iterable[str]) -> set[Version]:
    """Return the listed versions that are of PEP 440."""
    parsed = (_parsed_or_none(version) for version in versions)
    return {Version(version.public) for version in parsed if version is not None}


def _parsed_or_none(version: str) -> Version | None:
    try:
        return Version(version)
    except ValueError:  # InvalidVersion is one, and so is a number of more digits than Python reads
        return None


def _in_range(version: Version, events: Sequence[OsvEvent]) -> bool:
    """Walk the events in order of their versions, those of one version in the record's own order."""
    kinds = [_kind(event) for event in events]
    if not any(kind == "introduced" for kind, _ in kinds):
        message = "one of its ranges does not say where it begins"
        raise UncomparableError(message)
    affected = False
    for kind, at in sorted(((kind, at) for kind, at in kinds if kind != "limit"), key=_place):
        if kind == "introduced" and (at == _FIRST or version >= _parsed(at)):
            affected = True
        elif (kind == "fixed" and version >= _parsed(at)) or (kind == "last_affected" and version > _parsed(at)):
            affected = False
    limits = [at for kind, at in kinds if kind == "limit"]
    return affected and (not limits or any(limit == _NO_LIMIT or version < _parsed(limit) for limit in limits))


def _kind(event: OsvEvent) -> _Event:
    """Return what an event says: one thing, or it means nothing that is known."""
    kinds: list[_Event] = []
    if event.introduced is not None:
        kinds.append(("introduced", event.introduced))
    if event.fixed is not None:
        kinds.append(("fixed", event.fixed))
    if event.last_affected is not None:
        kinds.append(("last_affected", event.last_affected))
    if event.limit is not None:
        kinds.append(("limit", event.limit))
    if len(kinds) != 1:
        bounds = "several things at once" if kinds else "nothing that is known"
        message = f"an event of its ranges says {bounds}"
        raise UncomparableError(message)
    return kinds[0]


def _place(event: _Event) -> tuple[bool, Version]:
    """Return where an event stands; "0" comes before all."""
    kind, at = event
    first = kind == "introduced" and at == _FIRST
    return not first, _parsed(at)


def _parsed(version: str) -> Version:
    parsed = _parsed_or_none(version)
    if parsed is None:
        message = f"{version!r} in its ranges is not a version of PEP 440"
        raise UncomparableError(message)
    return parsed
