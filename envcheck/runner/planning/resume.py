"""Going on where a killed run stopped: only the same plan, on the same target, with the same torch, driver and boot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from envcheck.errors import ConfigError
from envcheck.node.snapshot import Snapshot
from envcheck.runner.schema import OutcomeRow, Plan, TargetFacts, Timing

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_FACTS: Final = ("python", "executable", "prefix", "torch", "cuda", "cudnn", "nccl", "start")
_DRIVER: Final = ("driver.version", "driver.kernel")


class EarlierRun(Protocol):
    """What a report says of a run that may be gone on with."""

    @property
    def tool(self) -> str:
        """The version of envcheck."""

    @property
    def boot(self) -> str:
        """The kernel's name for the boot it ran in."""

    @property
    def started(self) -> str:
        """When it began."""

    @property
    def ended(self) -> str:
        """When it was over; empty for one that was cut short."""

    @property
    def resumed(self) -> tuple[str, ...]:
        """When it was gone on with before."""

    @property
    def plan(self) -> Plan:
        """What it was to do."""

    @property
    def target(self) -> TargetFacts:
        """Whose environment it was in."""

    @property
    def environment(self) -> dict[str, Any]:
        """What the target's Python said; empty when it had not spoken yet."""

    @property
    def snapshot(self) -> Snapshot:
        """What was read off the node."""

    @property
    def outcomes(self) -> list[OutcomeRow]:
        """What was known."""

    @property
    def timing(self) -> Timing | None:
        """How long it took so far."""


def boot_id() -> str:
    """Return the kernel's name for this boot; empty where it tells none."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def refuse_unlike(earlier: EarlierRun, plan: Plan, target: TargetFacts, tool: str, where: Path) -> None:
    """Raise a ConfigError, saying what differs, unless this plan on this target and boot is what was cut short."""
    if earlier.ended:
        message = f"the run in {where} is complete"
        raise ConfigError(message, fix="leave --resume out to run again")
    differences = [
        *_difference("envcheck", earlier.tool, tool),
        *_plans(earlier.plan, plan),
        *_targets(earlier.target, target),
    ]
    if earlier.boot != (now := boot_id()) or not now:
        differences.append("the machine was rebooted since, or it is another machine")
    refuse(differences, where)


def refuse(differences: list[str], where: Path) -> None:
    """Raise a ConfigError naming what differs; nothing when nothing does."""
    if differences:
        message = f"cannot resume {where}: {'; '.join(differences)}"
        raise ConfigError(message, fix="leave --resume out to start again")


def changed(before: Mapping[str, Any], now: Mapping[str, Any], node_before: Snapshot, node_now: Snapshot) -> list[str]:
    """Say how an environment and its driver differ from what they were; nothing of one that was not known before."""
    if not before:
        return []
    differences = [line for name in _FACTS for line in _difference(name, before.get(name), now.get(name))]
    differences += _difference("GPUs", _devices(before), _devices(now))
    for name in _DRIVER:
        differences += _difference(name, node_before.signal(name).value, node_now.signal(name).value)
    return differences


def _plans(before: Plan, now: Plan) -> list[str]:
    differences = [
        line
        for name in before.__struct_fields__
        if name not in {"checks", "gpus"}
        for line in _difference(f"--{name.replace('_', '-')}", _option(before, name), _option(now, name))
    ]
    ids = {check.id for check in before.checks} ^ {check.id for check in now.checks}
    if ids:
        differences.append(f"the checks differ by {', '.join(sorted(ids))}")
    elif before.checks != now.checks:
        odd = [a.id for a, b in zip(before.checks, now.checks, strict=True) if a != b]
        differences.append(f"what is planned differs for {', '.join(odd)}")
    return differences


def _option(plan: Plan, name: str) -> Any:
    value = getattr(plan, name)
    return "not given" if value is None else value


def _targets(before: TargetFacts, now: TargetFacts) -> list[str]:
    return [*_difference("target", before.name, now.name), *_difference("image", before.image_id, now.image_id)]


def _difference(name: str, before: Any, now: Any) -> list[str]:
    then, today = ("unknown" if value is None else value for value in (before, now))
    return [] if before == now else [f"{name} was {then}, is {today}"]


def _devices(environment: Mapping[str, Any]) -> str:
    return ", ".join(str(d.get("uuid") or d.get("name")) for d in environment.get("devices") or []) or "none"
