"""NVIDIA's own diagnostic, where it is installed: what a vendor's support asks for first, in the same report.

Every GPU of its JSON is read, in the words of DCGM 3 and 4, whatever the exit code (facebookresearch/gcm#38); it may
hang (NVIDIA/DCGM#136), and does not run on MIG (aws/aws-parallelcluster-cookbook#3183). Level 2 takes minutes;
ENVCHECK_DCGM_DIAG=1 or 3 asks for another.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Any, NamedTuple

from envcheck import checks
from envcheck.checks import ERROR, Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, warned
from envcheck.node import subprocesses

CHECK = checks.Check(
    promise="NVIDIA's diagnostic (dcgmi diag) finds nothing", level="full", seconds=150.0, timeout=2500.0, gpus=1
)

NAME = "ENVCHECK_DCGM_DIAG"
# NVIDIA's own words: seconds, about two minutes, about fifteen; seen in the field: up to three times that.
SECONDS = {"1": 120.0, "2": 900.0, "3": 2400.0}
LIMIT = checks.Limit(0, "failed tests", "NVIDIA DCGM diagnostics (dcgmi diag)", "equal")
_DOWN = ("unable to establish a connection", "Unable to connect to host engine", "Host engine is not running")
_START = "start its host engine: `systemctl start nvidia-dcgm`"
_KEPT = 2000
# dcgmErrorSeverity_t, worst first, and what it asks for; MONITOR and CONFIG leave the GPU fit for work.
_ASKED = {
    2: "isolate: drain the node and have the GPU exchanged if it comes back after a reset",
    6: "reset the GPU, and run it again",
    4: "triage: compare with DCGM's page of diagnostic errors",
    3: "look at nvvs.log and `dmesg`",
    5: "configuration: set it as the text says; the GPU itself is not at fault",
    1: "keep an eye on it",
}
_MILD, _GRAVE, _UNTOLD = {1, 5}, {2, 3, 4, 6}, 3
# What DCGM fails on sound GPUs: 4.5.0 looks at the load that its own test before has left (NVIDIA/DCGM#272), and a
# throttling that lasted no tenth of a second (#242).
_HARMLESS = re.compile(
    r"memory copy utilization for the GPU\b.* is greater than 10%|Thermal violations totaling 0\.0 seconds"
)
PASSED, FAILED, WARNED, SKIPPED = "pass", "fail", "warn", "skip"
_WORDS = {"pass": PASSED, "fail": FAILED, "warn": WARNED, "warning": WARNED, "skip": SKIPPED, "skipped": SKIPPED}
_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
# What is kept of it: serial numbers of the boards stand beside them.
_RUN_KEYS = ("test_categories", "runtime_error", "version")


class Result(NamedTuple):
    """One test on the entities ("GPU 3") it was run on; none for a whole test's summary."""

    test: str
    status: str
    entities: list[str]
    texts: list[str]
    severities: set[int]

    def asks(self) -> int:
        """Return the gravest dcgmErrorSeverity_t that this result has."""
        return next((severity for severity in _ASKED if severity in self.severities), _UNTOLD)

    def line(self) -> str:
        """Return entity, test and DCGM's own text."""
        if not self.entities and not self.texts:
            return f"{self.test}: {self.status}"
        return f"{' and '.join(self.entities[:4]) or 'node'}, {self.test}: {'; '.join(self.texts) or self.status}"


def measure(rank: Rank) -> Measured:
    """Run it on every GPU that its host engine sees; the document is kept as it is, to be judged here and later."""
    tool, level = shutil.which("dcgmi"), os.environ.get(NAME, "2")
    if tool is None:
        return {"rank": rank.rank, "installed": False}
    if level not in SECONDS:
        message = f"{NAME} is {level!r}, not one of {', '.join(SECONDS)}"
        raise ValueError(message)
    done = subprocesses.run([tool, "diag", "-r", level, "-j"], SECONDS[level])
    said = f"{done.errors}\n{done.output}".strip()[-_KEPT:]
    told = {"code": done.code, "document": document(done.output), "said": said}
    return {"rank": rank.rank, "installed": True, "level": level, **told}


def document(text: str) -> Any:
    """Return the JSON that stands in a program's output, without serial numbers; None where there is none."""
    start, end = text.find("{"), text.rfind("}")
    try:
        read = json.loads(text[start : end + 1]) if 0 <= start < end else None
    except ValueError:
        return None
    if not isinstance(read, dict):
        return None
    roots = {key: read[key] for key in _ROOTS if isinstance(read.get(key), dict)}
    return {name: {key: root[key] for key in _RUN_KEYS if key in root} for name, root in roots.items()}


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on what DCGM fails, warn on what it warns of or calls configuration; what is not understood is an error."""
    outcome = _read(view, ranks[0] if ranks else {})
    if outcome.status == ERROR and any(gpu.signal("mig_mode").value == "on" for gpu in view.snapshot.gpus):
        return skipped("MIG is on, and DCGM's diagnostic does not run on its instances", code="gpu.mig")
    return outcome


def _read(view: View, entry: Measured) -> Outcome:
    if entry.get("installed") is False:
        return skipped("dcgmi is not installed here", code="dcgm.not-installed")
    if entry.get("code") is None:
        fix = "look at `dmesg` and nv-hostengine.log"
        return undecided("dcgmi diag did not end in time, or was not run", fix=fix, code="dcgm.unfinished")
    if entry.get("document") is None:
        output = str(entry.get("said", ""))
        if any(word in output for word in _DOWN):
            return skipped(f"dcgmi is here and its host engine does not answer; {_START}", code="dcgm.no-host-engine")
        last = (output.splitlines() or ["nothing"])[-1]
        summary = f"dcgmi diag wrote no JSON (exit code {entry['code']}): {last}"
        return undecided(summary, fix=_START, code="dcgm.no-result")
    try:
        tests = results(entry["document"])
    except ValueError as error:
        fix = f"run `dcgmi diag -r {entry.get('level')}` by hand"
        return undecided(f"dcgmi diag: {error}", fix=fix, code="dcgm.unknown-format")
    return _judged(view, entry, tests)


def _judged(view: View, entry: Measured, results: list[Result]) -> Outcome:
    bad = [r for r in results if r.status in (FAILED, WARNED) or (r.status == PASSED and r.severities & _GRAVE)]
    if bad:
        grave = [result for result in bad if result.status == FAILED and not _mild(result, bad)]
        return _failed_tests(view, grave or bad, failing=bool(grave))
    if entry["code"] != 0:
        why = f"dcgmi diag ended with code {entry['code']}, and no test says why"
        return undecided(why, fix="run it by hand, and look at nvvs.log", code="dcgm.unexplained-exit")
    ran = sorted({result.test for result in results if result.status == PASSED})
    left = sorted({result.test for result in results} - set(ran))
    also = f"; not run here: {', '.join(left)}" if left else ""
    if not ran:
        return skipped(f"dcgmi diag skipped every test{also}", code="dcgm.skipped")
    return passed(f"level {entry.get('level')}: {', '.join(ran)}{also}", value=0, limit=LIMIT)


def _mild(result: Result, bad: list[Result]) -> bool:
    """Tell whether a failure is of nothing but configuration; a summary without reasons has those of its test."""
    of_test = set[int]().union(*(other.severities for other in bad if other.test == result.test))
    severities = result.severities if result.texts else of_test
    return bool(severities) and severities <= _MILD


def _failed_tests(view: View, bad: list[Result], *, failing: bool) -> Outcome:
    ranked = sorted(bad, key=lambda result: (not result.entities, [*_ASKED].index(result.asks())))
    lines = [result.line() for result in ranked]
    named = {entity for result in bad for entity in result.entities}
    gravest = min((result.asks() for result in bad if result.severities), key=[*_ASKED].index, default=_UNTOLD)
    more = f"; {len(lines) - 3} more" if len(lines) > 3 else ""  # noqa: PLR2004 (a line's worth)
    judged: dict[str, Any] = {"value": len({result.test for result in bad}), "limit": LIMIT}
    judged["gpus"] = [gpu.uuid for gpu in view.snapshot.gpus if f"GPU {gpu.signal('index').value}" in named]
    tell = failed if failing else warned
    return tell("; ".join(lines[:3]) + more, fix=_ASKED[gravest], code="dcgm.test-failed", findings=lines, **judged)


def results(document: Any) -> list[Result]:
    """Return every test's results. Raises ValueError, saying what, where anything is not as it is known."""
    root = next((document[key] for key in _ROOTS if key in document), None) if isinstance(document, dict) else None
    if not isinstance(root, dict):
        message = f"neither of {' and '.join(_ROOTS)} is in it"
        raise ValueError(message)  # noqa: TRY004 (of a document)
    if root.get("runtime_error"):
        raise ValueError(str(root["runtime_error"]).strip())
    tests = [test for category in _rows(root, "test_categories") for test in _rows(category, "tests")]
    if not tests:
        message = "no test in it"
        raise ValueError(message)
    return [result for test in tests for result in _results_of(test)]


def _results_of(test: dict[str, Any]) -> list[Result]:
    name, summary = str(test.get("name") or "a test without a name"), test.get("test_summary")
    rows = _rows(test, "results")
    if isinstance(summary, dict) and summary.get("status") is not None:
        rows.append({**summary, "entity_id": None})
    if not rows:
        message = f"{name} has no result"
        raise ValueError(message)
    return [_result(name, row) for row in rows]


def _rows(table: Any, key: str) -> list[dict[str, Any]]:
    rows = table.get(key)
    if not isinstance(rows, list) or not all(row is None or isinstance(row, dict) for row in rows):
        message = f"{key} is no list of objects"
        raise ValueError(message)
    return [row for row in rows if row is not None]


def _result(test: str, row: dict[str, Any]) -> Result:
    status = _WORDS.get(str(row.get("status")).strip().lower())
    if status is None:
        message = f"{test}: unknown status {row.get('status')!r}"
        raise ValueError(message)
    given = row.get("warnings") or []
    warnings = [
        one if isinstance(one, dict) else {"warning": one} for one in (given if isinstance(given, list) else [given])
    ]
    return Result(test, status, _entities(row), [_text(one) for one in warnings], {*map(_severity, warnings)})


def _entities(row: dict[str, Any]) -> list[str]:
    if row.get("entity_id") is not None:
        return [f"{row.get('entity_group', 'entity')} {row['entity_id']}"]
    numbers = str(row.get("gpu_ids", row.get("gpu_id", "")))
    return [f"GPU {number.strip()}" for number in numbers.split(",") if number.strip()]


def _severity(warning: dict[str, Any]) -> int:
    """Return DCGM's own; 0 where it gives none, so not a mild one."""
    # A text without one may join several warnings, grave ones among them.
    severity = 1 if "error_severity" in warning and _HARMLESS.search(_text(warning)) else warning.get("error_severity")
    return severity if isinstance(severity, int) else 0


def _text(warning: dict[str, Any]) -> str:
    text = warning.get("warning") or warning.get("message") or json.dumps(warning)
    code = warning.get("error_id", warning.get("error_code"))
    return str(text).strip() + ("" if code is None else f" (DCGM error {code})")
