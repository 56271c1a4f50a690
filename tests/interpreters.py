"""The Python interpreters of this machine that tests run foreign code in."""

import os
import shutil
import sys
from pathlib import Path


def interpreters() -> list[str]:
    """Return one interpreter of each minor version from 3.9 on (pyenv or PATH), and the distribution's own."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = []
    for minor in range(9, 16):
        actual = [*sorted(map(str, root.glob(f"versions/3.{minor}.*/bin/python"))), shutil.which(f"python3.{minor}")]
        found += [python for python in actual if python][:1]
    own = ["/usr/bin/python3"] if Path("/usr/bin/python3").exists() else []
    return [*found, *own] or [sys.executable]
