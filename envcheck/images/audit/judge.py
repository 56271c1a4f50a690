"""What a database says of locked packages. Pure: a clean verdict needs a recent database that could all be read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
from packaging.utils import canonicalize_name

from envcheck.counting import counted
from envcheck.images.audit.osv import OsvAffected, OsvDatabase, OsvRecord
from envcheck.images.audit.ranges import UncomparableError, affects, in_order
from envcheck.images.sbom.components import Component

Verdict = Literal["clean", "found", "undetermined"]
# A clock of another machine may be ahead a little; a date beyond that says nothing of the database's age.
_AHEAD: Final = dt.timedelta(days=1)
_SUMMARY: Final = 200
# osv.dev's export of PyPI has many thousands of records; what has fewer than this is a part of one.
FLOOR: Final = 1000


class AuditTerms(NamedTuple):
    """What the database is held to. `partial`: the site states that it is a selection, so it may be small."""

    now: dt.datetime
    max_age: dt.timedelta
    partial: bool = False


class VulnerabilityFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A vulnerability of one package; `ids` are the records that mean the same, with their aliases."""

    package: str
    version: str
    environment: str
    ids: list[str]
    fixed: list[str]
    summary: str


class ImageAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of one target. `undetermined` says what kept it from being clean, a line each.

    `partial`: the database is a selection of records, as the site states. `ignored`: its files that are no records.
    """

    schema: Literal["envcheck/images-audit/1"] = "envcheck/images-audit/1"
    cell: str
    target: str
    verdict: Verdict
    packages: int
    records: int
    newest: str | None
    ignored: int
    partial: bool
    findings: list[VulnerabilityFinding]
    undetermined: list[str]
    not_audited: str = "the distribution's packages, and what a user adds to the image"


class _Match(NamedTuple):
    """A component and a record that speaks of its name."""

    component: Component
    record: OsvRecord
    affected: OsvAffected


def audit(named: tuple[str, str], listed: Sequence[Component], database: OsvDatabase, terms: AuditTerms) -> ImageAudit:
    """Return the audit of the components of `named`, a cell and its target."""
    records = [record for record in database.records if _stands(record, terms.now)]
    matches, unknown = _matches(listed, records)
    newest = _newest(database.records, terms.now)
    unread = [f"not read: {where}" for where in database.unreadable]
    undetermined = [*_too_old(newest, terms), *_too_few(database.records, terms), *unread, *unknown]
    findings = _merged(matches)
    return ImageAudit(
        cell=named[0],
        target=named[1],
        verdict="found" if findings else "undetermined" if undetermined or not listed else "clean",
        packages=len(listed),
        records=len(database.records),
        newest=newest.strftime("%Y-%m-%d") if newest else None,
        ignored=database.ignored,
        partial=terms.partial,
        findings=findings,
        undetermined=undetermined,
    )


def unaudited(named: tuple[str, str], listed: Sequence[Component], why: str, *, partial: bool) -> ImageAudit:
    """Return the audit of `named` where there is no database."""
    return ImageAudit(
        cell=named[0],
        target=named[1],
        verdict="undetermined",
        packages=len(listed),
        records=0,
        newest=None,
        ignored=0,
        partial=partial,
        findings=[],
        undetermined=[why],
    )


def _stands(record: OsvRecord, now: dt.datetime) -> bool:
    """Return whether a record is not withdrawn by now."""
    return record.withdrawn is None or _utc(record.withdrawn) > now


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
    """Return the records that speak of a component, by its name."""
    concerning: dict[str, list[tuple[OsvRecord, OsvAffected]]] = {component.name: [] for component in listed}
    for record in records:
        for affected in record.affected:
            name = canonicalize_name(affected.package.name.strip()) if affected.package and affected.of_pypi else ""
            if name in concerning:
                concerning[name].append((record, affected))
    return concerning


def _newest(records: Iterable[OsvRecord], now: dt.datetime) -> dt.datetime | None:
    dates = (_utc(record.modified) for record in records)
    return max((date for date in dates if date <= now + _AHEAD), default=None)


def _utc(moment: dt.datetime) -> dt.datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)


def _too_old(newest: dt.datetime | None, terms: AuditTerms) -> list[str]:
    if newest is None:
        return ["no record of the database has a date, so its age is not known"]
    age, allowed = terms.now - newest, terms.max_age
    if age <= allowed:
        return []
    return [f"the newest record is {age.days} days old, and at most {allowed.days} are allowed: renew the database"]


def _too_few(records: Iterable[OsvRecord], terms: AuditTerms) -> list[str]:
    count = len({record.id for record in records})
    if terms.partial or count >= FLOOR:
        return []
    remedy = "bring osv.dev's whole all.zip of PyPI, or say --partial if the database is a selection of records"
    return [f"{counted(count, 'record')} of PyPI, and a whole database has at least {FLOOR}: {remedy}"]


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
        fixed=in_order(fixed),
        summary=" ".join(texts[0].split())[:_SUMMARY] if texts else "",
    )
