"""The answer for a fleet, as the typed document `envcheck/fleet/1`."""

from typing import Final, Literal

import msgspec

from envcheck.runner.schema import Row

SCHEMA: Final = "envcheck/fleet/1"
# A clock may be this wrong, in seconds, before what it says is doubted.
CLOCK_SLACK: Final = 300.0
FleetStatus = Literal["pass", "fail", "error"]
NodeState = Literal["pass", "fail", "error", "missing", "stale"]
BadState = Literal["fail", "error", "missing", "stale"]
# The states that are no pass, the worst first.
BAD: Final[tuple[BadState, ...]] = ("fail", "error", "missing", "stale")


class FleetGroup(Row, frozen=True, kw_only=True):
    """Nodes of one kind: of one GPU model, cell and driver branch."""

    gpu: str
    cell: str
    driver: str
    nodes: int


class NodeStates(Row, frozen=True, kw_only=True):
    """How many nodes passed, and which did not. `error` are undetermined."""

    passed: int = msgspec.field(name="pass")
    fail: list[str]
    error: list[str]
    missing: list[str]
    stale: list[str]

    def of(self, state: BadState) -> list[str]:
        """Return the nodes in a state."""
        return list(getattr(self, state))


class ConfigurationDrift(Row, frozen=True, kw_only=True):
    """A signal in which nodes of a group differ.

    `majority` is the value of more than half of them, None where no value is; `share` that of the most frequent value.
    `others` are the nodes of each other value. `group` counts from 0 in `groups`.
    """

    group: int
    signal: str
    majority: str | None
    share: float
    others: dict[str, list[str]]


class Outlier(Row, frozen=True, kw_only=True):
    """A value far from the median of its group: z counts scaled median absolute deviations; `gpu` "" where unknown.

    `repeat` is how often the check measured it.
    """

    group: int
    check: str
    node: str
    gpu: str
    value: float
    median: float
    unit: str
    z: float
    repeat: int


class UnreadFile(Row, frozen=True, kw_only=True):
    """A file that is not a report that can be read; `node` as its name says, "" for one that is ignored."""

    file: str
    node: str
    reason: str


class FleetBlame(Row, frozen=True, kw_only=True):
    """What failed: a node, or one GPU of it; `by` are the checks with their codes."""

    kind: Literal["node", "gpu"]
    who: str
    node: str
    by: list[str]


class FleetVerdict(Row, frozen=True, kw_only=True):
    """What the fleet came to; `good` is a Slurm host list of the nodes to use now."""

    status: FleetStatus
    exit_code: int
    good: str
    blame: list[FleetBlame]
    sentence: str


class FleetReport(Row, frozen=True, kw_only=True):
    """The answer. `at` is UTC, ISO 8601; `files` is how many were read.

    `reasons` has a line for each node that did not pass; `notes` a line for what else was noticed.
    """

    schema: Literal["envcheck/fleet/1"] = SCHEMA
    tool: str
    at: str
    files: int
    groups: list[FleetGroup]
    nodes: NodeStates
    reasons: dict[str, str]
    drift: list[ConfigurationDrift]
    outliers: list[Outlier]
    unread: list[UnreadFile]
    notes: list[str]
    verdict: FleetVerdict


def encode(document: msgspec.Struct) -> bytes:
    """Return a document as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
