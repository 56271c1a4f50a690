"""torch.compile needs a compiler, Python's headers, ptxas and libcuda to link against; slim images leave them out.

pytorch/pytorch#116696, #170235 and #107960 are such images; each is named here by itself.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, warned

CHECK = checks.Check(promise="torch.compile finds what it compiles with", level="static")

LIMIT = checks.Limit("all", "", "pytorch/pytorch#116696, #107960, #103417; triton's own build step", "equal")
FIXES = {
    "C compiler": "install gcc, or set CC",
    "C++ compiler": "install g++, or set CXX",
    "Python.h": "install Python's headers (python3-dev, or the -dev package of this very Python)",
    "triton": "install the triton that this torch names",
    "ptxas": "reinstall triton, which brings it, or set TRITON_PTXAS_PATH",
    "libcuda.so.1": "run ldconfig after the driver was mounted, or set TRITON_LIBCUDA_PATH",
}
# What the target `devel` is made of.
OF_DEVEL = frozenset({"C compiler", "C++ compiler", "Python.h"})


def measure(rank: Rank) -> Measured:
    """Return which of the prerequisites are there, by name, with the paths of those found."""
    triton = importlib.util.find_spec("triton")
    return {
        "rank": rank.rank,
        "found": {
            "C compiler": _compiler("CC", ("gcc", "clang", "cc")),
            "C++ compiler": _compiler("CXX", ("g++", "clang++", "c++")),
            "Python.h": _file(Path(sysconfig.get_paths()["include"]) / "Python.h"),
            "triton": triton.origin if triton else None,
            "ptxas": _ptxas(triton.origin if triton else None),
            "libcuda.so.1": _libcuda(),
        },
    }


def _compiler(variable: str, names: tuple[str, ...]) -> str | None:
    chosen = os.environ.get(variable, "").split()
    if chosen:
        return shutil.which(chosen[0])
    return next((path for path in map(shutil.which, names) if path), None)


def _file(path: Path) -> str | None:
    return str(path) if path.is_file() else None


def _ptxas(triton: str | None) -> str | None:
    """Return triton's own ptxas, as it would look for it: its variable, its wheel, then PATH."""
    chosen = os.environ.get("TRITON_PTXAS_PATH")
    if chosen:
        return _file(Path(chosen))
    shipped = _file(Path(triton).parent / "backends" / "nvidia" / "bin" / "ptxas") if triton else None
    return shipped or shutil.which("ptxas")


def _libcuda() -> str | None:
    """Return where triton would link the driver's library from: its variable, the loader's cache, LD_LIBRARY_PATH."""
    chosen = os.environ.get("TRITON_LIBCUDA_PATH")
    if chosen:
        return chosen if Path(chosen).is_dir() else None
    directories = [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    beside = (_file(Path(directory, "libcuda.so.1")) for directory in directories)
    return ctypes.util.find_library("cuda") or next((path for path in beside if path), None)


def judge(view: View, ranks: Ranks) -> Outcome:
    """Warn naming each that is missing (a CPU wheel needs three); fail where a `devel` has no compiler."""
    if not view.environment.get("torch"):
        return skipped(f"no torch to compile for: {view.environment.get('error', 'none was asked')}", code="torch.none")
    tools = ranks[0].get("found") if ranks else None
    if not isinstance(tools, dict):
        return undecided("the prerequisites were not looked for", code="compile-prerequisites.unmeasured")
    needed = ["C compiler", "C++ compiler", "Python.h"]
    needed += ["triton", "ptxas"] if view.environment.get("cuda") else []
    needed += ["libcuda.so.1"] if view.mode == "gpu" else []
    missing = [name for name in needed if not (isinstance(tools.get(name), str) and tools[name])]
    if missing:
        report = failed if view.promises.get("target") == "devel" and not OF_DEVEL.isdisjoint(missing) else warned
        return report(
            f"torch.compile misses {', '.join(missing)}",
            fix="; ".join(FIXES[name] for name in missing) + "; or use a devel image where torch.compile is wanted",
            value=missing,
            limit=LIMIT,
            found=tools,
            code="compile-prerequisites.missing",
        )
    return passed(f"{', '.join(needed)} are there", value=[], limit=LIMIT, found=tools)
