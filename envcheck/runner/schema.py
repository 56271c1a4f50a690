"""What a run leaves behind, as typed data: the parts a report is made of."""

from typing import Any, Literal

import msgspec

Status = Literal["pass", "warn", "fail", "skip", "error"]
VerdictStatus = Literal["pass", "fail", "error"]
Mode = Literal["gpu", "cpu", "unknown"]


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part."""


class PlannedCheck(Row, frozen=True, kw_only=True):
    """One check of a plan. `ranks` 0 is one a GPU, or `nproc` on a CPU; seconds and timeout are of one attempt."""

    id: str
    kind: Literal["node", "env"]
    level: str
    promise: str
    seconds: float
    timeout: float
    gpus: int
    ranks: int
    least_ranks: int = 1
    performance: bool


class Plan(Row, frozen=True, kw_only=True):
    """What a run will do, printable before it does it.

    `budget` is the seconds within which checks are begun. A repeated run does all of it `repeat` times, or begins again
    until `duration` seconds are over. `gpus` is how many the machine shows before the run, None if that is unknown; a
    check that needs more takes no time.
    """

    level: str
    checks: list[PlannedCheck]
    nproc: int
    gpus: int | None = None
    require_gpu: bool = False
    budget: float | None = None
    repeat: int = 1
    duration: float | None = None

    @property
    def seconds(self) -> float:
        """Return how long the checks themselves are expected to take."""
        return max(sum(map(self.seconds_of, self.checks)) * self.repeat, self.duration or 0.0)

    def seconds_of(self, check: PlannedCheck) -> float:
        """Return how long a check is expected to take here: no time where the machine shows too few GPUs for it."""
        if self.gpus is None:
            return check.seconds
        alone = check.ranks == 0 and (self.gpus or self.nproc) < check.least_ranks
        return 0.0 if alone or check.gpus > self.gpus else check.seconds

    @property
    def repeated(self) -> bool:
        """Tell whether it is done more than once."""
        return self.repeat > 1 or self.duration is not None


class ImageFacts(Row, frozen=True, kw_only=True):
    """What the engine says of an image: as whom it runs ("" for root), and the name of the program it starts.

    `history` is how many instructions made it, and `secrets` where in them, in its labels or in what it starts a
    credential stands: by its name, never its value.

    A digest ("sha256:...") is None where the engine does not state it; `repository_digests` are REPOSITORY@DIGEST, and
    `diff_ids` the digests of the unpacked layers, the lowest first.
    """

    runs_as: str
    program: str
    history: int
    secrets: list[str]
    manifest_digest: str | None = None
    config_digest: str | None = None
    index_digest: str | None = None
    repository_digests: list[str] = []
    diff_ids: list[str] = []


class TargetFacts(Row, frozen=True, kw_only=True):
    """Whose environment was run. `chosen` says why this one.

    Of an image, `image_id` is the engine's sha256 and `image` what else the engine says of it.
    """

    kind: Literal["python", "image"]
    name: str
    chosen: str
    image_id: str | None = None
    image: ImageFacts | None = None


class LimitRow(Row, frozen=True, kw_only=True):
    """A bound something was judged by: a Limit of `envcheck.checks`, of which a report says everything."""

    value: Any
    unit: str
    source: str
    kind: str


class ChangeRow(Row, frozen=True, kw_only=True):
    """A status that a rule changed after the judge, and why: judging.OUTCOME_RULES or outcomes.ROW_RULES."""

    rule: str
    before: str
    after: str
    reason: str


class FindingRow(Row, frozen=True, kw_only=True):
    """One of the findings of a check. `code` is stable; `culprit` is the GPU, rank, link or file it is about.

    `remeasure` says that a speed fell short and nothing else.
    """

    status: Status
    summary: str
    value: Any = None
    unit: str = ""
    limit: LimitRow | None = None
    remedy: str = ""
    code: str = ""
    culprit: str = ""
    remeasure: bool = False


class Attempt(FindingRow, frozen=True, kw_only=True):
    """One measurement of a check: what it came to alone, how long it took, and how much of that was `measure`.

    `round` counts from 1. `shown` marks the attempt whose outcome the row shows, and whose measurements are the row's
    `ranks`; another one that was no pass has its measurements in its own `ranks`.
    """

    summary: str = ""
    seconds: float
    body: float
    round: int = 1
    shown: bool = False
    ranks: list[Any] = []


class Spread(Row, frozen=True, kw_only=True):
    """What a check came to over all rounds: rounds by status, and the smallest, middle and largest of its values.

    `told_in` is the round, from 1, whose outcome the row shows: the first of the worst status. `values` are those that
    are numbers, in the order of the rounds; without one there is no smallest.
    """

    rounds: int
    statuses: dict[str, int]
    told_in: int
    values: list[float] = []
    smallest: float | None = None
    median: float | None = None
    largest: float | None = None


class GroupFacts(Row, frozen=True, kw_only=True):
    """The nodes of a run that measured together, by name, and how many ranks each had. `run` tells such runs apart.

    `node` is the one whose report this is; "" in the report of the whole group, which holds the ranks of all.
    """

    run: str
    nodes: list[str]
    ranks: list[int]
    node: str = ""


class Timing(Row, frozen=True, kw_only=True):
    """Seconds of a run: planned for its checks, taken in all, and of these until Python and torch had started."""

    planned: float
    taken: float
    starting: float


class OutcomeRow(Row, frozen=True, kw_only=True):
    """What a check came to. `ranks` are the measurements it was judged by, `log` what its processes said last.

    `findings` are all findings, worst first, where there is more than one; `code`, `culprit` and `remeasure` as theirs.
    `attempts` are all measurements, over all rounds. `planned` is what one attempt was expected to take, `seconds` what
    the one that is shown took. `changes` say which rules changed the status. `left_out`: there was no time for it.
    """

    id: str
    kind: Literal["node", "env"]
    status: Status
    summary: str
    value: Any = None
    unit: str = ""
    limit: LimitRow | None = None
    remedy: str = ""
    code: str = ""
    culprit: str = ""
    remeasure: bool = False
    findings: list[FindingRow] = []
    changes: list[ChangeRow] = []
    details: dict[str, Any] = {}
    planned: float = 0.0
    seconds: float = 0.0
    attempts: list[Attempt] = []
    ranks: list[Any] = []
    log: str = ""
    left_out: bool = False
    spread: Spread | None = None

    @property
    def rounds(self) -> int:
        """Return how often the check has come to an outcome."""
        return self.spread.rounds if self.spread else 1


class RunVerdict(Row, frozen=True, kw_only=True):
    """What a run came to: `status`, the exit code that says the same, and the sentence a report ends with."""

    status: VerdictStatus
    exit_code: int
    sentence: str
    counts: dict[str, int]


def encodable(value: Any) -> Any:
    """Return a value of JSON's kinds whose strings UTF-8 can hold: a byte of a path that is no text is an escape."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(k): encodable(v) for k, v in value.items()}
    return [encodable(v) for v in value] if isinstance(value, list) else value
