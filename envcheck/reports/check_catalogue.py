"""All about the checks themselves: what each runs on, where its limits come from, and whether it has met a real GPU."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from envcheck.checks import ERROR, LEVELS, SKIP, Limit, limits
from envcheck.reports.model import RunReport
from envcheck.runner.planning import CheckModule

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
    """Return the rows of limits.json that bear the check's id, or that its file or a helper that it uses names."""
    files = [module.path, *(Path(helper.__file__ or "") for helper in _helpers(module))]
    names = frozenset({module.id}).union(*map(_words, files))
    return [row for row in limits.rows() if row["check"] in names]


@functools.cache
def _words(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def constants(module: CheckModule) -> list[Limit]:
    """Return the limits that stand in the check's own file, and in the helpers that it uses."""
    spaces = [module.judge.__globals__, *map(vars, _helpers(module))]
    return [value for names in spaces for value in names.values() if isinstance(value, Limit)]


def _helpers(module: CheckModule) -> list[ModuleType]:
    held = module.judge.__globals__.values()
    return [module for module in held if isinstance(module, ModuleType) and ".support." in module.__name__]


@functools.cache
def _gpu_runs() -> tuple[dict[str, str], ...]:
    return tuple(json.loads(MET.read_text(encoding="utf-8"))["met"])


def met(identity: str) -> list[dict[str, str]]:
    """Return the GPUs that a check has met, each with model, date and the recorded report that shows it."""
    return [row for row in _gpu_runs() if row["check"] == identity]


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
