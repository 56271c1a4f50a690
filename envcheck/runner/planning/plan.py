"""Which of the checks a run will do, in which order, and for how long."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from envcheck.checks import LEVELS, Check
from envcheck.errors import ConfigError
from envcheck.runner.planning.discover import CheckModule
from envcheck.runner.schema import Plan, PlannedCheck


def select(
    modules: Sequence[CheckModule], level: str, only: Iterable[str] = (), skip: Iterable[str] = ()
) -> list[CheckModule]:
    """Return the checks of a level (each level holds the ones before it), or those of `only`; less `skip`."""
    included, excluded = _known_ids(modules, only), _known_ids(modules, skip)
    upto = LEVELS[: LEVELS.index(level) + 1]
    chosen = [f for f in modules if (f.id in included if included else f.check.level in upto) and f.id not in excluded]
    if not chosen:
        message = "no check is left to run"
        raise ConfigError(message, fix="remove one from --skip, or use a higher --level")
    return chosen


def plan(
    chosen: Iterable[CheckModule], *, level: str, nproc: int, timeout: float | None = None, **choices: Any
) -> Plan:
    """Return the plan; `timeout` replaces every check's own limit, `choices` are fields of Plan."""
    return Plan(level=level, checks=[_planned(f, timeout, choices.get("gpus")) for f in chosen], nproc=nproc, **choices)


def worker_plan(
    plan: Plan,
    sources: dict[str, str],
    *,
    ours: bool,
    spawn: bool,
    import_timeout: float,
    probes: Collection[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    imports: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the worker's plan. `ours`: its scratch lies beside the plan, and goes with it.

    `probes` are the ids of the checks that try peer-to-peer, `environment` is set for every rank; `imports`
    are what each check loads besides torch.
    """
    fields = ("id", "ranks", "least_ranks", "gpus", "seconds", "timeout")
    checks = [
        {
            "source": sources[c.id],
            "probe": c.id in probes,
            "imports": list(imports.get(c.id, ())),
            **{name: getattr(c, name) for name in fields},
        }
        for c in plan.checks
        if c.kind == "env"
    ]
    settings = {
        "nproc": plan.nproc,
        "budget": plan.budget,
        "ours": ours,
        "spawn": spawn,
        "import_timeout": import_timeout,
    }
    return {"checks": checks, "environment": dict(environment), **settings}


def planned_seconds(check: Check, gpus: int | None) -> float:
    """Return the seconds that one attempt is planned to take; `gpus` is None where the machine does not show them."""
    return check.cpu_seconds if gpus == 0 and check.cpu_seconds is not None else check.seconds


def _planned(module: CheckModule, timeout: float | None, gpus: int | None) -> PlannedCheck:
    check = module.check
    return PlannedCheck(
        id=module.id,
        kind=module.kind,
        level=check.level,
        promise=check.promise,
        seconds=planned_seconds(check, gpus),
        timeout=timeout or check.timeout,
        gpus=check.gpus,
        ranks=check.ranks,
        least_ranks=check.least_ranks,
        performance=check.performance,
    )


def _known_ids(modules: Sequence[CheckModule], ids: Iterable[str]) -> set[str]:
    names = [f.id for f in modules]
    chosen = {i.replace("_", "-") for i in ids}
    for name in sorted(chosen - set(names)):
        near = [one for one in names if one.startswith(f"{name}-")] or difflib.get_close_matches(
            name, names, n=3, cutoff=0.5
        )
        message = f"no check is named {name}"
        raise ConfigError(message, fix=f"did you mean {' or '.join(near)}?" if near else "see `envcheck checks`")
    return chosen
