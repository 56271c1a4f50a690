"""`envcheck mirror audit` as the tests run it: in this process, because the start of another takes longer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from envcheck.cli import cli

Findings = dict[str, dict[str, Any]]


def audit(where: Path | str, cache: str, *options: str) -> tuple[int, Findings]:
    """Return the exit code and the findings about one kind of cache, by name."""
    command = ["mirror", "audit", str(where), *options, "--json"]
    result = CliRunner().invoke(cli, command, standalone_mode=False, catch_exceptions=False)
    files = json.loads(result.stdout)["files"]
    return result.return_value, {one["name"]: one for one in files if one["cache"] == cache}


def verdicts(findings: Findings) -> dict[str, str]:
    """Return the verdict of each finding."""
    return {name: one["verdict"] for name, one in findings.items()}


def spoil(path: Path, at: int = -9) -> bytes:
    """Change one byte deep in a file and not its size; return what it was."""
    content = path.read_bytes()
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 or len(content) :])
    return content
