"""The report of one run: a typed document with a published JSON Schema, written whole or not at all."""

from __future__ import annotations

import dataclasses
import os
import platform
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from envcheck import __version__, safe_files
from envcheck.errors import ConfigError
from envcheck.node.snapshot import Snapshot
from envcheck.runner.launcher import Place, place
from envcheck.runner.schema import (
    GroupFacts,
    Mode,
    OutcomeRow,
    Plan,
    Row,
    RunVerdict,
    TargetFacts,
    Timing,
    encodable,
    plain,
)
from envcheck.runner.state import EarlierRun, Run

SCHEMA: Final = "envcheck/report/1"
_ANY: Final = SCHEMA.rpartition("/")[0]
_FIX: Final = "give the file that `envcheck run --output` wrote"


class HostFacts(Row, frozen=True, kw_only=True):
    """The machine that envcheck ran on, and its place in a launcher's group."""

    name: str
    system: str
    kernel: str
    arch: str
    cpus: int
    place: Place


class RunReport(Row, frozen=True, kw_only=True):
    """One run. Times are UTC, ISO 8601; `ended` is empty and `verdict` never a pass while it is not over.

    `resolution` is what the resolver said of this machine and torch, when it was asked; `boot` the kernel's name for
    the boot it ran in; `resumed` when it was gone on with after it was cut short; `judged_by` the version of envcheck
    that judged its evidence again; `group` the nodes whose ranks measured together.
    """

    schema: Literal["envcheck/report/1"] = SCHEMA
    tool: str
    started: str
    ended: str
    host: HostFacts
    target: TargetFacts
    mode: Mode
    plan: Plan
    environment: dict[str, Any]
    promises: dict[str, str]
    snapshot: Snapshot
    outcomes: list[OutcomeRow]
    verdict: RunVerdict
    resolution: str | None = None
    boot: str = ""
    resumed: tuple[str, ...] = ()
    timing: Timing | None = None
    judged_by: str = ""
    group: GroupFacts | None = None


def report_of(run: Run) -> RunReport:
    """Return the report of a run, over or not."""
    return _encodable(
        RunReport(
            tool=__version__,
            started=run.started,
            ended=run.ended,
            host=_host(),
            target=run.asked.target.facts,
            mode=run.mode,
            plan=run.asked.plan,
            environment=plain(run.environment),
            promises=run.promises,
            snapshot=run.snapshot,
            outcomes=run.ordered,
            verdict=run.verdict,
            resolution=run.asked.resolution,
            boot=run.boot,
            resumed=tuple(run.resumed),
            timing=run.timing,
            group=run.nodes.facts if run.nodes else None,
        )
    )


def as_earlier(report: RunReport) -> EarlierRun:
    """Return what a run that goes on with this one takes over."""
    return EarlierRun(**{field.name: getattr(report, field.name) for field in dataclasses.fields(EarlierRun)})


def _encodable(report: RunReport) -> RunReport:
    """Return the report with text alone; a host's name or a path may be any bytes."""
    try:
        msgspec.json.encode(report)
    except UnicodeEncodeError:
        return msgspec.convert(encodable(msgspec.to_builtins(report)), RunReport)
    return report


def encode(report: RunReport) -> bytes:
    """Return the report as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def write(report: RunReport, path: Path) -> None:
    """Replace `path` by the report: a reader, or a crash, finds the old one or the new one."""
    safe_files.replace(path, encode(report))


def load(path: Path) -> RunReport:
    """Return a report from a file. Raise ConfigError, naming the field, if the file is not a report."""
    try:
        content = safe_files.read_whole(path, most=1 << 30)
        return msgspec.json.decode(content, type=RunReport)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise ConfigError(message, fix=_FIX) from error
    except RecursionError as error:
        message = f"{path} is not a report: it is nested deeper than any report"
        raise ConfigError(message, fix=_FIX) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        other = _other_version(content)
        message = f"{path} {other}" if other else f"{path} is not a report: {error}"
        fix = "read it with an envcheck of the version that wrote it" if other else _FIX
        raise ConfigError(message, fix=fix) from error


class _Head(msgspec.Struct):
    schema: str
    tool: str = __version__


def _other_version(content: bytes) -> str:
    """Say how another version of envcheck wrote a report; nothing of what is not a report, or of this version."""
    try:
        head = msgspec.json.decode(content, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    if head.schema == SCHEMA:
        other = f"was written by envcheck {head.tool[:20]}, whose reports have other fields than those of {__version__}"
        return other if head.tool != __version__ else ""
    return f"has another schema: {head.schema}, not {SCHEMA}" if head.schema.startswith(_ANY) else ""


def _host() -> HostFacts:
    return HostFacts(
        name=platform.node(),
        system=platform.system(),
        kernel=platform.release(),
        arch=platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        place=place(os.environ),
    )
