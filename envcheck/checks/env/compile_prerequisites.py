"""torch.compile needs a compiler, Python's headers, ptxas and libcuda to link against; slim images leave them out.

pytorch/pytorch#116696, #170235 and #107960 are such images; each is named here by itself. So are places for compiled
code that take none, and a user without a name, whom torch asks for one (pytorch/pytorch#140765).
"""

from __future__ import annotations

import ctypes.util
import getpass
import importlib.util
import json
import os
import shutil
import sysconfig
import tempfile
from pathlib import Path

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, warned

CHECK = checks.Check(promise="torch.compile finds what it compiles with", level="static")

LIMIT = checks.Limit("all", "", "pytorch/pytorch#116696, #107960, #103417; triton's own build step", "equal")
FIXES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_ROOM = 1 << 20  # bytes that a place for compiled code takes at least
# What the target `devel` is made of.
OF_DEVEL = frozenset({"C compiler", "C++ compiler", "Python.h"})


def measure(rank: Rank) -> Measured:
    """Return which of the prerequisites are there, by name, with the paths of those found."""
    triton, setuptools = map(importlib.util.find_spec, ("triton", "setuptools"))
    return {
        "rank": rank.rank,
        "found": {
            "C compiler": _compiler("CC", ("gcc", "clang", "cc")),
            "C++ compiler": _compiler("CXX", ("g++", "clang++", "c++")),
            "Python.h": _file(Path(sysconfig.get_paths()["include"]) / "Python.h"),
            "triton": triton.origin if triton else None,
            "ptxas": _ptxas(triton.origin if triton else None),
            "libcuda.so.1": _libcuda(),
            "setuptools": setuptools.origin if setuptools else None,
        },
        "unfit": _unfit(os.environ.get("HOME", "") if triton else ""),
    }


def _unfit(home: str) -> list[str]:
    """Return where compiled code cannot be kept or loaded, and why; torch makes directories, triton in a `home`."""
    chosen = [os.environ.get(name, "") for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    lacking = []
    for place in map(Path, filter(None, [chosen[0] or tempfile.gettempdir(), chosen[1] or home])):
        # Path.exists raises where a directory above may not be searched.
        there = next(above for above in (place, *place.absolute().parents) if os.path.exists(above))  # noqa: PTH110
        try:
            with tempfile.TemporaryFile(dir=str(there)) as file:
                file.write(bytes(_ROOM))
            why = "mounted noexec" if os.statvfs(there).f_flag & os.ST_NOEXEC else ""
        except OSError as error:
            why = error.strerror or str(error)
        lacking += [f"{there}: {why}"] if why else []
    try:
        chosen[0] or getpass.getuser()
    except (KeyError, OSError):
        lacking.append(f"user {os.getuid()} has no name to make a directory of")
    return lacking


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
    """Warn naming each that is missing (a CPU wheel needs four); fail where a `devel` has no compiler."""
    if not view.environment.get("torch"):
        return skipped(f"no torch to compile for: {view.environment.get('error', 'none was asked')}", code="torch.none")
    tools = ranks[0].get("found") if ranks else None
    if not isinstance(tools, dict):
        return undecided("the prerequisites were not looked for", code="compile-prerequisites.unmeasured")
    needed = ["C compiler", "C++ compiler", "Python.h"]
    needed += ["triton", "ptxas"] if view.environment.get("cuda") else [name for name in tools if name == "setuptools"]
    needed += ["libcuda.so.1"] if view.mode == "gpu" else []
    missing = [name for name in needed if not (isinstance(tools.get(name), str) and tools[name])]
    unfit = [str(text) for text in ranks[0].get("unfit") or []]
    if not missing and unfit:
        fix = "set TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR to directories of yours with room, not mounted noexec"
        text = f"torch.compile cannot keep its code: {'; '.join(unfit)}"
        return warned(text, fix=fix, value=unfit, limit=LIMIT, found=tools, code="compile-prerequisites.cache")
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
