"""An audit as the tests run it: the command itself, in this process, as its start takes longer than what it does."""

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
    done = CliRunner().invoke(cli, command, standalone_mode=False, catch_exceptions=False)
    files = json.loads(done.stdout)["files"]
    return done.return_value, {one["name"]: one for one in files if one["cache"] == cache}


def verdicts(found: Findings) -> dict[str, str]:
    """Return what each finding says."""
    return {name: one["verdict"] for name, one in found.items()}
