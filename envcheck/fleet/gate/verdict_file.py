"""Where a verdict is kept between runs: one file for each node and environment, of this user, whole or not at all."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from envcheck import safe_files
from envcheck.data import state_path
from envcheck.fleet.gate.this_boot import fingerprint, this_boot
from envcheck.fleet.gate.verdict import GatedEnvironment, NodeVerdict, file_name, image_subject, of_report, replaces

if TYPE_CHECKING:
    from envcheck.reports.model import RunReport

_LIMIT: Final = 1 << 16


def path_of(node: str, subject: GatedEnvironment) -> Path:
    """Return where the verdict is kept: below $ENVCHECK_HOME, else in the user's data directory."""
    return state_path("gate", file_name(node, subject))


def read(path: Path) -> NodeVerdict | None:
    """Return a kept verdict; None where there is none, or only what another user, a crash or another version left."""
    try:
        content = safe_files.read(path, _LIMIT + 1)
        return msgspec.json.decode(content, type=NodeVerdict) if len(content) <= _LIMIT else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def keep(verdict: NodeVerdict) -> Path:
    """Write a verdict, unless the kept one still says more; return its file. Raises OSError where it cannot be kept."""
    path = path_of(verdict.at.node, verdict.subject)
    path.parent.mkdir(parents=True, exist_ok=True)
    if replaces(verdict, read(path)):
        safe_files.put(path, msgspec.json.encode(verdict), 0o600)
    return path


def keep_run(report: RunReport, where: Path | None, python: str | None) -> None:
    """Keep the verdict of a whole run for the gate, if it has ended and can be kept; `python` is one in the image."""
    target = report.target
    if target.kind == "image":
        subject = image_subject(target.name, target.image_id, python)
    else:
        subject = GatedEnvironment(kind="python", name=target.name, state=fingerprint(Path(target.name)))
    verdict = of_report(report, subject, this_boot(), str(where.absolute()) if where else "")
    if verdict is not None:
        with contextlib.suppress(OSError):
            keep(verdict)
