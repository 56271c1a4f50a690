"""Hash again what a mirror serves, and take out of its caches what is not what the locks say.

A cache never looks at a file again: what it once took wrongly it serves for ever. Here is what an audit finds and what
that comes to; each kind of cache has a module of its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from envcheck.mirrors.site.audit_disk import Unread, unread
from envcheck.mirrors.site.model import Site

SCHEMA: Final = "envcheck/mirror-audit/1"
Cache = Literal["packages", "models", "images", "trees", "object store"]
Verdict = Literal["clean", "poisoned", "in part", "unknown", "unreadable", "not cached", "not to be had"]
# What vouched: a lock, the name that is itself the hash, the version's manifest, or what the upstream tells.
By = Literal["", "lock", "name", "manifest", "upstream"]
JUDGED: Final = frozenset({"clean", "poisoned"})
UNJUDGED: Final = frozenset({"in part", "unknown", "unreadable", "not to be had"})


@dataclasses.dataclass(frozen=True)
class Finding:
    """One file: what the mirror has under its name, and who says what it must be. `purged` are files removed for it."""

    name: str
    verdict: Verdict
    about: str = ""
    purged: tuple[str, ...] = ()
    cache: Cache = "packages"
    by: By = ""


def not_read(cache: Cache, what: Unread, root: Path) -> Finding:
    """Return the finding of what could not be read, or is no part of such a cache: neither is ever called clean."""
    name = str(what.path.relative_to(root) if root in what.path.parents else what.path)
    if what.strange:
        return Finding(name, "unknown", what.why, cache=cache)
    return Finding(name, "unreadable", f"{what.path}: {what.why}", cache=cache)


def unreadable(cache: Cache, name: str, path: Path, error: OSError) -> Finding:
    """Return the finding of a file that could not be hashed."""
    return Finding(name, "unreadable", f"{path}: {unread(path, error).why}", cache=cache)


def exit_code(findings: Sequence[Finding], *, strict: bool) -> int:
    """Return 1 where something was poisoned, 3 where nothing could be told or a part could not be read, else 0.

    With `strict` nothing may be left that could not be judged.
    """
    said = {finding.verdict for finding in findings}
    if "poisoned" in said:
        return 1
    if "unreadable" in said or "clean" not in said:
        return 3
    return 3 if strict and said & UNJUDGED else 0


def told(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as JSON tells them."""
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.verdict] = counts.get(finding.verdict, 0) + 1
    return {"schema": SCHEMA, "counts": counts, "files": [dataclasses.asdict(finding) for finding in findings]}


def record(site: Site, findings: Sequence[Finding]) -> str | None:
    """Write down what the exporter tells of the audit; nothing where a cache could not be read: that was none.

    Return why it cannot be written down, or None.
    """
    said = [finding.verdict for finding in findings]
    if "poisoned" not in said and {"unreadable", "not to be had"} & set(said):
        return None
    judged = sum(verdict in JUDGED for verdict in said)
    left = sum(verdict in UNJUDGED for verdict in said)
    kept = {"time": time.time(), "files": judged, "poisoned": said.count("poisoned"), "unjudged": left}
    path = Path(site.root, "state/audit.json")
    part = path.with_name(f"audit.json.{os.getpid()}")
    try:
        part.write_text(json.dumps(kept))
        os.replace(part, path)  # noqa: PTH105 (a rename that may go over an older file, said as such)
    except OSError as error:
        return f"{path} cannot be written, so that no metric tells of this: {unread(path, error).why}"
    return None
