"""What a database says of locked packages. Pure: a clean verdict needs a recent database that could all be read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
from packaging.utils import canonicalize_name

from envcheck.images.audit.osv import OsvAffected, OsvDatabase, OsvRecord
from envcheck.images.audit.ranges import UncomparableError, affects
from envcheck.images.sbom.components import Component

Verdict = Literal["clean", "found", "undetermined"]
# A clock of another machine may be ahead a little; a date beyond that says nothing of the database's age.
_AHEAD: Final = dt.timedelta(days=1)
_SUMMARY: Final = 200


class VulnerabilityFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A vulnerability of one package; `ids` are the records that mean the same, with their aliases."""

    package: str
    version: str
    environment: str
    ids: list[str]
    fixed: list[str]
    summary: str


class ImageAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of one target. `undetermined` says what kept it from being clean, a line each."""

    schema: Literal["envcheck/images-audit/1"] = "envcheck/images-audit/1"
    cell: str
    target: str
    verdict: Verdict
    packages: int
    records: int
    newest: str | None
    findings: list[VulnerabilityFinding]
    undetermined: list[str]
    not_audited: str = "the distribution's packages, and what a user adds to the image"


class _Match(NamedTuple):
    """A component and a record that speaks of its name."""

    component: Component
    record: OsvRecord
    affected: OsvAffected


def audit(
    named: tuple[str, str], listed: Sequence[Component], database: OsvDatabase, now: dt.datetime, max_age: dt.timedelta
) -> ImageAudit:
    """Return the audit of the components of `named`, a cell and its target."""
    matches, unknown = _matches(listed, database.records)
    newest = _newest(database.records, now)
    undetermined = [*_too_old(newest, now, max_age), *(f"not read: {where}" for where in database.unreadable), *unknown]
    findings = _merged(matches)
    return ImageAudit(
        cell=named[0],
        target=named[1],
        verdict="found" if findings else "undetermined" if undetermined or not listed else "clean",
        packages=len(listed),
        records=len(database.records),
        newest=newest.strftime("%Y-%m-%d") if newest else None,
        findings=findings,
        undetermined=undetermined,
    )


def _matches(listed: Sequence[Component], records: Iterable[OsvRecord]) -> tuple[list[_Match], list[str]]:
    """Return which records affect which components, and a line for each pair that cannot be compared."""
    concerning = _concerning(listed, records)
    pairs = [_Match(one, *pair) for one in listed for pair in concerning[one.name]]
    answers = [(pair, _answer(pair)) for pair in pairs]
    unknown = [
        f"{pair.component.name} {pair.component.version}: {pair.record.id}: {answer}"
        for pair, answer in answers
        if isinstance(answer, UncomparableError)
    ]
    return [pair for pair, answer in answers if answer is True], unknown


def _answer(pair: _Match) -> bool | UncomparableError:
    try:
        return affects(pair.component.version, pair.affected.versions, pair.affected.ranges)
    except UncomparableError as error:
        return error


def _concerning(
    listed: Sequence[Component], records: Iterable[OsvRecord]
) -> Mapping[str, list[tuple[OsvRecord, OsvAffected]]]:
    """Return the records that speak of a component and are not withdrawn, by its name."""
    found: dict[str, list[tuple[OsvRecord, OsvAffected]]] = {component.name: [] for component in listed}
    for record in records:
        for affected in record.affected:
            name = canonicalize_name(affected.package.name) if affected.package and affected.of_pypi else ""
            if name in found and record.withdrawn is None:
                found[name].append((record, affected))
    return found


def _newest(records: Iterable[OsvRecord], now: dt.datetime) -> dt.datetime | None:
    dates = (_utc(record.modified) for record in records)
    return max((date for date in dates if date <= now + _AHEAD), default=None)


def _utc(moment: dt.datetime) -> dt.datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)


def _too_old(newest: dt.datetime | None, now: dt.datetime, max_age: dt.timedelta) -> list[str]:
    if newest is None:
        return ["no record of the database has a date, so its age is not known"]
    age = now - newest
    if age <= max_age:
        return []
    return [f"the newest record is {age.days} days old, and at most {max_age.days} are allowed: renew the database"]


def _merged(matches: Iterable[_Match]) -> list[VulnerabilityFinding]:
    """Return one finding for all records of a package that share a name: GHSA and PYSEC write of the same CVE."""
    groups: list[list[_Match]] = []
    for match in matches:
        same = [group for group in groups if any(_same(match, other) for other in group)]
        groups = [group for group in groups if group not in same]
        groups.append([member for group in same for member in group] + [match])
    return [_finding(group) for group in groups]


def _same(one: _Match, other: _Match) -> bool:
    return one.component == other.component and bool(_names(one.record) & _names(other.record))


def _names(record: OsvRecord) -> set[str]:
    return {record.id, *record.aliases}


def _finding(group: Sequence[_Match]) -> VulnerabilityFinding:
    component = group[0].component
    fixed = {e.fixed for m in group for r in m.affected.ranges if r.type != "GIT" for e in r.events if e.fixed}
    texts = [text for match in group for text in (match.record.summary, match.record.details) if text]
    return VulnerabilityFinding(
        package=component.name,
        version=component.version,
        environment=component.environment,
        ids=sorted({name for match in group for name in _names(match.record)}),
        fixed=sorted(fixed),
        summary=" ".join(texts[0].split())[:_SUMMARY] if texts else "",
    )
