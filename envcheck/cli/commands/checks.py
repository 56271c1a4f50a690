"""`envcheck checks`: what each check promises, runs on, costs and is held against; whether it has met a real GPU."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final

import click

from envcheck.checks import LEVELS, Limit, limits
from envcheck.cli import Settings
from envcheck.cli.options import Argument, ChecksDirectory, JsonOption, Option, command_with, complete_checks
from envcheck.cli.shared.process import print_answer, say, wrapped
from envcheck.counting import counted
from envcheck.errors import ConfigError, refuse
from envcheck.reports import phrases
from envcheck.runner.planning import CheckModule, discover, select

# (check, gpu, date, report) of each real GPU that a check has met, as `make checks` finds them in recorded reports.
MET: Final = Path(__file__).with_name("met.json")
# What each level is for, in a line.
_FOR: Final = {
    "static": "no GPU needed; what a build machine runs on an image",
    "quick": "what the node, its driver and torch report",
    "standard": "the target's Python on every GPU at once",
    "full": "long checks, and those that load the machine",
}
# Where a check runs, and how it is said in a table.
_RUNS: Final = {
    "node": "data read from the node",
    "GPU node": "data read from a node with a GPU",
    "Python": "one process of the environment's Python",
    "ranks": "a rank on every GPU, or several on a CPU",
    "GPUs": "a rank on every GPU",
}
_MISSED: Final = {"at least": "below", "at most": "above", "equal": "unless"}


class ChecksOptions(JsonOption):
    check: Annotated[str | None, Argument(metavar="[ID]", shell_complete=complete_checks)] = None
    level: Annotated[str | None, Option("Only what a run at this level runs.", type=click.Choice(LEVELS))] = None
    checks: ChecksDirectory = None


@command_with(ChecksOptions)
def command(options: ChecksOptions, _settings: Settings) -> int:
    """List every check, or describe one: promise, needs, cost, limits."""
    if options.check is not None and options.level is not None:
        refuse(f"--level lists the checks of a level, and {options.check} is one check", "leave one of them out")
    errors = list[ConfigError]()
    found = discover(options.checks, errors.append)
    modules = select(found, options.level or LEVELS[-1], only=[options.check] if options.check else [])
    for error in errors:
        say(str(error))
    lines = _described(modules[0]) if options.check else _table(modules)
    print_answer([_facts(module) for module in modules] if options.as_json else [], lines, as_json=options.as_json)
    return ConfigError.exit_code if errors else 0


def runs_on(module: CheckModule) -> str:
    """Return one of _RUNS."""
    if module.kind == "node":
        return "GPU node" if module.check.gpus else "node"
    if module.check.gpus:
        return "GPUs"
    return "Python" if module.check.ranks == 1 else "ranks"


def rows(module: CheckModule) -> list[dict[str, Any]]:
    """Return the rows of limits.json that bear the check's id, or that its CHECK names."""
    return [row for row in limits.rows() if row["check"] in (module.id, *module.check.limits)]


def met(identity: str) -> list[dict[str, str]]:
    """Return the GPUs that a check has met, each with model, date and the recorded report that shows it."""
    return [row for row in json.loads(MET.read_text(encoding="utf-8"))["met"] if row["check"] == identity]


def _facts(module: CheckModule) -> dict[str, Any]:
    about = {"runs_on": runs_on(module), "doc": module.doc, "met": met(module.id)}
    own = [dataclasses.asdict(limit) for limit in _constants(module)]
    checked = dataclasses.asdict(module.check)
    return {"id": module.id, "kind": module.kind, **checked, **about, "limits": rows(module) + own}


def _constants(module: CheckModule) -> list[Limit]:
    """Return the limits that stand in the check's own file, and in the helpers that it uses."""
    own = module.judge.__globals__
    helpers = [held for held in own.values() if isinstance(held, ModuleType) and "envcheck.checks." in held.__name__]
    return [value for space in (own, *map(vars, helpers)) for value in space.values() if isinstance(value, Limit)]


def _table(modules: Sequence[CheckModule]) -> Iterator[str]:
    widest = max(len(module.id) for module in modules)
    for level in LEVELS:
        checks = [module for module in modules if module.check.level == level]
        if not checks:
            continue
        seconds = sum(module.check.seconds for module in checks)
        cost = "under a second" if seconds < 1 else f"about {phrases.duration(seconds)}"
        yield wrapped(f"{level}: {counted(len(checks), 'check')}, {cost}: {_FOR[level]}", then="  ")
        for module in checks:
            start = f"  {module.id:<{widest}}  {runs_on(module):<8}  {f'{module.check.seconds:g} s':<6}  "
            yield wrapped(module.check.promise, start, " " * len(start))
        yield ""
    yield from (f"{name:<8}  {_RUNS[name]}" for name in dict.fromkeys(map(runs_on, modules)))
    run_on_gpu = sum(bool(met(module.id)) for module in modules)
    yield f"{run_on_gpu} of {len(modules)} have met a real GPU; `envcheck checks ID` says all about one."


def _described(module: CheckModule) -> Iterator[str]:
    check, runs = module.check, runs_on(module)
    again = "; a value that falls short is measured again" if check.performance else ""
    cpu = "" if check.cpu_seconds is None else f" ({check.cpu_seconds:g} s on a CPU)"
    models = [f"{row['gpu']} on {row['date']} ({row['report']})" for row in met(module.id)]
    yield f"{module.id}: level {check.level}"
    facts_of = {
        "promises": check.promise,
        "runs on": f"{runs}: {_RUNS[runs]}",
        "needs": counted(check.gpus, "GPU") if check.gpus > 1 else "",
        "signals": ", ".join(check.signals),
        "takes": f"{check.seconds:g} s{cpu}, ended after {check.timeout:g} s{again}",
        "met": "; ".join(models) or "no real GPU yet",
    }
    yield from (wrapped(text, f"  {title:<9} ", " " * 12) for title, text in facts_of.items() if text)
    for part in module.doc.split("\n\n"):
        is_block = all(line.startswith("  ") for line in part.splitlines())  # code and tables keep their lines
        yield from ("", part if is_block else wrapped(" ".join(part.split())))
    own = [(f"{one.kind} {phrases.quantity(one.value, one.unit)}", one.source) for one in _constants(module)]
    bounds = [*(_bound(row, module.id) for row in rows(module)), *own]
    yield from ["", "limits"] if bounds else []
    for bound, source in bounds:
        yield from (wrapped(bound, "  ", "    "), wrapped(source, "    ", "    "))


def _bound(row: dict[str, Any], identity: str) -> tuple[str, str]:
    verbs = {"fail": "fail" if limits.verified(row) else "warn", "warn": "warn"}
    # Where a limit that no second source confirms only warns, the stricter one alone decides.
    effective = {verb: row[word] for word, verb in verbs.items() if word in row}
    beyond = _MISSED[row.get("kind", "at least")]
    said = [f"{verb}s {beyond} {phrases.quantity(value, row['unit'])}" for verb, value in effective.items()]
    condition = _where(row, identity)
    return f"{condition}: {', '.join(said)}" if condition else ", ".join(said), f"{row['source']} ({row['date']})"


def _where(row: dict[str, Any], identity: str) -> str:
    models, link = ([held] if isinstance(held := row.get(key, []), str) else held for key in ("gpu", "transport"))
    conditions = [
        "" if row["check"] == identity else row["check"],
        f"{row['gpus']} x" if "gpus" in row else "",
        " or ".join(models),
        f"over {'/'.join(link)}" if link else "",
        f"over 16 lanes of PCIe generation {row['pcie']}" if "pcie" in row else "",
    ]
    return " ".join(filter(None, conditions))
