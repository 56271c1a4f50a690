"""Builds what tests begin with: recorded machines, what ranks measured, checks, the rows of outcomes, reports."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from envcheck.checks import Check, Outcome, View, passed
from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.reports.model import HostFacts, RunReport
from envcheck.runner.judging import Evidence, apply_rules, verdict
from envcheck.runner.launcher import Place
from envcheck.runner.planning import CheckModule
from envcheck.runner.schema import LimitRow, OutcomeRow, Plan, PlannedCheck, TargetFacts

DATA = Path(__file__).parent / "data"
H100 = "NVIDIA H100 80GB HBM3"
# What envcheck's worker says of a CUDA environment.
TORCH_CU128 = {
    "python": "3.12.3",
    "torch": "2.8.0+cu128",
    "cuda": "12.8",
    "cudnn": "9.10.2",
    "nccl": "2.27.3",
    "arch_list": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"],
}

Entry = dict[str, Any]


def plant(root: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files of a tree, with their directories."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())


SITE_CHECK = '''"""A check of this site."""
from envcheck.checks import Check, Limit, failed, passed, skipped, warned
CHECK = Check(promise="it holds", level="{level}", {options})
{measure}
def judge(view, ranks=()):
    return {outcome}
'''


def site_check(path: Path, outcome: str, measure: str = "", *, level: str = "quick", options: str = "") -> None:
    """Write a check of a site's own; one of the environment has a body of its measure too."""
    body = f"def measure(rank):\n    {measure}\n" if measure else ""
    plant(path.parent, {path.name: SITE_CHECK.format(outcome=outcome, measure=body, level=level, options=options)})


def machine(name: str) -> Snapshot:
    return msgspec.json.decode((DATA / "snapshots" / f"{name}.json").read_bytes(), type=Snapshot)


def gpu_view(name: str, promises: dict[str, str] | None = None, **environment: Any) -> View:
    """Return the view of a GPU machine, all of whose GPUs torch sees; anything of its environment can be overridden."""
    snapshot = machine(name)
    seen = {"device_count": len(snapshot.gpus), "devices": [{"uuid": gpu.uuid} for gpu in snapshot.gpus]}
    return View(snapshot, {**TORCH_CU128, **seen, **environment}, promises or {}, "gpu")


def cpu_view() -> View:
    return View(machine("cpu"), {"torch": "2.13.0+cpu", "cuda": None, "device_count": 0, "python": "3.11.2"})


def signals(values: Mapping[str, Any]) -> dict[str, Signal]:
    """Return signals by their names: {reason: …, why: …} stands for one without a value, a Signal for itself."""
    unread = {name: Signal(**value) for name, value in values.items() if isinstance(value, dict) and "why" in value}
    return {name: value if isinstance(value, Signal) else Signal(value) for name, value in values.items()} | unread


def put(view: View, **changes: Any) -> View:
    """Change signals of a node: `put(view, kernel__xids=[...])`; a Signal stands as it is, anything else is a value."""
    named = signals({name.replace("__", "."): value for name, value in changes.items()})
    snapshot = dataclasses.replace(view.snapshot, signals={**view.snapshot.signals, **named})
    return dataclasses.replace(view, snapshot=snapshot)


def put_gpu(view: View, indices: Sequence[int], **changes: Any) -> View:
    """Change signals of the GPUs with these indices: `put_gpu(view, [3], temperature=99)`."""
    named = signals(changes)
    gpus = [
        dataclasses.replace(gpu, signals={**gpu.signals, **named}) if index in indices else gpu
        for index, gpu in enumerate(view.snapshot.gpus)
    ]
    return dataclasses.replace(view, snapshot=dataclasses.replace(view.snapshot, gpus=gpus))


def group(
    measured: Mapping[str, Any] | Callable[[int], Mapping[str, Any]],
    world: int = 8,
    *,
    gpu: bool = True,
    view: View | None = None,
    **standing: Any,
) -> list[Entry]:
    """Return what each rank of a group reports: where it stands, and a copy of what was measured there.

    `measured` is the same for all, or a function of the rank. `view` has one rank stand on each of its GPUs.
    """
    devices = [f"GPU-{rank}" if gpu else "cpu" for rank in range(world)]
    devices = [each.uuid for each in view.snapshot.gpus] if view else devices
    where = {"world": len(devices), "host": "node1", "is_cuda": gpu, "backend": "nccl" if gpu else "gloo", **standing}
    return [
        {"rank": rank, "device": device, **where, **copy.deepcopy(measured(rank) if callable(measured) else measured)}
        for rank, device in enumerate(devices)
    ]


def check_module(
    identity: str = "speed", kind: Any = "env", judge: Callable[..., Any] = lambda *_: passed("fine"), **check: Any
) -> CheckModule:
    about = Check(**{"promise": "holds", "level": "quick", **check})
    return CheckModule(identity, kind, about, judge, "doc", f"module:{identity}", Path(f"{identity}.py"))


def row(identity: str, status: Any = "pass", summary: str | None = None, **more: Any) -> OutcomeRow:
    message = f"{identity} said so" if summary is None else summary
    return OutcomeRow(**{"id": identity, "kind": "env", "status": status, "summary": message, **more})


# What is too slow, as each form of a report shows it.
SLOW = row(
    "nccl",
    "fail",
    value=312.5,
    unit="GB/s",
    limit=LimitRow(value=380.0, unit="GB/s", source="a data sheet", kind="at least"),
    remedy="restart it",
)


def planned(identity: str, **changes: Any) -> PlannedCheck:
    check = {"kind": "env", "level": "quick", "promise": f"{identity} holds", "seconds": 2.0, "timeout": 30.0}
    return PlannedCheck(**{"id": identity, **check, "gpus": 1, "ranks": 0, "performance": True, **changes})


def report(*outcomes: OutcomeRow, mode: Any = "gpu", **facts: Any) -> RunReport:
    """Return the report of these outcomes: of an image on eight H100, or on a CPU."""
    signals = {"driver.version": Signal("570.124.06")}
    device = {"index": 0, "name": H100, "capability": "9.0", "uuid": "GPU-1", "memory": 80 << 30}
    environment = {"python": "3.12.3", "torch": "2.9.1+cu128", "cuda": "12.8", "cudnn": "9.10.2", "nccl": "2.27.5"}
    return RunReport(
        **{
            "tool": "0.1.0",
            "started": "2026-01-02T03:04:05+00:00",
            "ended": "2026-01-02T03:05:05+00:00",
            "host": HostFacts(name="n1", system="Linux", kernel="6.1", arch="x86_64", cpus=8, place=Place()),
            "target": TargetFacts(kind="image", name="registry.example/torch:1", chosen="--image", image_id="sha256:1"),
            "mode": mode,
            "plan": Plan(level="quick", checks=[planned(outcome.id) for outcome in outcomes], nproc=2),
            "environment": {**environment, "devices": [device] * 8 if mode == "gpu" else []},
            "promises": {"torch": "2.9.1+cu128"},
            "snapshot": Snapshot("", signals, [Gpu("GPU-1", {"name": Signal("H100")})]),
            "outcomes": list(outcomes),
            "verdict": verdict(outcomes, mode),
            **facts,
        }
    )


def after_rules(outcome: Outcome, check: CheckModule, details: dict[str, Any]) -> Outcome:
    """Return an outcome after the rules that follow its judge."""
    return apply_rules(outcome, Evidence(check, View(Snapshot()), details))
