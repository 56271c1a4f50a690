"""The Python interpreters of this machine that tests run foreign code in."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path


def interpreters() -> list[str]:
    """Return one interpreter of each minor version from 3.9 on (pyenv or PATH), and the distribution's own."""
    own = ["/usr/bin/python3"] if Path("/usr/bin/python3").exists() else []
    return [*_minor_versions(), *own] or [sys.executable]


def _minor_versions() -> Iterator[str]:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for minor in range(9, 16):
        actual = [*sorted(map(str, root.glob(f"versions/3.{minor}.*/bin/python"))), shutil.which(f"python3.{minor}")]
        yield from [python for python in actual if python][:1]
