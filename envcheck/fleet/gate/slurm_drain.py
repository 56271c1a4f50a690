"""Drain this node in Slurm with a reason that says what failed: one call, bounded, only after a failed check."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from envcheck.node.subprocesses import output

_SECONDS: Final = 5.0


def drain(node: str, reason: str) -> str:
    """Drain a node and return "", or why that did not happen; it takes five seconds at the most.

    SchedMD advises against Slurm commands in a prolog. Without this one the reason would be "Prolog error".
    """
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return "scontrol is not on PATH"
    try:
        output(Path(scontrol), "update", f"nodename={node}", "state=drain", f"reason={reason}", timeout=_SECONDS)
    except OSError as error:
        return f"scontrol: {error.strerror or error}"
    return ""
