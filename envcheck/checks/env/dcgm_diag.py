"""NVIDIA's own diagnostic, where it is installed: what a vendor's support asks for first, in the same report.

Seen in the wild: `dcgmi diag` parsed by its first GPU alone, by a key that DCGM 4 renamed, or by its exit code, so that
broken GPUs passed (facebookresearch/gcm#38); a persistence mode that is off taken for broken hardware; runs that hang
for hours (NVIDIA/DCGM#136). Level 2 takes minutes; ENVCHECK_DCGM_DIAG=1 or 3 asks for another.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

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
from envcheck.checks.env.support.hardware import dcgm_report
from envcheck.checks.env.support.process import subprocesses

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
        "document": dcgm_report.document(done.output),
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
        results = dcgm_report.results(entry["document"])
    except dcgm_report.UnknownShapeError as error:
        return undecided(
            f"dcgmi diag: {error}", fix=f"run `dcgmi diag -r {entry.get('level')}` by hand", code="dcgm.unknown-format"
        )
    return _judged(view, entry, results)


def _judged(view: View, entry: Measured, results: list[dcgm_report.Result]) -> Outcome:
    bad = [result for result in results if result.status in (dcgm_report.FAILED, dcgm_report.WARNED)]
    bad += [
        result for result in results if result.status == dcgm_report.PASSED and _worst(result.findings) in (2, 3, 4, 6)
    ]
    grave = [r for r in bad if r.status == dcgm_report.FAILED and not _mild(r.findings, _of_test(bad, r.test))]
    if bad:
        return _failed_tests(view, grave or bad, failed if grave else warned)
    if entry["code"] != 0:
        why = f"dcgmi diag ended with code {entry['code']}, and no test says why"
        return undecided(why, fix="run it by hand, and look at nvvs.log", code="dcgm.unexplained-exit")
    ran = sorted({result.test for result in results if result.status == dcgm_report.PASSED})
    left = sorted({result.test for result in results} - set(ran))
    also = f"; not run here: {', '.join(left)}" if left else ""
    if not ran:
        return skipped(f"dcgmi diag skipped every test{also}", code="dcgm.skipped")
    return passed(f"level {entry.get('level')}: {', '.join(ran)}{also}", value=0, unit=LIMIT.unit, limit=LIMIT)


def _of_test(results: list[dcgm_report.Result], test: str) -> list[dcgm_report.Finding]:
    return [finding for result in results if result.test == test for finding in result.findings]


def _mild(own: list[dcgm_report.Finding], of_test: list[dcgm_report.Finding]) -> bool:
    """Tell whether a failure is of nothing but configuration; a summary without reasons has those of its test."""
    findings = own or of_test
    return bool(findings) and all(finding.severity in _MILD for finding in findings)


def _worst(findings: list[dcgm_report.Finding]) -> Any:
    return next((severity for severity in _ASKED if any(f.severity == severity for f in findings)), None)


def _failed_tests(view: View, bad: list[dcgm_report.Result], verdict: Callable[..., Outcome]) -> Outcome:
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


def _line(result: dcgm_report.Result) -> str:
    if not result.entities and not result.findings:
        return f"{result.test}: {result.status}"
    texts = [f"{f.text}{'' if f.code is None else f' (DCGM error {f.code})'}" for f in result.findings]
    return f"{' and '.join(result.entities[:4]) or 'node'}, {result.test}: {'; '.join(texts) or result.status}"
