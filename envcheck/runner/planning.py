"""Which checks there are, which of them a run does, in which order, and what fits into a time budget."""

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple

from envcheck.checks import LEVELS, Check
from envcheck.errors import ConfigError, refuse
from envcheck.runner.schema import Plan, PlannedCheck
from envcheck.runner.worker import rank_group

Kind = Literal["node", "env"]
_KINDS: tuple[Kind, ...] = ("node", "env")
_NEAR: Final = 9
# Before anything runs, Python and torch are taken to need this long: 2 s from a warm disk, tens from a cold or remote
# one. Once it runs, what they really took counts.
STARTING: Final = 5.0


class CheckModule(NamedTuple):
    """A check as it was found. `source` is where the worker loads it from."""

    id: str
    kind: Kind
    check: Check
    judge: Callable[..., Any]
    doc: str
    source: str
    path: Path


def discover(
    site: Path | None = None, hear: Callable[[ConfigError], None] | None = None, only: Collection[str] | None = None
) -> list[CheckModule]:
    """Return every check, ordered as it would run: by level, node before env, probes first, then by id.

    `site` is a user's own. A file of it that is no check raises ConfigError; with `hear` it is left out, and `hear`
    gets the error. Of envcheck's own checks those of `only` are imported (None: all).
    """
    modules = [f for kind in _KINDS for f in _shipped(kind, only)]
    site = site.absolute() if site else None
    own = [(kind, path) for kind in _KINDS for path in sorted((site / kind).glob("[!_]*.py"))] if site else []
    for kind, path in own:
        try:
            modules.append(checked_module(_load(path), kind, f"file:site/{path.name}"))
        except ConfigError as error:  # noqa: PERF203 (files are few)
            if hear is None:
                raise
            hear(error)
    if site and not own:
        refuse(f"{site} contains no check", "put files into its node/ and env/, as `envcheck checks ID` shows them")
    twice = {f.id for f in modules if sum(g.id == f.id for g in modules) > 1}
    if twice:
        refuse(f"two checks are named {', '.join(sorted(twice))}", "rename one file")
    return sorted(modules, key=lambda f: (LEVELS.index(f.check.level), _KINDS.index(f.kind), not f.check.probe, f.id))


def _shipped(kind: Kind, only: Collection[str] | None) -> list[CheckModule]:
    package = importlib.import_module(f"envcheck.checks.{kind}")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)
    chosen = [f"{package.__name__}.{name}" for name in names if only is None or name.replace("_", "-") in only]
    return [checked_module(importlib.import_module(name), kind, f"module:{name}") for name in chosen]


def _load(path: Path) -> ModuleType:
    try:
        return rank_group.load_file(path)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (what a user's file does when it is imported is not known)
        why = f"{path} cannot be imported: {type(error).__name__}: {error}"
        refuse(why, "a check imports torch inside functions only")


def checked_module(module: ModuleType, kind: Kind, source: str) -> CheckModule:
    """Return a module as a check. Raise ConfigError for one that is none."""
    path, check, doc = Path(module.__file__ or ""), getattr(module, "CHECK", None), (module.__doc__ or "").strip()
    if not isinstance(check, Check):
        refuse(f"check {path} has no CHECK", "add CHECK = Check(promise=…, level=…)")
    if check.level not in LEVELS:
        refuse(f"check {path} has the level {check.level!r}", f"use one of {', '.join(LEVELS)}")
    for name in ("judge", "measure") if kind == "env" else ("judge",):
        if not callable(getattr(module, name, None)):
            refuse(f"check {path} has no {name}", f"add `def {name}(…)`, see envcheck/checks/__init__.py")
    if not (doc or sys.flags.optimize > 1) or not check.promise.strip():  # PYTHONOPTIMIZE=2 drops docstrings
        fix = "write a docstring (what goes wrong in practice) and a promise"
        refuse(f"check {path} has no docstring or no promise", fix)
    return CheckModule(path.stem.replace("_", "-"), kind, check, module.judge, doc, source, path)


def select(
    modules: Sequence[CheckModule], level: str, only: Iterable[str] = (), skip: Iterable[str] = ()
) -> list[CheckModule]:
    """Return the checks of a level (each level holds the ones before it), or those of `only`; less `skip`."""
    included, excluded = ({identity.replace("_", "-") for identity in ids} for ids in (only, skip))
    unknown = sorted((included | excluded).difference(f.id for f in modules))
    if unknown:
        hints = [_near(modules, name) for name in unknown]
        told = hints if len(hints) == 1 else [f"{name}: {hint}" for name, hint in zip(unknown, hints, strict=True)]
        refuse(f"no check is named {' or '.join(unknown)}", "; ".join(told))
    upto = LEVELS[: LEVELS.index(level) + 1]
    chosen = [f for f in modules if (f.id in included if included else f.check.level in upto) and f.id not in excluded]
    if not chosen:
        refuse("no check is left to run", "remove one from --skip, or use a higher --level")
    return chosen


def plan(
    chosen: Iterable[CheckModule], *, level: str, nproc: int, timeout: float | None = None, **choices: Any
) -> Plan:
    """Return the plan; `timeout` replaces every check's own limit, `choices` are fields of Plan."""
    checks, names = [], ("level", "promise", "gpus", "ranks", "least_ranks", "performance")
    for module in chosen:
        check, seconds, factor_at = module.check, module.check.seconds, module.check.factor_at
        if choices.get("gpus") == 0 and check.cpu_seconds is not None:
            seconds, factor_at = check.cpu_seconds, check.cpu_factor_at or factor_at
        needs = {name: getattr(check, name) for name in names} | {"seconds": seconds * factor_at.get(level, 1.0)}
        checks.append(PlannedCheck(id=module.id, kind=module.kind, timeout=timeout or check.timeout, **needs))
    return Plan(level=level, checks=checks, nproc=nproc, **choices)


def _near(modules: Sequence[CheckModule], name: str) -> str:
    """Return which checks may have been meant: of a longer name, of that library or part, or of a name like it."""
    names = [f.id for f in modules]
    longer = [one for one in names if one.startswith(f"{name}-")]
    first = sorted(modules, key=lambda f: (f.kind, -f.check.least_ranks))  # of a library: what ranks do with it
    about = [f.id for f in first if name.lower() in f"{f.check.promise} {f.doc}".lower()]
    near = longer or about[:_NEAR] or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "see `envcheck checks`"


def most_telling_first(chosen: Sequence[CheckModule]) -> list[CheckModule]:
    """Return the checks in the order in which a budget is spent on them."""
    return sorted(
        chosen,
        key=lambda f: (
            *(f.kind == "env", LEVELS.index(f.check.level), not f.check.probe),
            *(f.check.performance, f.check.seconds, f.id),
        ),
    )


def expected_to_fit(plan: Plan) -> list[str]:
    """Return the ids that fit into the budget if each check takes what was planned for it; all without a budget."""
    left, fitting = float("inf") if plan.budget is None else plan.budget - STARTING, []
    for check in plan.checks:
        seconds = plan.seconds_of(check) if check.kind == "env" else 0.0
        if check.kind == "node" or seconds <= left:
            fitting.append(check.id)
            left -= seconds
    return fitting
