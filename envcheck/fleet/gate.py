"""What the last run of a node came to, whether it answers a gate's question now, and the file that keeps it."""

import contextlib
import hashlib
import math
import os
import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from envcheck import __version__, safe_files
from envcheck.checks import LEVELS
from envcheck.counting import counted, printable
from envcheck.data import state_path
from envcheck.node.collect import collect
from envcheck.node.host import kernel_module
from envcheck.reports.model import RunReport, report_of, write
from envcheck.runner.container import shown_gpus
from envcheck.runner.execute import Run, boot_id, validate
from envcheck.runner.local_python import Target
from envcheck.runner.planning import discover, most_telling_first, plan, select
from envcheck.runner.schema import VerdictStatus
from envcheck.runner.worker_session import RunPlan

# What Slurm's `scontrol show node` and Kubernetes' termination message show in one line (contract of `fleet gate`).
SUMMARY_LENGTH: Final = 60
UNDETERMINED_LENGTH: Final = 200
_LIMIT: Final = 1 << 16
_GPU_REQUIRED: Final = "gpu.required"
_DIGEST: Final = re.compile(r"@sha256:[0-9a-f]{64}$")


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
    """What a run came to. `check` and `summary` are of the first outcome that decided; empty for a pass."""

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
    only_gpu_required: bool = False
    report: str = ""

    @property
    def reason(self) -> str:
        """Return the words for a drained node: "envcheck: CHECK: SUMMARY", at most 60 characters of the summary."""
        return f"envcheck: {self.decided_by}"

    @property
    def decided_by(self) -> str:
        """Return "CHECK: SUMMARY"; the summary of what is undetermined drains no node and has 200 characters."""
        most = UNDETERMINED_LENGTH if self.status == "error" else SUMMARY_LENGTH
        return f"{self.check or 'nothing passed'}: {one_line(self.summary, most)}"


class GateQuestion(NamedTuple):
    """What a gate wants to know: may work start in this environment, judged at this level, at most so long ago."""

    subject: GatedEnvironment
    level: str
    require_gpu: bool
    max_age: float


def one_line(text: str, most: int = SUMMARY_LENGTH) -> str:
    """Return text as one line of at most `most` characters that a terminal, Slurm and YAML can show."""
    words = " ".join(printable(text).replace('"', "'").split())
    return words if len(words) <= most else words[: most - 3].rstrip() + "..."


def image_subject(image: str, image_id: str | None, python: str | None) -> GatedEnvironment:
    """Return an image, or a Python in it, as a verdict names it; an image by digest needs no id of the engine's."""
    name = f"{image} {python}" if python else image
    return GatedEnvironment(kind="image", name=name, state="" if by_digest(image) else image_id or "")


def by_digest(image: str) -> bool:
    """Tell whether an image's name holds its digest."""
    return _DIGEST.search(image) is not None


def of_report(report: RunReport, subject: GatedEnvironment, at: Boot, where: str = "") -> NodeVerdict | None:
    """Return the verdict of a run that has ended, else None; a torch that cannot be imported says nothing of GPUs."""
    if not report.ended:
        return None
    status = report.verdict.status
    failed = [row for row in report.outcomes if row.status == "fail"]
    if "error" in report.environment and {(row.kind, row.code) for row in failed} == {("env", _GPU_REQUIRED)}:
        status = "error"
    first = next((row for row in report.outcomes if row.status == status != "pass"), None)
    most = UNDETERMINED_LENGTH if status == "error" else SUMMARY_LENGTH
    return NodeVerdict(
        subject=subject,
        at=at,
        level=report.plan.level,
        mode=report.mode,
        status=status,
        check=first.id if first else "",
        summary=one_line(first.summary if first else report.verdict.sentence, most) if status != "pass" else "",
        left_out=sum(row.left_out for row in report.outcomes),
        only_gpu_required=status == "fail" and all(row.code == _GPU_REQUIRED for row in failed),
        report=where,
    )


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


_DRIVER: Final = Path("/proc/driver/nvidia")


def this_boot(environ: Mapping[str, str] = os.environ, driver: Path = _DRIVER) -> Boot:
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


def keep(verdict: NodeVerdict) -> Path:
    """Write a verdict, unless the kept one still says more; return its file. Raises OSError where it cannot be kept."""
    path = path_of(verdict.at.node, verdict.subject)
    path.parent.mkdir(parents=True, exist_ok=True)
    if replaces(verdict, read(path)):
        safe_files.put(path, msgspec.json.encode(verdict), 0o600)
    return path


def keep_run(report: RunReport, where: Path | None, python: str | None) -> None:
    """Keep the verdict of a whole run for the gate, if it has ended and can be kept; `python` is one in the image."""
    target = report.target
    if target.kind == "image":
        subject = image_subject(target.name, target.image_id, python)
    else:
        subject = GatedEnvironment(kind="python", name=target.name, state=fingerprint(Path(target.name)))
    verdict = of_report(report, subject, this_boot(), str(where.absolute()) if where else "")
    if verdict is not None:
        with contextlib.suppress(OSError):
            keep(verdict)


class _Silent:
    """A watcher that shows nothing: a prolog has no reader."""

    def running(self, check: str) -> None:
        pass

    def learned(self, run: Run) -> None:
        pass


def run_checks(target: Target, level: str, budget: float, *, require_gpu: bool) -> RunReport:
    """Run the checks of a level that fit into `budget` seconds, the most telling first, and return the report."""
    chosen = most_telling_first(select(discover(), level))
    planned = plan(chosen, level=level, nproc=2, gpus=shown_gpus(), require_gpu=require_gpu, budget=budget)
    run = Run(RunPlan(plan=planned, chosen=chosen, target=target, stretch=True))
    validate(run, collect, _Silent())
    return report_of(run)


def keep_report(report: RunReport, verdict_file: Path) -> str:
    """Write a report beside its verdict and return its path; "" where there is no room for it."""
    path = verdict_file.with_name(verdict_file.name.replace("verdict-", "report-"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(report, path)
    except OSError:
        return ""
    return str(path)
