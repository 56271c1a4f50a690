"""Find settings of mirrors and downloads that no program reads, or that are dangerous, in files and variables.

Pure: documents in, findings out. Findings name variables, options and hosts, never a value, as it may be a secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from envcheck.mirrors.doctor.document import Document, prepare
from envcheck.mirrors.doctor.rules import RULES

Level = Literal["danger", "unreal", "outdated"]


class DoctorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A fault at one place. `danger`: leaks a secret or accepts wrong bytes; `unreal`: fails or has no effect.

    `outdated`: will soon fail or have no effect. Line 0 means the whole file.
    """

    id: str
    level: Level
    where: str
    line: int
    what: str
    fix: str


def examine(documents: Iterable[Document]) -> list[DoctorFinding]:
    """Return the findings in each document, by line, without duplicates of one line."""
    findings: dict[tuple[str, int, str, str], DoctorFinding] = {}
    for document in documents:
        source = prepare(document)
        for rule in RULES:
            for at, problem, fix in rule.find(source):
                finding = DoctorFinding(
                    id=rule.id, level=rule.level, where=document.name, line=source.line(at), what=problem, fix=fix
                )
                findings.setdefault((finding.where, finding.line, finding.id, finding.what), finding)
    return sorted(findings.values(), key=lambda finding: (finding.where, finding.line, finding.id))


def has_faults(findings: Iterable[DoctorFinding]) -> bool:
    """Tell whether any finding is worse than outdated."""
    return any(finding.level != "outdated" for finding in findings)
