"""A C++ compiler that is there, and fails."""

from __future__ import annotations

import os
from pathlib import Path

from envcheck.checks import Measured, Rank
from envcheck.checks.env import compiled

CHECK = compiled.CHECK
judge = compiled.judge


def measure(rank: Rank) -> Measured:
    broken = Path(rank.scratch) / "g++"
    broken.write_text("#!/bin/sh\necho 'fatal error: Python.h: No such file or directory' >&2\nexit 1\n")
    broken.chmod(0o755)
    os.environ["CXX"] = str(broken)
    os.environ["PATH"] = f"{rank.scratch}:{os.environ['PATH']}"
    return compiled.measure(rank)
