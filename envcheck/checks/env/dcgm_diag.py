"""NVIDIA's own diagnostic, where it is installed: what a vendor's support asks for first, in the same report.

Seen in the wild: `dcgmi diag` parsed by its first GPU alone, by a key that DCGM 4 renamed, or by its exit code, so that
broken GPUs passed (facebookresearch/gcm#38); a persistence mode that is off taken for broken hardware; runs that hang
for hours (NVIDIA/DCGM#136). Level 2 takes minutes; ENVCHECK_DCGM_DIAG=1 or 3 asks for another.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

from envcheck.checks import (
    Check,
    Limit,
    Measured,
    Outcome,
    Rank,
    Ranks,
    View,
    failed,
    passed,
    skipped,
    undecided,
    warned,
)
from envcheck.checks.support import subprocesses

CHECK = Check(
    promise="NVIDIA's diagnostic (dcgmi diag) finds nothing", level="full", seconds=150.0, timeout=2500.0, gpus=1
)

NAME = "ENVCHECK_DCGM_DIAG"
# NVIDIA's own words: seconds, about two minutes, about fifteen; seen in the field: up to three times that.
SECONDS = {"1": 120.0, "2": 900.0, "3": 2400.0}
LIMIT = Limit(0, "failed tests", "NVIDIA DCGM diagnostics (dcgmi diag)", "equal")
_DOWN = ("unable to establish a connection", "Unable to connect to host engine", "Host engine is not running")
_START = "start its host engine: systemctl start nvidia-dcgm"
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
_MILD = (1, 5)


def measure(rank: Rank) -> Measured:
    """Run it on every GPU that its host engine sees; the document is kept as it is, to be judged here and later."""
    tool, level = shutil.which("dcgmi"), os.environ.get(NAME, "2")
    if tool is None:
        return {"rank": rank.rank, "installed": False}
    if level not in SECONDS:
        message = f"{NAME} is {level!r}, not one of {', '.join(SECONDS)}"
        raise ValueError(message)
    done = subprocesses.run([tool, "diag", "-r", level, "-j"], SECONDS[level])
    summary = f"{done.errors}\n{done.output}".strip()
    return {
        "rank": rank.rank,
        "installed": True,
        "level": level,
        "code": done.code,
        "document": document(done.output),
        "said": summary[-_KEPT:],
    }


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on what DCGM fails, warn on what it warns of or calls configuration; what is not understood is an error."""
    entry = ranks[0] if ranks else {}
    if entry.get("installed") is False:
        return skipped("dcgmi is not installed here", code="dcgm.not-installed")
    output = str(entry.get("said", ""))
    if entry.get("code") is None:
        return undecided(
            "dcgmi diag did not end in time, or was not run",
            fix="look at `dmesg` and nv-hostengine.log",
            code="dcgm.unfinished",
        )
    if entry.get("document") is None:
        if any(word in output for word in _DOWN):
            return skipped(f"dcgmi is here and its host engine does not answer; {_START}", code="dcgm.no-host-engine")
        last = (output.splitlines() or ["nothing"])[-1]
        return undecided(
            f"dcgmi diag wrote no JSON (exit code {entry['code']}): {last}", fix=_START, code="dcgm.no-result"
        )
    try:
        tests = results(entry["document"])
    except UnknownShapeError as error:
        return undecided(
            f"dcgmi diag: {error}", fix=f"run `dcgmi diag -r {entry.get('level')}` by hand", code="dcgm.unknown-format"
        )
    return _judged(view, entry, tests)


def _judged(view: View, entry: Measured, results: list[Result]) -> Outcome:
    bad = [result for result in results if result.status in (FAILED, WARNED)]
    bad += [result for result in results if result.status == PASSED and _worst(result.findings) in (2, 3, 4, 6)]
    grave = [r for r in bad if r.status == FAILED and not _mild(r.findings, _of_test(bad, r.test))]
    if bad:
        return _failed_tests(view, grave or bad, failed if grave else warned)
    if entry["code"] != 0:
        why = f"dcgmi diag ended with code {entry['code']}, and no test says why"
        return undecided(why, fix="run it by hand, and look at nvvs.log", code="dcgm.unexplained-exit")
    ran = sorted({result.test for result in results if result.status == PASSED})
    left = sorted({result.test for result in results} - set(ran))
    also = f"; not run here: {', '.join(left)}" if left else ""
    if not ran:
        return skipped(f"dcgmi diag skipped every test{also}", code="dcgm.skipped")
    return passed(f"level {entry.get('level')}: {', '.join(ran)}{also}", value=0, unit=LIMIT.unit, limit=LIMIT)


def _of_test(results: list[Result], test: str) -> list[Finding]:
    return [finding for result in results if result.test == test for finding in result.findings]


def _mild(own: list[Finding], of_test: list[Finding]) -> bool:
    """Tell whether a failure is of nothing but configuration; a summary without reasons has those of its test."""
    findings = own or of_test
    return bool(findings) and all(finding.severity in _MILD for finding in findings)


def _worst(findings: list[Finding]) -> Any:
    return next((severity for severity in _ASKED if any(f.severity == severity for f in findings)), None)


def _failed_tests(view: View, bad: list[Result], verdict: Callable[..., Outcome]) -> Outcome:
    """Name test, GPU and DCGM's own text of the gravest first."""
    order = list(_ASKED)
    ranked = sorted(bad, key=lambda r: (not r.entities, order.index(_worst(r.findings) or 3)))
    lines = [line for line in map(_line, ranked) if line]
    named = sorted({entity for result in bad for entity in result.entities})
    tests = {result.test for result in bad}
    fix = _ASKED.get(_worst([f for result in bad for f in result.findings]), _ASKED[3])
    summary = "; ".join(lines[:3]) + (f"; {len(lines) - 3} more" if len(lines) > 3 else "")  # noqa: PLR2004
    gpus = [gpu.uuid for gpu in view.snapshot.gpus if f"GPU {gpu.signal('index').value}" in named]
    return verdict(
        summary,
        fix=fix,
        value=len(tests),
        unit=LIMIT.unit,
        limit=LIMIT,
        gpus=gpus,
        findings=lines,
        code="dcgm.test-failed",
    )


def _line(result: Result) -> str:
    if not result.entities and not result.findings:
        return f"{result.test}: {result.status}"
    texts = [f"{f.text}{'' if f.code is None else f' (DCGM error {f.code})'}" for f in result.findings]
    return f"{' and '.join(result.entities[:4]) or 'node'}, {result.test}: {'; '.join(texts) or result.status}"


PASSED, FAILED, WARNED, SKIPPED = "pass", "fail", "warn", "skip"
_WORDS = {"pass": PASSED, "fail": FAILED, "warn": WARNED, "warning": WARNED, "skip": SKIPPED, "skipped": SKIPPED}
_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
# What is kept of it: serial numbers of the boards stand beside them.
_RUN_KEYS = ("test_categories", "runtime_error", "version")


class Finding(NamedTuple):
    """One thing a test says: `severity` is dcgmErrorSeverity_t, `code` a DCGM_FR_*; None where it gives none."""

    text: str
    code: int | None
    severity: int | None


class Result(NamedTuple):
    """One test on the entities ("GPU 3") it was run on; none for a whole test's summary."""

    test: str
    status: str
    entities: list[str]
    findings: list[Finding]


class UnknownShapeError(ValueError):
    """The JSON is not of a shape that is known."""


def document(text: str) -> Any:
    """Return the JSON that stands in a program's output, without serial numbers; None where there is none."""
    start, end = text.find("{"), text.rfind("}")
    try:
        document = json.loads(text[start : end + 1]) if 0 <= start < end else None
    except ValueError:
        return None
    if not isinstance(document, dict):
        return document
    return {key: _kept(document[key]) for key in _ROOTS if key in document}


def _kept(root: Any) -> Any:
    return {key: root[key] for key in _RUN_KEYS if key in root} if isinstance(root, dict) else None


def results(document: Any) -> list[Result]:
    """Return every test's results. Raises UnknownShapeError, saying what, where anything is not as it is known."""
    root = next((document[key] for key in _ROOTS if key in document), None) if isinstance(document, dict) else None
    if not isinstance(root, dict):
        message = f"neither of {' and '.join(_ROOTS)} is in it"
        raise UnknownShapeError(message)
    if root.get("runtime_error"):
        raise UnknownShapeError(str(root["runtime_error"]).strip())
    tests = [test for category in _rows(root, "test_categories") for test in _rows(category, "tests")]
    if not tests:
        message = "no test in it"
        raise UnknownShapeError(message)
    return [result for test in tests for result in _results_of(test)]


def _results_of(test: dict[str, Any]) -> list[Result]:
    name = str(test.get("name") or "a test without a name")
    parsed = [_result(name, row) for row in _rows(test, "results")]
    summary = test.get("test_summary")
    if isinstance(summary, dict) and summary.get("status") is not None:
        parsed.append(_result(name, {**summary, "entity_id": None}))
    if not parsed:
        message = f"{name} has no result"
        raise UnknownShapeError(message)
    return parsed


def _rows(table: Any, key: str) -> list[dict[str, Any]]:
    rows = table.get(key)
    if not isinstance(rows, list) or not all(row is None or isinstance(row, dict) for row in rows):
        message = f"{key} is no list of objects"
        raise UnknownShapeError(message)
    return [row for row in rows if row is not None]


def _result(test: str, row: dict[str, Any]) -> Result:
    status = _WORDS.get(str(row.get("status")).strip().lower())
    if status is None:
        message = f"{test}: unknown status {row.get('status')!r}"
        raise UnknownShapeError(message)
    return Result(test, status, _entities(row), [_finding(entry) for entry in _list(row.get("warnings"))])


def _entities(row: dict[str, Any]) -> list[str]:
    if row.get("entity_id") is not None:
        return [f"{row.get('entity_group', 'entity')} {row['entity_id']}"]
    numbers = str(row.get("gpu_ids", row.get("gpu_id", "")))
    return [f"GPU {number.strip()}" for number in numbers.split(",") if number.strip()]


def _finding(entry: Any) -> Finding:
    if not isinstance(entry, dict):
        return Finding(str(entry), None, None)
    text = entry.get("warning") or entry.get("message") or json.dumps(entry)
    code = entry.get("error_id", entry.get("error_code"))
    return Finding(str(text).strip(), _number(code), _number(entry.get("error_severity")))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value in (None, "") else [value]


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
