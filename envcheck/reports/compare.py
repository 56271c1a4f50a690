"""Two reports of one machine: what changed, and what got slower by more than its own noise.

A speed's shift is the median over the points of its curve of ln(after / before), turned so that slower is positive.
It counts when it passes the larger of

- the floor, as ln(1 + floor) (`--threshold`): 5 % where both ran on GPUs, as the rules of
  microsoft/superbenchmark have it (criteria x < -0.05) and healthy GPUs of one model are apart (stas00/ml-engineering,
  compute/accelerator); 30 % on a CPU that others use too, 25 % for latencies (ours), and
- the noise: 4 standard errors of that median, 4 x 1.2533 x s / sqrt(n), with s the standard deviation of the n points
  (of two equal curves of 7 normal points it calls 0.4 % different, of 4 points 1.5 %); and the spread of the repeats,
  (largest - smallest) / median, where either run repeated the check; of a repeated run the median is compared.

A GPU is the same one when its UUID is.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from envcheck.counting import counted, printable
from envcheck.reports import phrases
from envcheck.reports.measurements import SLOW_UNITS, PairMatrix, Points, RankMeasurements, ranks_of
from envcheck.reports.model import RunReport
from envcheck.reports.redact import UNKEYED
from envcheck.runner.schema import OutcomeRow, Row

FLOOR: Final = {"gpu": 0.05, "cpu": 0.30}
# From the best to the worst; only pass is a pass, so a skip where there was one is worse.
_WORSE: Final = ("pass", "warn", "skip", "error", "fail")
_COLUMNS: Final = 80
_HUGE: Final = 300.0
_STANDARD_ERRORS: Final = 4.0
_OF_MEDIAN: Final = 1.2533  # standard error of a median over that of a mean, for normal noise: sqrt(pi / 2)
_FACTS: Final = ("python", "torch", "cuda", "cudnn", "nccl", "arch_list")
_SIGNALS: Final = ("driver.version", "host.kernel", "host.os", "nvml.version")

Kind = Literal["status", "speed", "gpu", "fact", "verdict"]
# Latencies of microseconds differ from run to run on one machine; ours: a quarter more is reported.
_LATENCY_NOISE: Final = 0.25


class ReportChange(Row, frozen=True, kw_only=True):
    """One thing that differs. `worse` is a regression, None where neither is better.

    `shift` is the relative change of a speed's value, -0.1 for a tenth less, `threshold` what it had to pass.
    """

    kind: Kind
    what: str
    gpu: str = ""
    before: str
    after: str
    worse: bool | None = None
    shift: float | None = None
    threshold: float | None = None


class Comparison(Row, frozen=True, kw_only=True):
    """What differs between two reports. `compared` counts checks and speeds both have; `notes` say what was not."""

    schema: Literal["envcheck/comparison/1"] = "envcheck/comparison/1"
    changes: list[ReportChange]
    compared: int
    notes: list[str]

    @property
    def regressions(self) -> list[ReportChange]:
        """Return what got worse."""
        return [change for change in self.changes if change.worse]

    @property
    def exit_code(self) -> int:
        """Return 1 when anything got worse, else 3 when there was nothing to compare, else 0."""
        return 1 if self.regressions else 0 if self.compared else 3


def compare(before: RunReport, after: RunReport, floor: float | None = None) -> Comparison:
    """Return what differs; `floor` is the relative change below which a speed is the same."""
    old, new = ({o.id: o for o in report.outcomes} for report in (before, after))
    both = [identity for identity in old if identity in new]
    notes = [*_unlike(before, after), *_pseudonyms(before, after), *_only(after, old, new)]
    least = floor if floor is not None else FLOOR["gpu" if before.mode == after.mode == "gpu" else "cpu"]
    shifts: list[ReportChange | None] = []
    if before.mode == after.mode:
        shifts = [change for identity in both for change in _shifts(old[identity], new[identity], least)]
    changes = [
        *_gpu_changes(before, after),
        *(_status(old[i], new[i]) for i in both if old[i].status != new[i].status),
        *(
            ReportChange(kind="status", what=i, before=f"pass: {old[i].summary}", after="never ran", worse=True)
            for i in phrases.unfinished(after)
            if i in old and old[i].status == "pass"
        ),
        *(change for change in shifts if change is not None),
        *_facts(before, after),
    ]
    return Comparison(changes=changes, compared=len(both) + len(shifts), notes=notes)


def _unlike(before: RunReport, after: RunReport) -> Iterator[str]:
    if before.host.name != after.host.name:
        yield f"two machines: {before.host.name} and {after.host.name}"
    if before.mode != after.mode:
        yield f"one ran on {before.mode}, the other on {after.mode}: no speed was compared"
    for name, report in (("first", before), ("second", after)):
        if not report.ended:
            yield f"the {name} run was cut short"


def _pseudonyms(before: RunReport, after: RunReport) -> Iterator[str]:
    """Say of reports redacted without a key that their names are numbers: the n-th GPU need not be the n-th."""
    if any(uuid.startswith(UNKEYED) for report in (before, after) for uuid in phrases.uuids(report)):
        yield "GPUs are taken for the same by their order: redacted without a key, they are numbered in each report"


def _only(after: RunReport, old: dict[str, OutcomeRow], new: dict[str, OutcomeRow]) -> Iterator[str]:
    planned = {check.id for check in after.plan.checks}
    for name, ids in (
        ("first", [i for i in old if i not in new and i not in planned]),
        ("second", [i for i in new if i not in old]),
    ):
        if ids:
            yield f"only in the {name}: {', '.join(ids)}"


def _gpu_changes(before: RunReport, after: RunReport) -> Iterator[ReportChange]:
    old, new = phrases.uuids(before), phrases.uuids(after)
    # Two nodes have no GPU in common; a node that has one of its own left has lost the others.
    same = before.host.name == after.host.name or bool(set(old) & set(new))
    for uuid in [*old, *new] if same else []:
        if uuid not in new:
            yield ReportChange(kind="gpu", what="GPU", gpu=uuid, before="there", after="gone", worse=True)
        elif uuid not in old:
            yield ReportChange(kind="gpu", what="GPU", gpu=uuid, before="not there", after="there")


def _status(old: OutcomeRow, new: OutcomeRow) -> ReportChange:
    worse = _WORSE.index(new.status) > _WORSE.index(old.status)
    summaries = [f"{o.status}: {o.summary}" for o in (old, new)]
    return ReportChange(kind="status", what=old.id, before=summaries[0], after=summaries[1], worse=worse)


def _shifts(old: OutcomeRow, new: OutcomeRow, floor: float) -> Iterator[ReportChange | None]:
    earlier, later = speeds(old), speeds(new)
    measured = new.status in {"pass", "warn"}  # else its status says so already
    for key, series in earlier.items():
        if key in later and series.unit == later[key].unit and set(series.points) & set(later[key].points):
            yield _shift(key, series, later[key], floor)
        elif measured and key not in later and (not key.gpu or any(key.gpu == other.gpu for other in later)):
            # It is measured no more, though its check ran on that GPU: it may have changed.
            told: dict[str, Any] = {"before": _value_at(series, [*series.points][-1]), "after": "not measured"}
            yield ReportChange(kind="speed", what=f"{key.check} {key.quantity}", gpu=key.gpu, worse=True, **told)


def _shift(key: Key, old: Series, new: Series, floor: float) -> ReportChange | None:
    points = [point for point in old.points if point in new.points]
    sign = -1.0 if old.higher else 1.0
    ratios = [sign * (math.log(new.points[point]) - math.log(old.points[point])) for point in points]
    shift = statistics.median(ratios)
    noise = _STANDARD_ERRORS * _OF_MEDIAN * statistics.stdev(ratios) / math.sqrt(len(ratios)) if ratios[1:] else 0.0
    threshold = max(math.log1p(floor), noise, math.log1p(max(old.noise, new.noise)))
    if abs(shift) <= threshold:
        return None
    largest = points[-1]
    return ReportChange(
        kind="speed",
        what=f"{key.check} {key.quantity}{f' ({len(points)} sizes)' if len(points) > 1 else ''}",
        gpu=key.gpu,
        before=_value_at(old, largest),
        after=_value_at(new, largest),
        worse=shift > 0,
        shift=_share(sign * shift),
        threshold=_share(threshold),
    )


def _share(shift: float) -> float:
    return round(math.expm1(min(shift, _HUGE)), 4)


def _value_at(series: Series, point: str) -> str:
    return f"{phrases.quantity(series.points[point], series.unit)}{f' at {point}' if point else ''}"


def _facts(before: RunReport, after: RunReport) -> Iterator[ReportChange]:
    pairs: list[tuple[str, Any, Any]] = [("verdict", before.verdict.sentence, after.verdict.sentence)]
    pairs += [("envcheck", before.tool, after.tool), ("target", before.target.name, after.target.name)]
    pairs.append(("image", before.target.image_id, after.target.image_id))
    pairs += [(name, before.environment.get(name), after.environment.get(name)) for name in _FACTS]
    pairs += [(name, before.snapshot.signal(name).value, after.snapshot.signal(name).value) for name in _SIGNALS]
    for name, old, new in pairs:
        if old != new:
            kind: Kind = "verdict" if name == "verdict" else "fact"
            yield ReportChange(kind=kind, what=name, before=_fact(old), after=_fact(new))


def _fact(value: Any) -> str:
    return "nothing" if value is None else phrases.quantity(value, "")


def encode(comparison: Comparison) -> bytes:
    """Return the comparison as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=2) + b"\n"


def lines(comparison: Comparison) -> list[str]:
    """Return what people read, at 80 columns: what got worse, what got better, what else changed, and the sum of it."""
    sections = {
        "Worse": comparison.regressions,
        "Better": [change for change in comparison.changes if change.worse is False],
        "Changed": [change for change in comparison.changes if change.worse is None],
    }
    text = []
    for title, changes in sections.items():
        text += [title, *(line for same in _by_what(changes) for line in _change_lines(same)), ""] if changes else []
    text += [line for note in comparison.notes for line in _wrapped(f"note: {note}", "  ")]
    worse = len(comparison.regressions)
    end = counted(worse, "regression") if worse else "nothing got worse" if comparison.compared else "no match"
    return [*text, f"{end}; compared {counted(comparison.compared, 'check or speed', 'checks and speeds')}"]


def _by_what(changes: list[ReportChange]) -> list[list[ReportChange]]:
    groups: dict[tuple[str, str], list[ReportChange]] = {}
    for change in changes:
        groups.setdefault((change.kind, change.what), []).append(change)
    return list(groups.values())


def _change_lines(same: list[ReportChange]) -> list[str]:
    """Return a change with what was and what is; those of several GPUs under one head, a line each."""
    first = same[0]
    shifts = [change.shift for change in same if change.shift is not None]
    far = " to ".join(f"{shift:+.1%}" for shift in sorted({min(shifts), max(shifts)})) if shifts else ""
    least = f" (threshold {max(change.threshold or 0.0 for change in same):.1%})" if shifts else ""
    whose = first.gpu if len(same) == 1 else f"{len(same)} GPUs or ranks" if shifts else ""
    head = f"{first.what}{f' on {whose}' if whose else ''}{f': {far}{least}' if far else ''}"
    if len(same) > 1:
        each = (f"{change.gpu}: {change.before} -> {change.after}" for change in same)
        return [*_wrapped(head, "    ", "  "), *(line for text in each for line in _wrapped(text, " " * 8, " " * 6))]
    return [
        *_wrapped(head, "    ", "  "),
        *_wrapped(f"before  {first.before}", " " * 14, " " * 6),
        *_wrapped(f"after   {first.after}", " " * 14, " " * 6),
    ]


def _wrapped(text: str, later: str, first: str = "") -> list[str]:
    clean = printable(text)
    return textwrap.wrap(clean, _COLUMNS, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)


class Key(NamedTuple):
    """Whose speed it is: a check's own (`gpu` empty), or that of one of its GPUs, or rank on a CPU."""

    check: str
    gpu: str
    quantity: str


class Series(NamedTuple):
    """A quantity's points; `higher` says that more is better. `noise` is how far, relatively, it is known to move."""

    higher: bool
    points: dict[str, float]
    unit: str = ""
    noise: float = 0.0


def speeds(outcome: OutcomeRow) -> dict[Key, Series]:
    """Return every speed that an outcome holds; none if it has no value."""
    series: dict[Key, Series] = {}
    higher = True if outcome.unit.endswith("/s") else False if outcome.unit in SLOW_UNITS else None
    # Of a repeated run the median is compared, not the round that was judged.
    median = outcome.spread.median if outcome.spread else None
    value = median if median is not None else phrases.number(outcome.value)
    if value is not None and value > 0 and higher is not None:
        series[Key(outcome.id, "", "value")] = Series(higher, {"": value}, outcome.unit, _repeat_noise(outcome))
    for rank in ranks_of(outcome):
        series.update({Key(outcome.id, rank.gpu, name): one for name, one in _of_rank(rank)})
        if higher is not None:
            values = {name: value for name, value in rank.values.items() if value is not None and value > 0}
            for name, value in values.items():
                series[Key(outcome.id, rank.gpu, f"values.{name}")] = Series(higher, {"": value}, outcome.unit)
            series.update(_pairs(outcome, rank.pairs, higher=higher))
    return series


def _of_rank(rank: RankMeasurements) -> Iterator[tuple[str, Series]]:
    """Yield the curves of one rank; the speed over time as its median."""
    for collective, points in rank.seconds.items():
        yield (
            f"curves.{collective}.seconds" if collective else "curve.seconds",
            Series(higher=False, points=_by_size(points)),
        )
    for collective, points in rank.latencies.items():
        yield f"latency.{collective}.p50", Series(higher=False, points=_by_size(points), noise=_LATENCY_NOISE)
    if speed := [value for _, value in rank.over_time["speed"]]:
        yield "points.tflops", Series(higher=True, points={"": statistics.median(speed)})


def _by_size(points: Points) -> dict[str, float]:
    return {phrases.size(at): value for at, value in points}


def _pairs(outcome: OutcomeRow, pairs: PairMatrix | None, *, higher: bool) -> dict[Key, Series]:
    """Return a matrix from GPU to GPU as a speed of each pair, by UUIDs."""
    if pairs is None or not pairs.gpus:
        return {}
    return {
        Key(outcome.id, f"{source} -> {target}", "rate"): Series(higher, {"": rate}, outcome.unit)
        for source, row in zip(pairs.gpus, pairs.rows, strict=True)
        for target, rate in zip(pairs.gpus, row, strict=True)
        if rate is not None and rate > 0
    }


def _repeat_noise(outcome: OutcomeRow) -> float:
    """Return (largest - smallest) / middle of what the same run measured more than once."""
    repeats = outcome.spread.values if outcome.spread else [phrases.number(a.value) for a in outcome.attempts]
    values = sorted(value for value in repeats if value is not None and value > 0)
    return (values[-1] - values[0]) / values[len(values) // 2] if len(values) > 1 else 0.0
