"""What a site demands of measured values: each is compared with the result of the check that measures it.

Such a demand is in no plan: it costs nothing, and stands in the report after the checks. A check that did not run, was
skipped, broke or measured an unexpected value leaves its requirement an error: what was not measured is no pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from envcheck.checks import ERROR, FAIL, SKIP, Limit, Outcome, failed, passed, undecided
from envcheck.runner.judging.outcome_fields import fields
from envcheck.runner.schema import OutcomeRow

_FIX: Final = "compare the node with what was ordered; see also the check {of}"
_RUN: Final = "run it with a level that has the check {of}, or with --only {of}"
Values = Callable[[OutcomeRow], Iterable[Any]]


class Demand(NamedTuple):
    """A bound on what a check measures. `values` reads all that have to meet it off that check's outcome."""

    id: str
    of: str
    what: str
    limit: Limit
    values: Values


def _of_ranks(*names: str) -> Values:
    """Read these of every rank's `values`; one that a rank does not have is None."""
    return lambda row: [_table(rank, "values").get(name) for rank in row.ranks for name in names]


def _pairs(row: OutcomeRow) -> list[Any]:
    """Read every ordered pair's figure off the matrix; one that cannot be reached is None."""
    matrix = _table(row.ranks[0] if row.ranks else None, "matrix", list)
    lines = [(at, line) for at, line in enumerate(matrix) if isinstance(line, list)]
    return [value for at, line in lines for to, value in enumerate(line) if to != at]


def _on_gpus(row: OutcomeRow) -> list[Any]:
    """Return the outcome's value where every rank computed on a GPU: gloo's is no answer to a demand of GPUs."""
    return [row.value] if row.ranks and all(_table(rank, "").get("is_cuda") is True for rank in row.ranks) else []


def _latency(row: OutcomeRow) -> list[Any]:
    """Return the median of the smallest all-reduce of each rank, in microseconds, where it went to another node."""
    if len({str(_table(rank, "").get("host")) for rank in row.ranks}) < 2:  # noqa: PLR2004 (two nodes)
        return []
    tables = [_table(_table(rank, "latency"), "all-reduce", list) for rank in row.ranks]
    first: list[Any] = [small[0].get("p50") if small and isinstance(small[0], dict) else None for small in tables]
    return [seconds * 1e6 if _number(seconds) else seconds for seconds in first]


_KNOWN: Final[Mapping[str, tuple[str, str, str, str, Values]]] = {
    "pcie-speed": (
        "memory-bandwidth",
        "slower way between host and GPU",
        "GB/s",
        "at least",
        _of_ranks("host to GPU", "GPU to host"),
    ),
    "hbm-speed": ("memory-bandwidth", "copy on the card", "GB/s", "at least", _of_ranks("HBM copy")),
    "bf16": ("gemm-throughput", "matrix product in bfloat16", "TFLOP/s", "at least", _of_ranks("bfloat16")),
    "peer-speed": ("peer-bandwidth", "slowest pair of GPUs", "GB/s", "at least", _pairs),
    "all-reduce-speed": ("all-reduce-bandwidth", "bus bandwidth of all-reduce", "GB/s", "at least", _on_gpus),
    "disk-read": ("disk-read", "reading the disk", "GB/s", "at least", lambda row: [row.value]),
    "network-latency": (
        "all-reduce-bandwidth",
        "smallest all-reduce between nodes",
        "us",
        "at most",
        _latency,
    ),
}


def demand(name: str, bound: float, source: str) -> Demand:
    """Return a demand by its name; `source` is the site's."""
    of, quantity, unit, kind, values = _KNOWN[name]
    return Demand(f"require-{name}", of, quantity, Limit(bound, unit, source, kind), values)


def names() -> dict[str, str]:
    """Return which check each demand is measured by."""
    return {name: row[0] for name, row in _KNOWN.items()}


def hold(demands: Iterable[Demand], outcomes: Mapping[str, OutcomeRow]) -> dict[str, OutcomeRow]:
    """Return each demand's outcome, by id."""
    return {demanded.id: _row(demanded, judge(demanded, outcomes.get(demanded.of))) for demanded in demands}


def judge(required: Demand, row: OutcomeRow | None) -> Outcome:
    """Judge the worst of what was measured; anything but a finite positive number was not."""
    lacking = _lacking(required, row)
    if row is None or lacking is not None:
        return undecided(lacking or "", fix=_RUN.format(of=required.of), code="require.unmeasured")
    values = list(required.values(row))
    if not values or not all(_number(value) and value > 0 for value in values):
        why = f"{required.of} measured no {required.what}"
        return undecided(
            f"undetermined: {why} ({str(values)[:60]})", fix=_RUN.format(of=required.of), code="require.unmeasured"
        )
    most = required.limit.kind == "at most"
    worst = max(values) if most else min(values)
    met = worst <= required.limit.value if most else worst >= required.limit.value
    summary = f"{required.what}: {worst:.4g} {required.limit.unit}, for {required.limit.source}"
    shown = {"value": worst, "unit": required.limit.unit, "limit": required.limit}
    return (
        passed(summary, **shown)
        if met
        else failed(summary, fix=_FIX.format(of=required.of), code="require.not-met", **shown)
    )


def _lacking(required: Demand, row: OutcomeRow | None) -> str | None:
    if row is None:
        return f"undetermined: the check {required.of}, which measures it, was not run"
    if row.status in (SKIP, ERROR):
        return f"undetermined: {required.of} came to {row.status}: {row.summary}"
    if row.status == FAIL and not row.remeasure:
        # A measurement whose data was wrong is no evidence of a speed.
        return f"undetermined: {required.of} failed, and not by its speed alone: {row.summary}"
    return None


def _row(required: Demand, outcome: Outcome) -> OutcomeRow:
    return OutcomeRow(id=required.id, kind="env", **fields(outcome))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _table(holder: Any, key: str, kind: type = dict) -> Any:
    """Return what a measurement holds under a key (itself for ""), empty where it is not of its kind."""
    value = holder if not key else holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, kind) else kind()
