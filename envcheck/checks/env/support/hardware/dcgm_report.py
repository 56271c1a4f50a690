"""What `dcgmi diag -j` says, of DCGM 3 and 4: the JSON has no published schema, so unknown shapes are reported.

DCGM 3 keys it "DCGM GPU Diagnostic" and names GPUs in `gpu_id` or `gpu_ids`; DCGM 4 keys it "DCGM Diagnostic" and has
`entity_group`, `entity_id` and a `test_summary`. Both put nulls into their lists, and text before the JSON (DCGM's own
nvvs tests, "Deserialize real output"; NVIDIA/DCGM#139, facebookresearch/gcm#38).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

PASSED, FAILED, WARNED, SKIPPED = "pass", "fail", "warn", "skip"
_WORDS = {"pass": PASSED, "fail": FAILED, "warn": WARNED, "warning": WARNED, "skip": SKIPPED, "skipped": SKIPPED}
_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
# What is kept of it: serial numbers of the boards stand beside them.
_KEPT = ("test_categories", "runtime_error", "version")


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
    return {key: root[key] for key in _KEPT if key in root} if isinstance(root, dict) else None


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
    return [result for test in tests for result in _of_test(test)]


def _of_test(test: dict[str, Any]) -> list[Result]:
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
