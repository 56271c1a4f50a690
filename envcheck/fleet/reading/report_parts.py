"""The parts of a report that a fleet reads, as types: other fields are skipped, most that are missing have a default.

Reports of other versions, and of versions to come, are read as far as they say the same.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from envcheck.fleet.reading.configuration import GpuSignals, HostSignals

CheckStatus = Literal["pass", "warn", "fail", "skip", "error"]


class PlacePart(msgspec.Struct):
    """A node's place among those of its launcher."""

    node: str = ""
    node_rank: int = 0
    nodes: int = 1


class HostPart(msgspec.Struct):
    """The machine."""

    name: str = ""
    arch: str = ""
    place: PlacePart = msgspec.field(default_factory=PlacePart)


class GpuPart(msgspec.Struct):
    """A GPU."""

    uuid: str
    signals: GpuSignals = msgspec.field(default_factory=GpuSignals)


class SnapshotPart(msgspec.Struct):
    """What was read off the node."""

    signals: HostSignals = msgspec.field(default_factory=HostSignals)
    gpus: list[GpuPart] = []


class DetailsPart(msgspec.Struct):
    """Of an outcome's details the GPU that its value is about, and the curves."""

    device: Any = None
    curve: msgspec.Raw = msgspec.Raw()
    curves: msgspec.Raw = msgspec.Raw()


class OutcomePart(msgspec.Struct):
    """What a check came to."""

    id: str
    status: CheckStatus
    summary: str = ""
    value: Any = None
    unit: str = ""
    code: str = ""
    culprit: str = ""
    attempts: list[msgspec.Raw] = []
    details: DetailsPart = msgspec.field(default_factory=DetailsPart)


class VerdictPart(msgspec.Struct):
    """What the run came to."""

    status: Literal["pass", "fail", "error"]
    sentence: str = ""
    exit_code: int = 0


class PlanPart(msgspec.Struct):
    """Of the plan its level."""

    level: str = ""


class TargetPart(msgspec.Struct):
    """Of the target its image."""

    name: str = ""
    image_id: str | None = None


class GroupPart(msgspec.Struct):
    """Of the group of a run on several nodes its nodes, and the one that the report is of: "" in that of the group."""

    nodes: list[str] = []
    node: str = ""


class ReportPart(msgspec.Struct):
    """A report."""

    schema: str
    started: str
    ended: str
    host: HostPart
    verdict: VerdictPart
    outcomes: list[OutcomePart]
    snapshot: SnapshotPart
    mode: str = ""
    tool: str = ""
    boot: str = ""
    plan: PlanPart = msgspec.field(default_factory=PlanPart)
    target: TargetPart = msgspec.field(default_factory=TargetPart)
    environment: dict[str, Any] = {}
    promises: dict[str, str] = {}
    group: GroupPart | None = None
