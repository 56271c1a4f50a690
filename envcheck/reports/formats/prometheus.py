"""A report as Prometheus text, for node_exporter's textfile collector: base units, one family a quantity."""

import collections
import contextlib
import datetime as dt
import re
from collections.abc import Iterable
from typing import Any, Final

from envcheck.counting import printable
from envcheck.reports import phrases
from envcheck.reports.formats import Format
from envcheck.reports.model import RunReport
from envcheck.runner import outcomes
from envcheck.runner.schema import OutcomeRow

# Prometheus wants base units, named in full (prometheus.io/docs/practices/naming).
_UNITS: Final = {
    "s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
    "us": ("seconds", 1e-6),
    "B": ("bytes", 1.0),
    "MiB": ("bytes", 2.0**20),
    "GiB": ("bytes", 2.0**30),
    "GB/s": ("bytes_per_second", 1e9),
    "Gb/s": ("bytes_per_second", 1.25e8),
    "TFLOP/s": ("flop_per_second", 1e12),
    "W": ("watts", 1.0),
    "MHz": ("hertz", 1e6),
    "C": ("celsius", 1.0),
    "°C": ("celsius", 1.0),
    "%": ("ratio", 1e-2),
}
# Series of one check: a report must not grow a database without end.
_MOST, _LONGEST = 20, 120
Sample = tuple[str, dict[str, str], float, str]


def prometheus(report: RunReport) -> str:
    """Return the exposition text; every sample is a gauge, and what could not be read is not there."""
    return exposition([*_run(report), *_checks(report), *_gpus(report)])


def exposition(samples: Iterable[Sample]) -> str:
    """Return samples (name, labels, value, what it says) as text, those of one name together."""
    families: dict[str, list[str]] = {}
    seen = set()
    for name, labels, value, doc in samples:
        pairs = ",".join(f'{label}="{_escaped(text, quote=True)}"' for label, text in labels.items())
        series = f"{name}{{{pairs}}}" if pairs else name
        lines = families.setdefault(name, [f"# HELP {name} {_escaped(doc)}\n# TYPE {name} gauge\n"])
        # A duplicate series makes the collector refuse the whole file.
        lines += [] if series in seen else [f"{series} {value!r}\n"]
        seen.add(series)
    return "".join(line for lines in families.values() for line in lines)


def _run(report: RunReport) -> Iterable[Sample]:
    labels = {
        "version": report.tool,
        "level": report.plan.level,
        "mode": report.mode,
        "target": report.target.name,
        "cell": report.promises.get("cell"),
        "torch": report.environment.get("torch"),
        "cuda": report.environment.get("cuda"),
        "driver": report.snapshot.signal("driver.version").value,
    }
    texts = {name: str(value or "") for name, value in labels.items()}
    yield "envcheck_run_info", texts, 1.0, "What the last run validated, and how."
    for verdict in ("pass", "fail", "error"):
        doc = "1 for what the last run came to: pass, fail, or error (undetermined)."
        yield "envcheck_run_verdict", {"verdict": verdict}, float(report.verdict.status == verdict), doc
    yield "envcheck_run_complete", {}, float(bool(report.ended)), "Whether the last run reached its end."
    yield "envcheck_run_duration_seconds", {}, phrases.seconds(report), "How long the last run took."
    for name, moment in (("start", report.started), ("end", report.ended)):
        with contextlib.suppress(ValueError, OverflowError):
            since = dt.datetime.fromisoformat(moment).timestamp()
            yield f"envcheck_run_{name}_timestamp_seconds", {}, since, f"When the last run had its {name}."


def _checks(report: RunReport) -> Iterable[Sample]:
    levels = {check.id: check.level for check in report.plan.checks}
    never = [OutcomeRow(id=i, kind="env", status="error", summary="") for i in phrases.unfinished(report)]
    for outcome in [*report.outcomes, *never]:
        check = {"check": outcome.id}
        for status in phrases.WORST_FIRST:
            labels = {**check, "level": levels.get(outcome.id, report.plan.level), "status": status}
            doc = "1 for what the check came to; only pass is a pass."
            yield "envcheck_check_status", labels, float(outcome.status == status), doc
        if outcome.attempts:
            yield "envcheck_check_duration_seconds", check, outcome.seconds, "How long the check took."
        yield from _quantity("envcheck_check_value", check, outcome.value, outcome.unit, "What the check measured")
        if limit := outcome.limit:
            doc = "The limit with which the check's value was compared"
            yield from _quantity("envcheck_check_limit", {**check, "kind": limit.kind}, limit.value, limit.unit, doc)
        yield from _findings(outcome)
        if len(outcome.attempts) > 1:
            yield from _attempts(outcome)


def _findings(outcome: OutcomeRow) -> Iterable[Sample]:
    """Yield a series for each code and culprit that is no pass; what is beyond _MOST is counted as one."""
    findings = outcome.findings or [outcomes.as_finding(outcome)]
    bad = ((f.status, f.code, f.culprit[:_LONGEST]) for f in findings if f.status in phrases.FINDINGS)
    named = list(collections.Counter(bad).items())
    more = sum(count for _, count in named[_MOST:])
    rest = [((outcome.status, "more", "more"), more)] if more else []
    for (status, code, culprit), count in named[:_MOST] + rest:
        labels = {"check": outcome.id, "status": status, "code": code, "culprit": culprit}
        doc = "How many findings of the check have this status, code and culprit."
        yield "envcheck_check_findings", labels, float(count), doc


def _attempts(outcome: OutcomeRow) -> Iterable[Sample]:
    """Yield how often a check that was measured more than once came to what, and the values of its attempts."""
    for (status, code), count in collections.Counter((a.status, a.code) for a in outcome.attempts).items():
        labels = {"check": outcome.id, "status": status, "code": code}
        doc = "How many measurements of the check came to this; only checks measured more than once."
        yield "envcheck_check_attempts", labels, float(count), doc
    for number, attempt in enumerate(outcome.attempts[:_MOST], 1):
        labels = {"check": outcome.id, "attempt": str(number), "status": attempt.status}
        doc = "What one measurement of the check came to"
        yield from _quantity("envcheck_check_attempt_value", labels, attempt.value, attempt.unit or outcome.unit, doc)


def _gpus(report: RunReport) -> Iterable[Sample]:
    blamed = phrases.culprits(report)
    for number, gpu in enumerate(report.snapshot.gpus):
        labels = {"uuid": gpu.uuid, "gpu": str(phrases.gpu_index(gpu, number))}
        yield "envcheck_gpu_info", {**labels, "name": str(gpu.signal("name").value or "")}, 1.0, "A GPU of this node."
        doc = "How many findings (warn, fail, error) of the last run name this GPU."
        yield "envcheck_gpu_findings", labels, float(len(blamed[gpu.uuid])), doc
        for name, signal in gpu.signals.items():
            if signal.unit in _UNITS:
                stem = f"envcheck_gpu_{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')}"
                yield from _quantity(stem, labels, signal.value, signal.unit, f"Read off the GPU: {name}")


def _quantity(stem: str, labels: dict[str, str], value: Any, unit: str | None, doc: str) -> Iterable[Sample]:
    """Yield the value in its base unit; with its unit as a label where that is none Prometheus knows."""
    number = phrases.number(value)
    if number is not None and unit in _UNITS:
        suffix, factor = _UNITS[unit]
        yield f"{stem}_{suffix}", labels, number * factor, f"{doc}, in {suffix.replace('_', ' ')}."
    elif number is not None:
        yield stem, {**labels, "unit": unit or ""}, number, f"{doc}, in the unit it has."


def _escaped(text: str, *, quote: bool = False) -> str:
    text = printable(text).replace("\\", r"\\").replace("\r", "").replace("\n", r"\n")
    return text.replace('"', r"\"") if quote else text


FORMAT: Final = Format(prometheus, suffix=".prom")
