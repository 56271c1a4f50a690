"""Find settings of mirrors and downloads that nothing reads, or that are dangerous, in files and in an environment.

Pure: texts in, findings out. What a finding says names variables, options and hosts, never a value: it may be a secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from envcheck.mirrors.doctor.document import Text, read
from envcheck.mirrors.doctor.rules import RULES

Level = Literal["danger", "unreal", "outdated"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One place. `danger` leaks a secret or takes wrong bytes; `unreal` fails or does nothing; `outdated` soon will.

    Line 0 stands for the whole file.
    """

    id: str
    level: Level
    where: str
    line: int
    what: str
    fix: str


def examine(texts: Iterable[Text]) -> list[Finding]:
    """Return what is wrong in each text, by line; the same thing of one line is told once."""
    found: dict[tuple[str, int, str, str], Finding] = {}
    for text in texts:
        source = read(text)
        for rule in RULES:
            for at, what, fix in rule.find(source):
                finding = Finding(
                    id=rule.id, level=rule.level, where=text.name, line=source.line(at), what=what, fix=fix
                )
                found.setdefault((finding.where, finding.line, finding.id, finding.what), finding)
    return sorted(found.values(), key=lambda finding: (finding.where, finding.line, finding.id))


def wrong(findings: Iterable[Finding]) -> bool:
    """Tell whether anything is worse than outdated."""
    return any(finding.level != "outdated" for finding in findings)
