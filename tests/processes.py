"""Programs that tests run to their end."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


def program(name: str, path: str = "") -> str:
    """Return a real server or client, on a search path or this machine's own; skip without it."""
    found = shutil.which(name, path=f"{path or os.environ['PATH']}:/usr/sbin")
    if found is None:
        pytest.skip(f"no {name} here (`make test` unpacks it where apt is)")
    return found


def ran(argv: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program as subprocess.run does, and keep what it writes; how it ends is the test's to judge."""
    return subprocess.run(argv, capture_output=True, text=True, check=False, **options)


def checked(python: str | Path, output: Path, *words: str, before: Sequence[str] = (), **options: Any) -> Any:
    """Run `envcheck run` with a Python: how it ended, and the outcomes of its report by id."""
    command = [*before, sys.executable, "-m", "envcheck", "--quiet", "run", "--python", str(python), *words]
    done = ran([*command, "--output", str(output)], **options)
    assert output.exists(), done.stderr
    return done, {row["id"]: row for row in json.loads(output.read_bytes())["outcomes"]}


def typed(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run envcheck as a user does."""
    return ran([sys.executable, "-m", "envcheck", *words], **options)
