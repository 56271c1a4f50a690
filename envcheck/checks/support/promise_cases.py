"""Many small promises in one check: each is tried by itself, and each that does not hold is a finding of its own.

A case returns nothing (it is exact), a text (what is wrong), or a number (how far it is off). It raises `Absent` where
this torch or device does not have what it is about, with the evidence. Whatever else it raises is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Optional, Union

from envcheck.checks import Limit, Measured, Outcome, Ranks, View, failed, passed, skipped, undecided, worst
from envcheck.checks.support import process_group
from envcheck.counting import counted

Case = Callable[[], Optional[Union[str, float]]]
_LENGTH = 300


class AbsentFeature(Exception):  # noqa: N818 (an answer, no error)
    """This torch or device does not have it; the text is the evidence: a capability query, a signature, a message."""


def quoted(error: BaseException) -> str:
    """Return an exception's type and first line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:_LENGTH]


def run(cases: Mapping[str, Case]) -> dict[str, Measured]:
    """Try each case; return by name what it came to: `off`, `wrong`, `raised` or `absent`."""
    return {name: _tried(case) for name, case in cases.items()}


def _tried(case: Case) -> Measured:
    try:
        result = case()
    except AbsentFeature as absent:
        return {"absent": str(absent)}
    except Exception as error:  # noqa: BLE001 (whatever it is, it is this case's finding, and a failure)
        return {"raised": quoted(error)}
    if isinstance(result, str):
        return {"wrong": result[:_LENGTH]}
    return {"off": 0.0 if result is None else float(result)}


class Terms(NamedTuple):
    """By what cases are judged: their names, each one's limit, which may be absent, and what a failure says."""

    names: Iterable[str]
    limit: Callable[[str], Limit]
    code: str
    fix: str
    may_lack: Callable[[str], bool] = lambda _name: True


def judge(view: View, ranks: Ranks, terms: Terms, *, backend: bool = False) -> Outcome:
    """Judge the `cases` of every rank: each wrong one is a finding; what all of them raised alike is one finding."""
    problem = process_group.problem(view, ranks, backend)
    if problem is not None:
        return problem
    due = list(terms.names)
    findings = [finding for entry in ranks for finding in _findings(entry, due, terms)]
    return worst(findings, passed("")) if findings else _held(ranks, due, terms.limit)


def _findings(entry: Measured, due: list[str], terms: Terms) -> Iterator[Outcome]:
    raised: dict[str, list[str]] = {}
    for name in due:
        result: Any = (entry.get("cases") or {}).get(name) or {}
        if "raised" in result:
            raised.setdefault(str(result["raised"]), []).append(name)
        else:
            yield from _finding(entry, name, result, terms)
    for text, names in raised.items():
        subject = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} other cases"
        yield _failed(entry, names[0], f"{subject} raised {text}", terms, cases=names)


def _finding(entry: Measured, name: str, result: Measured, terms: Terms) -> Iterator[Outcome]:
    limit, value = terms.limit(name), result.get("off")
    if "wrong" in result:
        yield _failed(entry, name, f"{name}: {result['wrong']}", terms)
    elif isinstance(result.get("absent"), str) and result["absent"]:
        if not terms.may_lack(name):
            yield _failed(entry, name, f"{name} is missing: {result['absent']}", terms)
    elif "off" not in result:
        where = f"rank {entry['rank']} on {entry['device']}"
        yield undecided(
            f"{where}: {name} was not tried", fix="see the check's log", code="cases.not-tried", culprit=name
        )
    elif not (process_group.finite(value) and 0 <= float(value or 0) <= limit.value):
        error = value if process_group.finite(value) else None
        yield _failed(entry, name, f"{name} is off by {value}", terms, value=error, unit=limit.unit, limit=limit)


def _failed(entry: Measured, name: str, subject: str, terms: Terms, **more: Any) -> Outcome:
    where = f"rank {entry['rank']} on {entry['device']}"
    named = {"culprit": f"{where}: {name}", "rank": entry["rank"], "seed": entry.get("seed")}
    return failed(f"{where}: {subject}", fix=terms.fix, code=terms.code, **named, **more)


def _held(ranks: Ranks, due: list[str], limit: Callable[[str], Limit]) -> Outcome:
    cases: Measured = ranks[0].get("cases") or {}
    absent = {name: cases[name]["absent"] for name in due if "absent" in cases.get(name, {})}
    tried = [name for name in due if name not in absent]
    if not tried:
        return skipped("; ".join(dict.fromkeys(absent.values())) or "nothing to try", code="cases.unsupported")
    nearest = max(tried, key=lambda name: cases[name]["off"] / (float(limit(name).value) or 1.0))
    without = f"; not here: {len(absent)}, see the details" if absent else ""
    return passed(
        f"{counted(len(tried), 'case')} right on {counted(len(ranks), 'rank')}, seed "
        f"{ranks[0].get('seed')}; nearest to its limit: "
        f"{nearest}{without}",
        value=float(cases[nearest]["off"]),
        unit=limit(nearest).unit,
        limit=limit(nearest),
        seed=ranks[0].get("seed"),
        absent=absent,
    )
