"""What the last run of a node came to, whether it answers a gate's question now, and the file that keeps it."""

import contextlib
import hashlib
import math
import os
import platform
import re
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from envcheck import __version__, safe_files
from envcheck.checks import LEVELS, View
from envcheck.checks.gpu_readings import users
from envcheck.counting import counted, printable
from envcheck.data import state_path
from envcheck.node.collect import boot_id, collect, shown_gpus
from envcheck.node.host import kernel_module
from envcheck.reports.model import RunReport, report_of, write
from envcheck.runner.execute import Run, Watcher, validate
from envcheck.runner.judging import LOST_GPUS
from envcheck.runner.local_python import Target
from envcheck.runner.planning import discover, most_telling_first, plan, select
from envcheck.runner.schema import OutcomeRow, VerdictStatus
from envcheck.runner.worker_session import RunPlan

# What Slurm's `scontrol show node` and Kubernetes' termination message show in one line (contract of `fleet gate`).
REASON_LENGTH: Final = 120
SUMMARY_LENGTH: Final = 200
# Where the rendered scripts keep a node's verdicts unless --state says otherwise.
STATE: Final = "/var/lib/envcheck"
_LIMIT: Final = 1 << 16
_GPU_REQUIRED: Final = "gpu.required"
# Node checks that fail for what a torch, an image or a job's variables are, on any sound node ...
_OF_ENVIRONMENT: Final = frozenset({"arch-list", "driver-cuda", "gpu-visible", "image-promises", "visible-devices"})
# ... and checks in the environment that measure hardware; of a Python on the node itself also its operating system.
_OF_HARDWARE: Final = frozenset(
    {"dcgm-diag", "disk-read", "gemm-throughput", "memory-bandwidth", "memory-patterns", "pcie-under-load"}
    | {"peer-bandwidth", "peer-to-peer", "sustained-gemm"}
)
_OF_SYSTEM: Final = frozenset({"memlock", "name-resolution", "shm"})
# Links are trained, fabrics set up and ports configured in the minutes after a boot (NVIDIA/NVSentinel#1701).
_AFTER_BOOT: Final = frozenset({"fabric", "infiniband", "nvlink", "p2p-status"})
_NOT_READY: Final = 802  # what cuInit says before a fabric is set up, or a partition of shared switches made
_SETTLED: Final = 600.0
_UNPARTITIONED: Final = ("fabric.shared", "fabric.unpartitioned", "fabric.unsure")
# What a run adds where no GPU, or no torch, is there to be seen; no check of these names ever passes.
_BY_GPU: Final = ("require-gpu", LOST_GPUS)


class GatedEnvironment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which environment; `state` is an image's id (empty for one by digest), or the fingerprint of a Python's files."""

    kind: Literal["python", "image"]
    name: str
    state: str


class Boot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a verdict holds for. `uptime` is seconds since the boot, a clock that nobody can set."""

    node: str
    boot: str
    driver: str
    gpus: int
    uptime: float


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run came to. `check` and `summary` are of the first outcome that decided; empty for a pass.

    `of_node`: hardware, driver or operating system of the node failed, not the environment alone; `node_unsure`: a
    check of them gave no answer; `settling`: only what is set up after a boot failed, soon after one. `covered` are the
    checks that found nothing, `again` those that failed or gave none.
    """

    schema: Literal["envcheck/gate/1"] = "envcheck/gate/1"
    tool: str = __version__
    subject: GatedEnvironment
    at: Boot
    level: str
    mode: Literal["gpu", "cpu", "unknown"]
    status: VerdictStatus
    check: str = ""
    summary: str = ""
    left_out: int = 0
    require_gpu: bool = False
    only_gpu_required: bool = False
    of_node: bool = False
    node_unsure: bool = False
    settling: bool = False
    covered: tuple[str, ...] = ()
    again: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Return the words for a drained node: "envcheck: CHECK: SUMMARY", at most 120 characters."""
        start = f"envcheck: {one_line(self.check, SUMMARY_LENGTH // 4)}: "
        return start + one_line(self.summary, REASON_LENGTH - len(start))

    @property
    def decided_by(self) -> str:
        """Return "CHECK: SUMMARY", the summary of at most 200 characters."""
        return f"{self.check or 'nothing passed'}: {one_line(self.summary)}"


class GateQuestion(NamedTuple):
    """What a gate wants to know: may work start in this environment, judged at this level, at most so long ago."""

    subject: GatedEnvironment
    level: str
    require_gpu: bool
    max_age: float


def one_line(text: str, most: int = SUMMARY_LENGTH) -> str:
    """Return text as one line that a terminal, Slurm and YAML can show: its last `most` characters.

    What is wrong stands at the end; a line often begins with a path.
    """
    words = " ".join(printable(text).replace('"', "'").split())
    return words if len(words) <= most else "..." + words[3 - most :].lstrip()


def image_subject(image: str, image_id: str | None, python: str | None) -> GatedEnvironment:
    """Return an image, or a Python in it, as a verdict names it; an image by digest needs no id of the engine's."""
    name = f"{image} {python}" if python else image
    return GatedEnvironment(kind="image", name=name, state="" if by_digest(image) else image_id or "")


def by_digest(image: str) -> bool:
    """Tell whether an image's name holds its digest."""
    return re.search(r"@sha256:[0-9a-f]{64}$", image) is not None


def of_report(report: RunReport, subject: GatedEnvironment, at: Boot) -> NodeVerdict | None:
    """Return the verdict of a run that has ended, else None; a torch that cannot be imported says nothing of GPUs."""
    if not report.ended:
        return None
    status = report.verdict.status
    failed = [row for row in report.outcomes if row.status == "fail"]
    ran = datetime.fromisoformat(report.ended) - datetime.fromisoformat([report.started, *report.resumed][-1])
    late = _AFTER_BOOT | ({"gpu-visible", _GPU_REQUIRED} if report.environment.get("cuinit") == _NOT_READY else set())
    young = at.uptime - max(0.0, ran.total_seconds()) < _SETTLED and all(
        not late.isdisjoint({row.id, row.code}) for row in failed
    )
    if "error" in report.environment and {(row.kind, row.code) for row in failed} == {("env", _GPU_REQUIRED)}:
        status = "error"
    decided = [row for row in report.outcomes if row.status == status != "pass"]
    if failed and young:
        status = "error"
    first = next((row for row in decided if of_node(row, report)), next(iter(decided), None))
    covered = [row.id for row in report.outcomes if row.status in ("pass", "warn")]
    covered += [*(_BY_GPU if report.mode == "gpu" else ()), *([] if "error" in report.environment else ["torch"])]
    return NodeVerdict(
        subject=subject,
        at=at,
        level=report.plan.level,
        mode=report.mode,
        status=status,
        check=first.id if first else "",
        summary=one_line(first.summary if first else report.verdict.sentence) if status != "pass" else "",
        left_out=sum(row.left_out for row in report.outcomes),
        require_gpu=report.plan.require_gpu,
        only_gpu_required=status == "fail" and all(row.code == _GPU_REQUIRED for row in failed),
        of_node=status == "fail" and first is not None and of_node(first, report),
        node_unsure=any(
            (row.kind, row.status) == ("node", "error") and of_node(row, report) for row in report.outcomes
        ),
        settling=bool(failed) and young,
        covered=tuple(covered),
        again=tuple(row.id for row in report.outcomes if row.status in ("fail", "error")),
    )


def of_node(row: OutcomeRow, report: RunReport) -> bool:
    """Tell whether an outcome is about hardware, driver or operating system of the node, not the environment on it."""
    if row.id == "gpu-visible" or row.code == _GPU_REQUIRED:
        # A torch without CUDA sees no GPU on a sound node, nor does one before a partition of shared switches is made;
        # what NVML does not show, no torch can see.
        codes = {other.code for other in report.outcomes if report.environment.get("cuinit") == _NOT_READY}
        unable = not report.environment.get("cuda") or not codes.isdisjoint(_UNPARTITIONED)
        return not unable or (row.kind == "node" and row.code == _GPU_REQUIRED)
    system = _OF_SYSTEM if report.target.kind == "python" else frozenset()
    return row.id not in _OF_ENVIRONMENT if row.kind == "node" else row.id in _OF_HARDWARE | system


def why_unusable(kept: NodeVerdict, question: GateQuestion, now: Boot) -> str:
    """Return why a kept verdict does not answer the question now; "" where it does.

    A failure answers for every level, and of any age for levels below its own, whose checks cannot take it back; a pass
    for its own level and those below; what was undetermined is run again.
    """
    age = now.uptime - kept.at.uptime
    lasts = kept.status == "fail" and kept.level in LEVELS[LEVELS.index(question.level) + 1 :]
    reasons = (
        (kept.subject != question.subject, "it is about another environment"),
        (kept.at.node != now.node, f"it is about node {one_line(kept.at.node)}"),
        (not now.boot or kept.at.boot != now.boot, "the node was booted since"),
        (kept.at.driver != now.driver, f"the driver was {one_line(kept.at.driver) or 'none'}"),
        (kept.at.gpus != now.gpus, f"the node showed {counted(kept.at.gpus, 'GPU')}"),
        (not math.isfinite(age) or age < 0, "it is from the future"),
        (age > question.max_age and not lasts, f"it is {age:.0f} s old"),
        (kept.status == "error", "it was undetermined"),
        (kept.level not in LEVELS, "its level is unknown"),
        (kept.only_gpu_required and not question.require_gpu, "it failed for the GPU that only --require-gpu wants"),
    )
    first = next((why for wrong, why in reasons if wrong), "")
    if first or kept.status == "fail":
        return first
    if LEVELS.index(kept.level) < LEVELS.index(question.level):
        return f"its level is {kept.level}"
    return "its run saw no GPU" if question.require_gpu and kept.mode != "gpu" else ""


def replaces(new: NodeVerdict, kept: NodeVerdict | None) -> bool:
    """Tell whether a verdict replaces the kept one: a lower level takes back nothing that a higher one found."""
    if kept is None or kept.status != "fail" or kept.level not in LEVELS:
        return True
    was, is_ = ((one.subject, one.at.node, one.at.boot, one.at.driver) for one in (kept, new))
    return was != is_ or LEVELS.index(new.level) >= LEVELS.index(kept.level)


def this_boot(environ: Mapping[str, str] = os.environ, driver: Path = Path("/proc/driver/nvidia")) -> Boot:
    """Return this node as it is now. The name is Slurm's or Kubernetes' where they give one, else the host's."""
    name = environ.get("SLURMD_NODENAME") or environ.get("NODE_NAME") or platform.node().partition(".")[0]
    version = gpus = None
    with contextlib.suppress(OSError, UnicodeDecodeError):
        version, _ = kernel_module((driver / "version").read_text(encoding="utf-8"))
    with contextlib.suppress(OSError):
        gpus = len(list((driver / "gpus").iterdir()))
    return Boot(
        node=name, boot=boot_id(), driver=version or "", gpus=gpus or 0, uptime=time.clock_gettime(time.CLOCK_BOOTTIME)
    )


def in_pod(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether this process is in a pod of Kubernetes and not on a node of Slurm."""
    return "KUBERNETES_SERVICE_HOST" in environ and "SLURMD_NODENAME" not in environ


def fingerprint(python: Path) -> str:
    """Return what changes when an interpreter is replaced, or a package is installed beside it or removed."""
    prefix = python.parent.parent
    packages = sorted(prefix.glob("lib*/python3*/*-packages"))
    looked_at = [python, prefix / "pyvenv.cfg", prefix / "envcheck-promises.json", *packages]
    return hashlib.sha256("\n".join(map(_state, looked_at)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _state(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return f"{path}: absent"
    size = 0 if path.is_dir() else status.st_size
    return f"{path}: {status.st_dev} {status.st_ino} {status.st_mtime_ns} {size}"


def path_of(node: str, subject: GatedEnvironment) -> Path:
    """Return where the verdict is kept: below $ENVCHECK_HOME, else in the user's data directory."""
    key = hashlib.sha256(msgspec.json.encode([node, subject.kind, subject.name])).hexdigest()
    return state_path("gate", f"verdict-{key[:16]}.json")


def read(path: Path) -> NodeVerdict | None:
    """Return a kept verdict; None where there is none, or only what another user, a crash or another version left."""
    try:
        content = safe_files.read(path, _LIMIT + 1)
        return msgspec.json.decode(content, type=NodeVerdict) if len(content) <= _LIMIT else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def to_recheck(node: str) -> list[NodeVerdict]:
    """Return the kept verdicts of a node that failed; where none did, all of them."""
    kept = [verdict for path in sorted(state_path("gate").glob("verdict-*.json")) if (verdict := read(path))]
    here = [verdict for verdict in kept if verdict.at.node == node]
    return [verdict for verdict in here if verdict.status == "fail"] or here


def merged(new: NodeVerdict, kept: NodeVerdict) -> NodeVerdict:
    """Return what a run of a kept verdict's `again` alone makes of it; a check that did not run gave no answer."""
    # What else failed is no answer either, unless it is the node's own fault.
    missed = [name for name in kept.again if name not in new.covered and name not in new.again]
    if new.of_node or new.status == "error" or not missed:
        return msgspec.structs.replace(new, covered=tuple(dict.fromkeys((*kept.covered, *new.covered))))
    why = "it failed before, and it was skipped now"
    return msgspec.structs.replace(new, status="error", check=missed[0], summary=why, again=kept.again)


def keep(verdict: NodeVerdict) -> Path:
    """Write a verdict, unless the kept one still says more; return its file. Raises OSError where it cannot be kept."""
    path = path_of(verdict.at.node, verdict.subject)
    path.parent.mkdir(parents=True, exist_ok=True)
    if replaces(verdict, read(path)):
        safe_files.put(path, msgspec.json.encode(verdict), 0o600)
    return path


def keep_run(report: RunReport, python: str | None) -> None:
    """Keep the verdict of a whole run for the gate, if it has ended and can be kept; `python` is one in the image."""
    target = report.target
    if target.kind == "image":
        subject = image_subject(target.name, target.image_id, python)
    else:
        subject = GatedEnvironment(kind="python", name=target.name, state=fingerprint(Path(target.name)))
    verdict = of_report(report, subject, this_boot())
    if verdict is not None:
        with contextlib.suppress(OSError):
            keep(verdict)


def gpu_users() -> str:
    """Return who holds a GPU of this node now, or computes on it: "" for nobody."""
    return ", ".join(user.text() for user in users(View(collect())))


def run_checks(
    target: Target, level: str, budget: float | None, *, require_gpu: bool, only: Collection[str] = ()
) -> RunReport:
    """Run the checks of a level, or `only` some, that fit into `budget` seconds, the most telling first."""
    found = discover()
    known = {module.id for module in found}
    chosen = most_telling_first(select(found, level, only if known.issuperset(only) else ()))
    planned = plan(chosen, level=level, nproc=2, gpus=shown_gpus(), require_gpu=require_gpu, budget=budget)
    run = Run(RunPlan(plan=planned, chosen=chosen, target=target, stretch=True))
    validate(run, collect, Watcher())  # a prolog has no reader
    return report_of(run)


def keep_report(report: RunReport, verdict_file: Path) -> None:
    """Write a report beside its verdict, where there is room for it."""
    path = verdict_file.with_name(verdict_file.name.replace("verdict-", "report-"))
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(report, path)
