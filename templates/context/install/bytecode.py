# ruff: noqa: INP001 (a script of a build)
"""bytecode.py DIRECTORY: compile what is not compiled yet, so that a user who cannot write there need not each time.

What uv notes for itself goes first: it holds times. The bytecode carries its source's hash instead of a time: two
builds of one lock give the same bytes, and a file that somebody edits is still noticed.
"""

import importlib.util
import os
import py_compile
import sys
from concurrent.futures import ProcessPoolExecutor

UV_STATE = ("uv_cache.json", "uv_build.json")


def missing(directory: str) -> "list[str]":
    """Return the sources without bytecode of the hashed kind, sorted; any start of Python leaves some of the other."""
    found = []
    for where, _, names in os.walk(directory):
        sources = [os.path.join(where, name) for name in names if name.endswith(".py")]  # noqa: PTH118 (thousands)
        found += [path for path in sources if not hashed(importlib.util.cache_from_source(path))]
    return sorted(found)


def hashed(bytecode: str) -> bool:
    """Tell whether a .pyc is there and holds a hash that is checked (PEP 552: flags 3)."""
    try:
        with open(bytecode, "rb") as file:  # noqa: PTH123 (as above)
            return file.read(8)[4:] == b"\x03\x00\x00\x00"
    except FileNotFoundError:
        return False


def compile_one(path: str) -> None:
    """Compile a file; one for another Python's grammar stays as it is."""
    py_compile.compile(path, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)


def forget(directory: str) -> None:
    """Remove uv's own state from each distribution, and its line from the RECORD that lists the installed files."""
    for where, directories, names in os.walk(directory):
        # Once deep in packages there are no distributions: they lie side by side in site-packages.
        if os.path.basename(where) == "site-packages":  # noqa: PTH119 (as above)
            directories[:] = [name for name in directories if name.endswith(".dist-info")]
        state = [name for name in names if name in UV_STATE and where.endswith(".dist-info")]
        for name in state:
            os.remove(os.path.join(where, name))  # noqa: PTH107, PTH118 (as above)
        if state:
            unlist(os.path.join(where, "RECORD"), state)  # noqa: PTH118 (as above)


def unlist(record: str, gone: "list[str]") -> None:
    """Take the lines of files of a distribution's own directory out of its RECORD."""
    own = os.path.basename(os.path.dirname(record))  # noqa: PTH119, PTH120 (as above)
    listed = tuple(f"{own}/{name}," for name in gone)
    with open(record, encoding="utf-8", newline="") as file:  # noqa: PTH123 (as above)
        kept = [line for line in file if not line.startswith(listed)]
    with open(record, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123 (as above)
        file.writelines(kept)


if __name__ == "__main__":
    forget(sys.argv[1])
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_one, missing(sys.argv[1]), chunksize=32))
