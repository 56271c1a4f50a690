"""All about the checks themselves: what each runs on, where its limits come from, and whether it has met a real GPU."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from envcheck.checks import ERROR, LEVELS, SKIP, Limit, limits
from envcheck.counting import counted
from envcheck.reports import phrases
from envcheck.reports.model import RunReport
from envcheck.runner.planning import CheckModule

_WIDTH: Final = 80
_BOUNDS: Final = ("fail", "warn")
_MISSED: Final = {"at least": "below", "at most": "above", "equal": "unless"}
MET: Final = Path(__file__).with_name("met.json")
# What each level is for, in a line.
FOR: Final = {
    "static": "no GPU needed; what a build machine runs on an image",
    "quick": "what the node, its driver and torch report",
    "standard": "the target's Python on every GPU at once",
    "full": "long checks, and those that load the machine",
}
# Where a check runs, and how it is said in a table.
RUNS: Final = {
    "node": "data read from the node",
    "GPU node": "data read from a node with a GPU",
    "Python": "one process of the environment's Python",
    "ranks": "a rank on every GPU, or several on a CPU",
    "GPUs": "a rank on every GPU",
}


def runs_on(module: CheckModule) -> str:
    """Return one of RUNS."""
    if module.kind == "node":
        return "GPU node" if module.check.gpus else "node"
    if module.check.gpus:
        return "GPUs"
    return "Python" if module.check.ranks == 1 else "ranks"


def levels(modules: Iterable[CheckModule]) -> dict[str, list[CheckModule]]:
    """Return the checks by level, in the order of the levels; only those that hold any."""
    groups: dict[str, list[CheckModule]] = {level: [] for level in LEVELS}
    for each in modules:
        groups[each.check.level].append(each)
    return {level: checks for level, checks in groups.items() if checks}


def rows(module: CheckModule) -> list[dict[str, Any]]:
    """Return the rows of limits.json that bear the check's id, or that its CHECK names."""
    return [row for row in limits.rows() if row["check"] in (module.id, *module.check.limits)]


def constants(module: CheckModule) -> list[Limit]:
    """Return the limits that stand in the check's own file, and in the helpers that it uses."""
    own = module.judge.__globals__
    helpers = [held for held in own.values() if isinstance(held, ModuleType) and "envcheck.checks." in held.__name__]
    spaces = [own, *map(vars, helpers)]
    return [value for names in spaces for value in names.values() if isinstance(value, Limit)]


def met(identity: str) -> list[dict[str, str]]:
    """Return the GPUs that a check has met, each with model, date and the recorded report that shows it."""
    rows: list[dict[str, str]] = json.loads(MET.read_text(encoding="utf-8"))["met"]
    return [row for row in rows if row["check"] == identity]


def met_in(reports: Iterable[tuple[str, RunReport]]) -> list[dict[str, str]]:
    """Return what recorded reports, each with its name, show to have met a GPU: a row a check and model."""
    seen_in: dict[tuple[str, str], dict[str, str]] = {}
    for name, report in reports:
        for identity in _proved(report):
            for model in sorted({str(gpu.signal("name").value) for gpu in report.snapshot.gpus}):
                row = {"check": identity, "gpu": model, "date": report.started[:10], "report": name}
                seen_in.setdefault((identity, model), row)
    return [seen_in[key] for key in sorted(seen_in)]


def _proved(report: RunReport) -> Iterable[str]:
    """Yield the checks that came to something on real GPUs; a snapshot that does not say recorded shows none."""
    if report.mode != "gpu" or report.snapshot.signal("origin").value != "recorded":
        return
    for outcome in report.outcomes:
        elsewhere = any(isinstance(rank, dict) and rank.get("is_cuda") is False for rank in outcome.ranks)
        if outcome.status not in (SKIP, ERROR) and not elsewhere:
            yield outcome.id


def markdown(modules: Sequence[CheckModule]) -> str:
    """Return the table of docs/checks.md."""
    lines = ["| check | level | runs on | promise | met a GPU |", "|---|---|---|---|---|"]
    for each in modules:
        models = ", ".join(dict.fromkeys(row["gpu"] for row in met(each.id))) or "not yet"
        promise = each.check.promise.replace("|", "\\|")
        lines.append(f"| `{each.id}` | {each.check.level} | {runs_on(each)} | {promise} | {models} |")
    return "\n".join([*lines, ""])


def table(modules: Sequence[CheckModule]) -> Iterator[str]:
    """Yield the lines of all checks by level, at 80 columns."""
    widest = max(len(f.id) for f in modules)
    for level, checks in levels(modules).items():
        seconds = sum(f.check.seconds for f in checks)
        cost = "under a second" if seconds < 1 else f"about {phrases.duration(seconds)}"
        head = f"{level}: {counted(len(checks), 'check')}, {cost}: {FOR[level]}"
        yield _wrapped(head, "  ")
        for f in checks:
            start = f"  {f.id:<{widest}}  {runs_on(f):<8}  {f'{f.check.seconds:g} s':<6}  "
            yield start + _wrapped(f.check.promise, " " * len(start), len(start))
        yield ""
    for name in dict.fromkeys(runs_on(f) for f in modules):
        yield f"{name:<8}  {RUNS[name]}"
    run_on_gpu = sum(bool(met(f.id)) for f in modules)
    yield f"{run_on_gpu} of {len(modules)} have met a real GPU; `envcheck checks ID` says all about one."


def described(f: CheckModule) -> Iterator[str]:
    """Yield the lines that say all about one check."""
    runs = runs_on(f)
    yield from (f"{f.id}: level {f.check.level}", f"  promises  {_wrapped(f.check.promise, ' ' * 12, 12)}")
    yield f"  runs on   {runs}: {RUNS[runs]}"
    if f.check.gpus > 1:
        yield f"  needs     {counted(f.check.gpus, 'GPU')}"
    if f.check.signals:
        yield f"  signals   {_wrapped(', '.join(f.check.signals), ' ' * 12, 12)}"
    second_measurement = "; a value that falls short is measured again" if f.check.performance else ""
    cpu = "" if f.check.cpu_seconds is None else f" ({f.check.cpu_seconds:g} s on a CPU)"
    takes = f"{f.check.seconds:g} s{cpu}, ended after {f.check.timeout:g} s{second_measurement}"
    yield f"  takes     {_wrapped(takes, ' ' * 12, 12)}"
    models = [f"{row['gpu']} on {row['date']} ({row['report']})" for row in met(f.id)]
    yield f"  met       {'; '.join(models) or 'no real GPU yet'}"
    for part in f.doc.split("\n\n"):
        yield from ("", part if _is_block(part) else _wrapped(part))
    bounds = list(_rows(f))
    for limit in constants(f):
        bounds.append(_wrapped(f"  {limit.kind} {phrases.quantity(limit.value, limit.unit)}", "    "))
        bounds.append(_wrapped(f"    {limit.source}", "    "))
    if bounds:
        yield from ("", "limits", *bounds)


def _is_block(part: str) -> bool:
    """Tell code and tables, which keep their lines, from prose."""
    return all(line.startswith("  ") for line in part.splitlines())


def _rows(f: CheckModule) -> Iterator[str]:
    for row in rows(f):
        beyond = _MISSED[row.get("kind", "at least")]
        verbs = ["warn" if word == "fail" and not limits.verified(row) else word for word in _BOUNDS]
        # Where a limit that no second source confirms only warns, the stricter one alone decides.
        effective = {verb: row[word] for verb, word in zip(verbs, _BOUNDS, strict=True) if word in row}
        bounds = [f"{verb}s {beyond} {phrases.quantity(value, row['unit'])}" for verb, value in effective.items()]
        yield _wrapped(f"  {_where(row, f.id)}{', '.join(bounds)}", "    ")
        yield _wrapped(f"    {row['source']} ({row['date']})", "    ")


def _where(row: dict[str, Any], identity: str) -> str:
    models = row.get("gpu", [])
    count = [f"{row['gpus']} x"] if "gpus" in row else []
    link = row.get("transport", [])
    conditions = ["over " + "/".join([link] if isinstance(link, str) else link)] if link else []
    conditions += [f"over 16 lanes of PCIe generation {row['pcie']}"] if "pcie" in row else []
    named = [] if row["check"] == identity else [row["check"]]
    of = " or ".join([models] if isinstance(models, str) else models)
    condition = " ".join([*named, *count, of, *conditions]).strip()
    return f"{condition}: " if condition else ""


def _wrapped(text: str, indent: str = "", used: int = 0) -> str:
    """Return the text at 80 columns; `used` columns of the first line are taken already."""
    lead = len(text) - len(text.lstrip())
    # An option, a repository or a path that is cut at its hyphen cannot be copied.
    filled = textwrap.fill(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=" " * max(lead, used),
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return filled[used:]


def facts(f: CheckModule) -> dict[str, Any]:
    """Return all about one check, as JSON has it."""
    catalogue_facts = {"runs_on": runs_on(f), "doc": f.doc, "met": met(f.id)}
    own = [dataclasses.asdict(limit) for limit in constants(f)]
    return {"id": f.id, "kind": f.kind, **dataclasses.asdict(f.check), **catalogue_facts, "limits": rows(f) + own}
