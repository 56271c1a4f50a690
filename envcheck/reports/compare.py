"""Two reports of one machine: what changed, and what got slower by more than its own noise. GPUs are told by UUID.

A speed's shift is the median over the points of its curve of ln(after / before), turned so that slower is positive.
It counts when it passes the larger of

- the floor, as ln(1 + floor) (`--threshold`): 5 % on GPUs, as the rules of microsoft/superbenchmark have it (criteria
  x < -0.05) and healthy GPUs of one model are apart (stas00/ml-engineering, compute/accelerator); 30 % on a CPU that
  others use too, 25 % for latencies (ours), and
- the noise: 4 standard errors of that median, 4 x 1.2533 x s / sqrt(n), with s the standard deviation of the n points;
  and the spread of the repeats, (largest - smallest) / median, where either run repeated the check.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

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


class ReportChange(Row, frozen=True):
    """One thing that differs. `worse` is a regression, None where neither is better.

    `shift` is the relative change of a speed's value, -0.1 for a tenth less, `threshold` what it had to pass.
    """

    kind: Kind
    what: str
    before: str
    after: str
    gpu: str = ""
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
    least = floor if floor is not None else FLOOR["gpu" if before.mode == after.mode == "gpu" else "cpu"]
    alike = both if before.mode == after.mode and not _other_models(before, after) else []
    shifts = [change for identity in alike for change in _shifts(old[identity], new[identity], least)]
    never = [old[i] for i in phrases.unfinished(after) if i in old and old[i].status == "pass"]
    lost = [ReportChange("status", o.id, f"pass: {o.summary}", "never ran", worse=True) for o in never]
    changes = [
        *_gpu_changes(before, after),
        *(_status(old[i], new[i], _apart(before, after)) for i in both if old[i].status != new[i].status),
        *lost,
        *(change for change in shifts if change is not None),
        *_facts(before, after),
    ]
    return Comparison(changes=changes, compared=len(both) + len(shifts), notes=[*_notes(before, after, old, new)])


def _notes(
    before: RunReport, after: RunReport, old: dict[str, OutcomeRow], new: dict[str, OutcomeRow]
) -> Iterator[str]:
    if before.host.name != after.host.name:
        yield f"two machines: {before.host.name} and {after.host.name}"
    if before.mode != after.mode:
        yield f"one ran on {before.mode}, the other on {after.mode}: no speed was compared"
    elif _other_models(before, after):
        yield f"one ran on {_models(before)}, the other on {_models(after)}: no speed was compared"
    named = (("first", before), ("second", after))
    yield from (f"the {name} run was cut short" for name, report in named if not report.ended)
    if any(uuid.startswith(UNKEYED) for report in (before, after) for uuid in phrases.uuids(report)):
        # The n-th GPU need not be the n-th.
        yield "GPUs are taken for the same by their order: redacted without a key, they are numbered in each report"
    planned = {check.id for check in after.plan.checks}
    only = {"first": [i for i in old if i not in new and i not in planned], "second": [i for i in new if i not in old]}
    yield from (f"only in the {name}: {', '.join(ids)}" for name, ids in only.items() if ids)


def _gpu_changes(before: RunReport, after: RunReport) -> Iterator[ReportChange]:
    old, new = phrases.uuids(before), phrases.uuids(after)
    # Two nodes have no GPU in common; a node that has one of its own left has lost the others.
    if before.host.name == after.host.name or set(old) & set(new):
        yield from (ReportChange("gpu", "GPU", "there", "gone", uuid, worse=True) for uuid in old if uuid not in new)
        yield from (ReportChange("gpu", "GPU", "not there", "there", uuid) for uuid in new if uuid not in old)


def _gpu_names(report: RunReport) -> Counter[str]:
    return Counter(str(device["name"]) for device in phrases.devices(report.environment) if device.get("name"))


def _models(report: RunReport) -> str | None:
    return ", ".join(f"{count} x {name}" for name, count in sorted(_gpu_names(report).items())) or None


def _other_models(before: RunReport, after: RunReport) -> bool:
    old, new = (set(_gpu_names(report)) for report in (before, after))
    return bool(old and new) and old != new


def _apart(before: RunReport, after: RunReport) -> set[tuple[str, str]]:
    """Return the changes of status that say nothing, by mode and ranks; a skip for fewer GPUs is worse."""
    old, new = ((r.mode, len(phrases.devices(r.environment)), r.plan.nproc) for r in (before, after))
    if old == new or (old[0] == "gpu" and old[:2] == new[:2]):
        return set()
    return {("skip", "pass")} | ({("pass", "skip")} if old[1] <= new[1] else set())


def _status(old: OutcomeRow, new: OutcomeRow, apart: set[tuple[str, str]]) -> ReportChange:
    worse = _WORSE.index(new.status) > _WORSE.index(old.status) if (old.status, new.status) not in apart else None
    return ReportChange("status", old.id, f"{old.status}: {old.summary}", f"{new.status}: {new.summary}", worse=worse)


def _shifts(old: OutcomeRow, new: OutcomeRow, floor: float) -> Iterator[ReportChange | None]:
    earlier, later = speeds(old), speeds(new)
    measured = new.status in {"pass", "warn"}  # else its status says so already
    for key, series in earlier.items():
        if key in later and series.unit == later[key].unit and set(series.points) & set(later[key].points):
            yield _shift(key, series, later[key], floor)
        elif measured and key not in later and (not key.gpu or any(key.gpu == other.gpu for other in later)):
            # It is measured no more, though its check ran on that GPU: it may have changed.
            was = _value_at(series, [*series.points][-1])
            yield ReportChange("speed", f"{key.check} {key.quantity}", was, "not measured", key.gpu, worse=True)


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
    sizes = f" ({len(points)} sizes)" if len(points) > 1 else ""
    values = _value_at(old, largest), _value_at(new, largest)
    far, least = (round(math.expm1(min(value, _HUGE)), 4) for value in (sign * shift, threshold))
    return ReportChange("speed", f"{key.check} {key.quantity}{sizes}", *values, key.gpu, shift > 0, far, least)


def _value_at(series: Series, point: str) -> str:
    return f"{phrases.quantity(series.points[point], series.unit)}{f' at {point}' if point else ''}"


def _facts(before: RunReport, after: RunReport) -> Iterator[ReportChange]:
    one, other = (
        {
            "verdict": report.verdict.sentence,
            "envcheck": report.tool,
            "target": report.target.name,
            "image": report.target.image_id,
            "GPUs": _models(report),
            **{name: report.environment.get(name) for name in _FACTS},
            **{name: report.snapshot.signal(name).value for name in _SIGNALS},
        }
        for report in (before, after)
    )
    for name, old in one.items():
        if old != other[name]:
            was, now = ("nothing" if value is None else phrases.quantity(value, "") for value in (old, other[name]))
            yield ReportChange("verdict" if name == "verdict" else "fact", name, was, now)


def lines(comparison: Comparison) -> list[str]:
    """Return what people read, at 80 columns: what got worse, what got better, what else changed, and the sum of it."""
    text = []
    for title, worse in (("Worse", True), ("Better", False), ("Changed", None)):
        groups: dict[tuple[str, str], list[ReportChange]] = {}
        for change in comparison.changes:
            if change.worse is worse:
                groups.setdefault((change.kind, change.what), []).append(change)
        text += [title, *(line for same in groups.values() for line in _change_lines(same)), ""] if groups else []
    text += [line for note in comparison.notes for line in _wrapped(f"note: {note}", 0, 2)]
    bad = len(comparison.regressions)
    end = counted(bad, "regression") if bad else "nothing got worse" if comparison.compared else "no match"
    return [*text, f"{end}; compared {counted(comparison.compared, 'check or speed', 'checks and speeds')}"]


def _change_lines(same: list[ReportChange]) -> list[str]:
    """Return a change with what was and what is; those of several GPUs under one head, a line each."""
    first = same[0]
    shifts = [change.shift for change in same if change.shift is not None]
    far = " to ".join(f"{shift:+.1%}" for shift in sorted({min(shifts), max(shifts)})) if shifts else ""
    least = f" (threshold {max(change.threshold or 0.0 for change in same):.1%})" if shifts else ""
    whose = first.gpu if len(same) == 1 else f"{len(same)} GPUs or ranks" if shifts else ""
    head = _wrapped(f"{first.what}{f' on {whose}' if whose else ''}{f': {far}{least}' if far else ''}", 2, 4)
    if len(same) > 1:
        return head + [line for c in same for line in _wrapped(f"{c.gpu}: {c.before} -> {c.after}", 6, 8)]
    return head + _wrapped(f"before  {first.before}", 6, 14) + _wrapped(f"after   {first.after}", 6, 14)


def _wrapped(text: str, first: int, later: int) -> list[str]:
    start, then = " " * first, " " * later
    clean = printable(text)
    return textwrap.wrap(clean, _COLUMNS, initial_indent=start, subsequent_indent=then, break_on_hyphens=False)


class Key(NamedTuple):
    """Whose speed it is: a check's own (`gpu` empty), or that of one of its GPUs, or rank on a CPU."""

    check: str
    gpu: str
    quantity: str


class Series(NamedTuple):
    """A quantity's points; `higher` says that more is better. `noise` is how far, relatively, it is known to move."""

    points: dict[str, float]
    higher: bool = False
    unit: str = ""
    noise: float = 0.0


def speeds(outcome: OutcomeRow) -> dict[Key, Series]:
    """Return every speed that an outcome holds; none if it has no value."""
    series: dict[Key, Series] = {}
    unit = outcome.unit
    higher = True if unit.endswith("/s") else False if unit in SLOW_UNITS else None
    # Of a repeated run the median is compared, not the round that was judged.
    median = outcome.spread.median if outcome.spread else None
    value = median if median is not None else phrases.number(outcome.value)
    if value is not None and value > 0 and higher is not None:
        series[Key(outcome.id, "", "value")] = Series({"": value}, higher, unit, _repeat_noise(outcome))
    for rank in ranks_of(outcome):
        series.update({Key(outcome.id, rank.gpu, name): one for name, one in _of_rank(rank)})
        pairs = rank.pairs if rank.pairs and rank.pairs.gpus else PairMatrix([], [])
        values = [(rank.gpu, f"values.{name}", value) for name, value in rank.values.items()]
        values += [
            (f"{source} -> {target}", "rate", value)
            for source, row in zip(pairs.gpus, pairs.rows, strict=True)
            for target, value in zip(pairs.gpus, row, strict=True)
        ]
        for gpu, name, value in values if higher is not None else []:
            if value is not None and value > 0:
                series[Key(outcome.id, gpu, name)] = Series({"": value}, bool(higher), unit)
    return series


def _of_rank(rank: RankMeasurements) -> Iterator[tuple[str, Series]]:
    for collective, points in rank.seconds.items():
        yield f"curves.{collective}.seconds" if collective else "curve.seconds", Series(_by_size(points))
    for collective, points in rank.latencies.items():
        yield f"latency.{collective}.p50", Series(_by_size(points), noise=_LATENCY_NOISE)
    if speed := [value for _, value in rank.over_time["speed"]]:
        yield "points.tflops", Series({"": statistics.median(speed)}, higher=True)


def _by_size(points: Points) -> dict[str, float]:
    return {phrases.size(at): value for at, value in points}


def _repeat_noise(outcome: OutcomeRow) -> float:
    """Return (largest - smallest) / middle of what the same run measured more than once."""
    repeats = outcome.spread.values if outcome.spread else [phrases.number(a.value) for a in outcome.attempts]
    values = sorted(value for value in repeats if value is not None and value > 0)
    return (values[-1] - values[0]) / values[len(values) // 2] if len(values) > 1 else 0.0
