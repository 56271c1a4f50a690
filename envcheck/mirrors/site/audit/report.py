"""The result of an audit: what it found, its exit code, and the record that the site's exporter reads."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from envcheck import safe_files
from envcheck.mirrors.site.model import Site

SCHEMA: Final = "envcheck/mirror-audit/2"
Cache = Literal["packages", "models", "images", "trees"]
Verdict = Literal["clean", "poisoned", "unknown", "unreadable", "missing", "unavailable"]
# What gives the expected hash: a lock, the digest that names an image's part, or a tree's manifest.
Evidence = Literal["", "lock", "digest", "manifest"]
JUDGED: Final = frozenset({"clean", "poisoned"})
UNJUDGED: Final = frozenset({"unknown", "unreadable", "unavailable"})


@dataclasses.dataclass(frozen=True)
class AuditFinding:
    """The verdict on one file. `purged` are files that the audit removed; `fix` says how to remove the others."""

    name: str
    verdict: Verdict
    about: str = ""
    purged: tuple[str, ...] = ()
    cache: Cache = "packages"
    by: Evidence = ""
    fix: str = ""


def exit_code(findings: Sequence[AuditFinding], *, strict: bool) -> int:
    """Return 1 if a file is poisoned, 3 if no file could be judged or one could not be read, else 0.

    With `strict`, every file that could not be judged gives 3.
    """
    verdicts = {finding.verdict for finding in findings}
    if "poisoned" in verdicts:
        return 1
    if "unreadable" in verdicts or "clean" not in verdicts:
        return 3
    return 3 if strict and verdicts & UNJUDGED else 0


def as_json(findings: Sequence[AuditFinding]) -> dict[str, Any]:
    """Return the findings as the JSON document of `--json`."""
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.verdict] = counts.get(finding.verdict, 0) + 1
    return {"schema": SCHEMA, "counts": counts, "files": [dataclasses.asdict(finding) for finding in findings]}


def record(site: Site, findings: Sequence[AuditFinding]) -> str | None:
    """Write the audit's record for the exporter; return why it cannot be written, or None.

    An audit that judged nothing, or that could not read a file, leaves no record unless it found a poisoned one.
    """
    verdicts = [finding.verdict for finding in findings]
    judged = sum(verdict in JUDGED for verdict in verdicts)
    if "poisoned" not in verdicts and (not judged or {"unreadable", "unavailable"} & set(verdicts)):
        return None
    unjudged = sum(verdict in UNJUDGED for verdict in verdicts)
    content = {"time": time.time(), "files": judged, "poisoned": verdicts.count("poisoned"), "unjudged": unjudged}
    path = Path(site.root, "state/audit.json")
    try:
        safe_files.put(path, json.dumps(content).encode())
    except OSError as error:
        return f"cannot write {path}, so the metrics miss this audit: {error.strerror or type(error).__name__}"
    return None
