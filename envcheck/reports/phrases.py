"""What all forms of a report say alike: quantities, bounds, times, what ran on what, which GPU is named."""

import collections
import datetime as dt
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from envcheck.checks import ERROR, FAIL, WARN
from envcheck.counting import counted
from envcheck.node.snapshot import Gpu
from envcheck.reports.model import LACKING, RunReport
from envcheck.runner.judging import group_size
from envcheck.runner.planning import expected_to_fit
from envcheck.runner.requirements import Demand
from envcheck.runner.schema import Attempt, FindingRow, OutcomeRow, Plan, PlannedCheck

FINDINGS: Final = (FAIL, ERROR, WARN)
BYTES: Final = ("B", "byte", "bytes")
_SIGNS: Final = {"at least": "≥", "at most": "≤", "equal": "="}
_LIBRARIES: Final = {"cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL"}
_WHOLE, _LARGE, _MILLI = 1e3, 1e9, 1e-3
_LOG_LINES, _SHOWN = 12, 20
# Where a check's details name a GPU.
_NAMING: Final = ("device", "devices", "gpu", "gpus", "uuid", "uuids", "culprit", "culprits")
# Below a second nobody asks where it went.
_TELLING = 1.0
_SHORT = 120.0
# Lines of a log that say nothing of why: frames, what was loaded, blank ones.
_IDLE: Final = re.compile(r'(\[rank \d+\] ?)?\s*(File "|frame #|Extension modules:|Thread 0x|\.\.\.|$)')
_LONGEST = 6


def quantity(value: Any, unit: str) -> str:
    """Return a value as a person reads it: four digits or all before the point, bytes in MiB or GiB."""
    if unit in BYTES and isinstance(value, (int, float)) and not isinstance(value, bool):
        large = f"{round(value / 2**30, 2):,.12g} GiB" if value >= _WHOLE * 2**30 else size(value)
        return large if value >= 2**20 else f"{value} B"
    if isinstance(value, float):
        if unit == "s" and 0 < value < _MILLI:
            return f"{value * 1e6:.4g} µs"
        return f"{value:.{'0f' if _WHOLE <= abs(value) < _LARGE else '4g'}} {unit}".strip()
    if isinstance(value, dict):
        return ", ".join(f"{key} {quantity(v, unit)}" for key, v in value.items())
    if isinstance(value, (list, tuple)):
        return f"{', '.join(str(v) for v in value)} {unit}".strip()
    return f"{value} {unit}".strip()


def image(report: RunReport) -> str:
    """Return which image ran, e.g. "manifest sha256:..., config sha256:..., 9 layers"; "" where none did."""
    target, facts = report.target, report.target.image
    if target.image_id is None:
        return ""
    if facts is None:
        return f"id {target.image_id}"
    digests = {"index": facts.index_digest, "manifest": facts.manifest_digest, "config": facts.config_digest}
    stated = [f"{name} {digest}" for name, digest in digests.items() if digest] or [f"id {target.image_id}"]
    others = [name for name in facts.repository_digests if not any(name.partition("@")[2] in one for one in stated)]
    layers = [counted(len(facts.diff_ids), "layer")] if facts.diff_ids else []
    return ", ".join([*stated, *others, *layers])


def number(value: Any) -> float | None:
    """Return a finite number as one; None for words, truth, nothing and what no float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def bound(outcome: OutcomeRow | FindingRow, *, unit: bool = True) -> str:
    """Return the limit an outcome was judged by, e.g. "≥ 380 GB/s", or without its unit; "" where there was none."""
    limit = outcome.limit
    if limit is None:
        return ""
    shown = limit.unit if unit or limit.unit in BYTES else ""
    return f"{_SIGNS.get(limit.kind, limit.kind)} {quantity(limit.value, shown)}"


def demanded(demand: Demand) -> str:
    """Return what a site demands of a measured value, and which check measures it."""
    limit = demand.limit
    return f"{demand.what} {_SIGNS[limit.kind]} {quantity(limit.value, limit.unit)}, measured by {demand.of}"


def particulars(outcome: OutcomeRow) -> list[tuple[str, str]]:
    """Return what is known of a finding, each with its title; all findings, measurements, and last words."""
    facts = {
        "why": outcome.summary,
        "value": "" if outcome.value is None else quantity(outcome.value, outcome.unit),
        "limit": bound(outcome),
        "source": outcome.limit.source if outcome.limit else "",
        "to do": outcome.remedy,
        "where": outcome.culprit,
        "code": outcome.code,
    }
    told = [(title, text) for title, text in facts.items() if text or title == "why"]
    told += [("status", f"{c.before} → {c.after}: {c.reason} [{c.rule}]") for c in outcome.changes]
    told += [("finding", line) for line in findings(outcome)]
    told += [("attempt", line) for line in attempts(outcome)]
    # Of a torch that cannot be imported the reason is all there is to say; every rank's traceback says it again.
    if outcome.status == "error" and outcome.log and "unimportable" not in outcome.details:
        # The log of the rank that was lost first; all of it where none is named.
        lines = outcome.log.splitlines()
        own = [line for line in lines if line.startswith(f"[rank {outcome.details.get('rank')}] ")]
        told.append(("log", "\n".join((own or lines)[-_LOG_LINES:])))
    return told


def last_words(log: str) -> str:
    """Return the last line of a log that says something, the last one where none does; "" of an empty log."""
    lines = log.splitlines()
    return next((line for line in reversed(lines) if not _IDLE.match(line)), "".join(lines[-1:]))


def findings(outcome: OutcomeRow) -> list[str]:
    """Return a line for each of several findings: status, what, value; code, culprit, remedy if not the outcome's."""
    return _cut([_finding(finding, outcome) for finding in outcome.findings]) if len(outcome.findings) > 1 else []


def _finding(finding: FindingRow, outcome: OutcomeRow) -> str:
    known = ("", outcome.code, outcome.culprit)
    head = " ".join((finding.status, *(said for said in (finding.code, finding.culprit) if said not in known)))
    held = f"; limit {bound(finding)}" if finding.limit else ""
    value = "" if finding.value is None else f" ({quantity(finding.value, finding.unit)}{held})"
    remedy = f". What to do: {finding.remedy}" if finding.remedy not in ("", outcome.remedy) else ""
    return f"{head}: {finding.summary}{value}{remedy}"


def attempts(outcome: OutcomeRow) -> list[str]:
    """Return a line for each measurement, where there was more than one; of very many those that were no pass."""
    every = outcome.attempts
    if len(every) < 2:  # noqa: PLR2004 (one attempt is the outcome itself)
        return []
    telling = every if len(every) <= _SHOWN else [a for a in every if a.status not in ("pass", "skip")]
    others = [f"{counted(len(every) - len(telling), 'other')} passed"] if len(telling) < len(every) else []
    return _cut([_attempt(attempt, outcome) for attempt in telling]) + others


def _attempt(attempt: Attempt, outcome: OutcomeRow) -> str:
    """Return what one measurement came to; its number is that within its round."""
    alike = [other for other in outcome.attempts if other.round == attempt.round]
    number = next(at for at, other in enumerate(alike, 1) if other is attempt)
    repeated = any(other.round > 1 for other in outcome.attempts)
    where = f"round {attempt.round}, attempt {number}" if repeated else f"{number} of {len(alike)}"
    value = "" if attempt.value is None else f", {quantity(attempt.value, attempt.unit or outcome.unit)}"
    code = f" [{attempt.code}]" if attempt.code else ""
    return f"{where}: {attempt.status}{value}{f': {attempt.summary}' if attempt.summary else ''}{code}"


def no_pass(outcome: OutcomeRow) -> str:
    """Return, behind a check that ended well, what was no pass in one of its measurements; or ""."""
    if outcome.status not in ("pass", "skip"):
        return ""
    bad = [_attempt(one, outcome) for one in outcome.attempts if one.status not in ("pass", "skip")]
    return f" (measured {len(outcome.attempts)} times; {'; '.join(bad[:3])})" if bad else ""


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"{len(lines) - _SHOWN} more in the JSON report"]


# As pages and tables have them.
WORST_FIRST: Final = ("fail", "error", "warn", "pass", "skip")


def by_status(outcomes: Iterable[OutcomeRow], order: Sequence[str] = WORST_FIRST) -> list[list[OutcomeRow]]:
    """Return the outcomes in groups that came to the very same, by status in this order; none of another status."""
    groups: dict[tuple[str, ...], list[OutcomeRow]] = {}
    for outcome in outcomes:
        own = (outcome.status, outcome.summary, outcome.remedy, repr(outcome.value), outcome.code, outcome.culprit)
        groups.setdefault((*own, *findings(outcome), *attempts(outcome)), []).append(outcome)
    return [same for status in order for same in groups.values() if same[0].status == status]


def facts(report: RunReport) -> list[tuple[str, str]]:
    """Return what ran on what, each with its title; what is not known, or does not apply, is left out."""
    load = "" if report.host.load is None else f", load {report.host.load:.1f} at the start"
    machine = f"{report.host.system} {report.host.kernel} {report.host.arch}"
    # As people write a time: 2026-11-21 09:00:00 UTC.
    when = f"{report.started} to {report.ended or 'never: it was cut short'}"
    told = [
        ("host", f"{report.host.name} ({machine}), {counted(report.host.cpus, 'core')}{load}"),
        ("ran on", hardware(report)),
        ("target", f"{report.target.name} ({report.target.chosen})"),
        ("image", image(report)),
        ("with", environment(report.environment) or "unknown"),
        ("cell", report.promises.get("cell", "")),
        ("resolved", report.resolution or ""),
        ("when", f"{when.replace('T', ' ').replace('+00:00', ' UTC')}, level {report.plan.level}"),
        ("took", f"{duration(seconds(report))}"),
        ("evidence", made_up(report)),
        ("never ran", ", ".join(unfinished(report))),
    ]
    return [(title, text) for title, text in told if text]


def first(report: RunReport) -> list[str]:
    """Return what to look at first: why the check that decided did, and the one GPU that most findings name."""
    why = conclusion(report).removeprefix(report.verdict.sentence).removeprefix(".").strip()
    return [line for line in (why, one_blamed_gpu(report)) if line]


def environment(facts: dict[str, Any]) -> str:
    """Return what ran, e.g. "Python 3.12.3, torch 2.9.1+cu128, CUDA 12.8"."""
    parts = [f"Python {facts['python']}"] if "python" in facts else []
    parts += [f"torch {facts['torch']}"] if "torch" in facts else []
    parts += [f"{title} {facts[key]}" for key, title in _LIBRARIES.items() if facts.get(key)]
    if facts.get("error"):
        parts.append(f"torch cannot be imported: {facts['error']}" if "python" in facts else str(facts["error"]))
    return ", ".join(parts)


def devices(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the GPUs that torch saw, as its facts describe them."""
    listed = facts.get("devices")
    return [device for device in listed if isinstance(device, dict)] if isinstance(listed, list) else []


def hardware(report: RunReport) -> str:
    """Return what it ran on, and of a CPU that it was no GPU; gloo and nccl only where a group of ranks ran."""
    ranks = group_size(report.outcomes)
    if report.mode == "gpu":
        names = collections.Counter(str(device.get("name")) for device in devices(report.environment))
        driver = report.snapshot.signal("driver.version").value
        gpus = ", ".join(f"{count} x {name}" for name, count in names.items())
        return f"{gpus}{' (nccl)' if ranks else ''}{f', driver {driver}' if driver else ''}"
    if report.mode == "cpu":
        gloo = f": gloo, {counted(ranks, 'rank')}" if ranks else ""
        return f"CPU{gloo}, {counted(report.host.cpus, 'core')}. No GPU was tested."
    return "unknown: torch did not report its devices"


def conclusion(report: RunReport) -> str:
    """Return the verdict, and of the first check that decided it why, and what to do: the line a run ends with."""
    sentence = report.verdict.sentence
    decided = [o for o in report.outcomes if o.status == report.verdict.status != "pass"]
    if not decided:
        return sentence
    first = decided[0]
    others = f"The first of them, {first.id}: " if len(decided) > 1 else ""
    remedy = f" What to do: {_sentence(first.remedy)}" if first.remedy else ""
    return f"{_sentence(sentence)} {_sentence(others + first.summary)}{remedy}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def made_up(report: RunReport) -> str:
    """Return where evidence comes from that no run measured (tests/data), and "" of any other."""
    origin = report.snapshot.signal("origin").value
    return "" if origin in (None, "recorded") else f"{origin}: no such machine was measured"


def unfinished(report: RunReport) -> list[str]:
    """Return the planned checks that came to nothing: the run was cut short."""
    done = {outcome.id for outcome in report.outcomes}
    return [check.id for check in report.plan.checks if check.id not in done]


def seconds(report: RunReport) -> float:
    """Return how long the run took; what its checks took where it was cut short."""
    try:
        over = dt.datetime.fromisoformat(report.ended) - dt.datetime.fromisoformat(report.started)
    except (ValueError, TypeError):  # TypeError: one of them names no time zone
        return sum(outcome.seconds for outcome in report.outcomes)
    return over.total_seconds()


def size(count: float) -> str:
    """Return a count of bytes on an axis, e.g. "64 MiB"."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count:.4g} B"


def duration(seconds: float) -> str:
    """Return "<1 s", "90 s", "10 min" or "10 min 5 s"."""
    if seconds < 1:
        return "<1 s"
    if seconds < _SHORT:
        return f"{seconds:.0f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    return f"{minutes} min {seconds_left} s" if seconds_left else f"{minutes} min"


def took(seconds: float) -> str:
    """Return how long a check took, to a tenth of a second below ten."""
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)  # noqa: PLR2004 (what rounds to ten)


def cost(plan: Plan, check: PlannedCheck, fitting: Collection[str]) -> str:
    """Return how long one check is expected to take here, or why it takes no time."""
    if check.seconds and not plan.seconds_of(check):
        return "no GPU" if check.gpus and not plan.gpus else "too few"
    return duration(check.seconds) if check.id in fitting else "left out"


def extent(plan: Plan) -> str:
    """Return how long a plan is expected to take, and how much of it fits into its budget."""
    took = f"about {duration(plan.seconds)}" if plan.seconds >= 1 else "under a second"
    if plan.duration is not None:
        return f"again and again for {duration(plan.duration)}"
    if plan.repeat > 1:
        return f"{plan.repeat} times, {took}"
    if plan.budget is not None:
        fit = len(expected_to_fit(plan))
        return f"{took} if all; {fit} expected to fit into {duration(plan.budget)}"
    return took


def taken(report: RunReport) -> str:
    """Return the seconds taken: in all, of the start, and of the checks that took longest against those planned."""
    if report.timing is None:
        return ""
    # A skip found nothing to measure: what was planned for it says nothing of the time that was taken.
    longest = sorted((o for o in report.outcomes if o.status != "skip"), key=_seconds, reverse=True)[:_LONGEST]
    parts = [f"starting Python and torch {report.timing.starting:.1f} s"]
    parts += [f"{o.id} {_seconds(o):.1f} s (planned {o.planned:g} s)" for o in longest if _seconds(o) >= _TELLING]
    return f"{report.timing.taken:.1f} s: {'; '.join(parts)}"


def _seconds(outcome: OutcomeRow) -> float:
    shown = {attempt.round for attempt in outcome.attempts if attempt.shown} or {1}
    return sum(attempt.seconds for attempt in outcome.attempts if attempt.round in shown)


def spread(outcome: OutcomeRow) -> tuple[str, str]:
    """Return how often a repeated check came to what, and from where to where its value went; "" where it had none."""
    rounds = outcome.spread
    if rounds is None:
        return "", ""
    often = ", ".join(f"{count} {status}" for status, count in rounds.statuses.items())
    if outcome.status != "pass" and len(rounds.statuses) > 1:
        often += f" (first in round {rounds.told_in})"
    if rounds.smallest is None or rounds.median is None or rounds.largest is None:
        return often, ""
    each = outcome.unit if outcome.unit in BYTES else ""
    sizes = (quantity(float(v), each) for v in (rounds.smallest, rounds.median, rounds.largest))
    return often, f"{' / '.join(sizes)} {'' if each else outcome.unit}".strip()


def progress(plan: Plan, done: int, now: str, seconds: tuple[float, float], number: int) -> str:
    """Return the line shown while `now` runs ("": Python and torch start); `seconds` are its own, and in all."""
    planned = {check.id: check.seconds for check in plan.checks}.get(now)
    estimate = f" of about {duration(planned)}" if planned and planned >= _TELLING else ""
    current = f"{now or 'starting Python and torch'} {duration(seconds[0])}{estimate}"
    rounds = f"round {number}{f' of {plan.repeat}' if plan.repeat > 1 else ''}, " if plan.repeated else ""
    total = plan.budget or plan.seconds
    in_all = f"{duration(seconds[1])}{f' of about {duration(total)}' if total >= _TELLING else ''} in all"
    return f"{rounds}{done}/{len(plan.checks)} done; {current}; {in_all}"


def uuids(report: RunReport) -> list[str]:
    """Return the node's GPUs as NVML orders them, then those that only torch saw."""
    visible = [str(device["uuid"]) for device in devices(report.environment) if device.get("uuid")]
    return list(dict.fromkeys([*(gpu.uuid for gpu in report.snapshot.gpus), *visible]))


def culprits(report: RunReport) -> dict[str, list[OutcomeRow]]:
    """Return for each GPU the findings that name it: in their summary, their details, or by its rank."""
    gpus = uuids(report)
    # That today's rule needs what an older report does not hold is nothing of a GPU.
    findings = [(o, _named(o)) for o in report.outcomes if o.status in FINDINGS and LACKING not in o.summary]
    return {uuid: [o for o, named in findings if any(uuid in text for text in named)] for uuid in gpus}


def _named(outcome: OutcomeRow) -> list[str]:
    details = outcome.details
    listed = details.get("ranks")
    numbers = [details.get("rank"), *(listed if isinstance(listed, list) else [])]
    blamed = [number for number in numbers if number is not None]
    at = [entry for entry in outcome.ranks if isinstance(entry, dict) and entry.get("rank") in blamed]
    identifiers = [details[key] for key in _NAMING if key in details] + [entry.get("device") for entry in at]
    texts = [text for finding in outcome.findings for text in (finding.summary, finding.culprit)]
    return [outcome.summary, outcome.culprit, *texts, *(text for value in identifiers for text in _texts(value))]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from map(str, value)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def one_blamed_gpu(report: RunReport) -> str:
    """Return which one GPU more findings name than any other, where the node has several; or ""."""
    named = {uuid: [outcome.id for outcome in outcomes] for uuid, outcomes in culprits(report).items() if outcomes}
    most = max(named.values(), key=len, default=[])
    worst = [uuid for uuid, outcomes in named.items() if len(outcomes) == len(most)]
    if len(worst) != 1 or min(len(most), len(uuids(report))) < 2:  # noqa: PLR2004 (several findings, several GPUs)
        return ""
    numbered = {gpu.uuid: gpu_index(gpu, number) for number, gpu in enumerate(report.snapshot.gpus)}
    name = f"GPU {numbered[worst[0]]} ({worst[0]})" if worst[0] in numbered else worst[0]
    return f"{', '.join(most)} name one GPU: {name}."


def gpu_index(gpu: Gpu, number: int) -> Any:
    """Return the index by which NVML calls a GPU; its number in the report where that is not known."""
    index = gpu.signal("index").value
    return number if index is None else index
