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
    """Return the sources without bytecode, sorted."""
    found = []
    for where, _, names in os.walk(directory):
        sources = [os.path.join(where, name) for name in names if name.endswith(".py")]  # noqa: PTH118 (thousands)
        found += [path for path in sources if not os.path.exists(importlib.util.cache_from_source(path))]  # noqa: PTH110
    return sorted(found)


def compile_one(path: str) -> None:
    """Compile a file; one for another Python's grammar stays as it is."""
    py_compile.compile(path, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)


if __name__ == "__main__":
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_one, missing(sys.argv[1]), chunksize=32))
