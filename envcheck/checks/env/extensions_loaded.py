"""An extension may install and import, and still do without its native part, compute nothing, or end the process.

Each extension is imported in a process of its own, its libraries are loaded, and its smallest operation is run: it may
go on without its native part (pytorch/ao#2919), abort (pytorch/ao#2908), or take the CPU (microsoft/onnxruntime#21684).
"""

from __future__ import annotations

from pathlib import Path

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View
from envcheck.checks.extensions import installed, trials
from envcheck.checks.extensions.operations import OPERATIONS

CHECK = Check(
    promise="every installed extension imports, loads its native part, and computes its smallest operation right",
    level="quick",
    # Which extensions there are is known only when it runs: without any it takes 0.3 s, with some it took up to 22 s on
    # CPUs (not measured on GPUs). A budget must not be exceeded, so an environment with some is planned.
    seconds=12.0,
    cpu_seconds=15.0,
    timeout=560.0,
)
# What is left of the timeout is for reading the libraries.
_PATIENCE = 500.0


def measure(rank: Rank) -> Measured:
    """Try each installed extension in a process of its own."""
    extensions = installed.extensions(installed.distributions())
    gpu = rank.device.startswith("cuda")
    results = trials.run_all(extensions, Path(rank.scratch), _PATIENCE, gpu=gpu)
    return {
        "rank": rank.rank,
        "gpu": gpu,
        "interpreter": installed.interpreter(),
        "extensions": [_row(extension, results[extension.name]) for extension in extensions],
    }


def _row(extension: installed.InstalledExtension, trial: Measured | None) -> Measured:
    return {
        "name": extension.name,
        "version": extension.version,
        "libraries": len(extension.libraries),
        "gpu_code": any(library.sass or library.ptx for library in extension.libraries),
        "operation": extension.name in OPERATIONS,
        "trial": trial,
    }


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on each extension that does not import, goes on without its native part, or computes something else."""
    # Facts and version rules are for envcheck's own process; `measure` runs in the environment's Python.
    from envcheck.checks import loaded_judge

    return loaded_judge.judge(view, ranks)
