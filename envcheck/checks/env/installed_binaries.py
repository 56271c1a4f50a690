"""A library with one wrong byte loads, and computes something else, or crashes weeks later.

Every other file of torch, triton and NVIDIA's packages is compared with the digest that its installer wrote down.
"""

from __future__ import annotations

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, undecided, worst
from envcheck.checks.env import installed_files
from envcheck.checks.support import package_files

CHECK = Check(
    promise="every library of torch, triton and NVIDIA's packages is, byte for byte, the one that was installed",
    level="standard",
    seconds=8.0,
    cpu_seconds=1.5,
    timeout=600.0,
)

# Nothing of these computes: who removed documentation or headers to save room has broken nothing.
IDLE = (".h", ".hpp", ".cuh", ".cpp", ".cu", ".md", ".txt", ".cmake", ".a", ".html", ".pyi", ".rst")


def measure(rank: Rank) -> Measured:
    """Digest every file but Python's."""
    packages = package_files.packages()
    compared = package_files.compare(f for package in packages for f in package.files if f.path.suffix != ".py")
    idle = [path for path in compared["missing"] if path.endswith(IDLE) or "/share/" in path or "-info/" in path]
    compared["missing"] = [path for path in compared["missing"] if path not in set(idle)]
    return {**installed_files.entry(rank, packages, compared), "idle": len(idle)}


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on each file that is changed or missing; warn of packages that recorded none."""
    measured = ranks[0] if ranks else {}
    if view.environment.get("error") and not measured.get("packages"):
        return undecided(f"no torch to compare: {view.environment['error']}", code="installed.none")
    return worst(installed_files.problems(measured), otherwise=installed_files.summary(measured, "other files"))
