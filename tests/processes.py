"""Programs that tests run to their end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def ran(argv: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program as subprocess.run does, and keep what it writes; how it ends is the test's to judge."""
    return subprocess.run(argv, capture_output=True, text=True, check=False, **options)
