# ruff: noqa: INP001 (a script of a build)
"""bytecode.py DIRECTORY: compile what is not compiled yet, so that a user who cannot write there need not each time.

The bytecode carries its source's hash instead of a time: two builds of one lock give the same bytes, and a file that
somebody edits is still noticed.
"""

import importlib.util
import os
import py_compile
import sys
from concurrent.futures import ProcessPoolExecutor


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


if __name__ == "__main__":
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_one, missing(sys.argv[1]), chunksize=32))
