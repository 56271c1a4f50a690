"""What one native library needs and holds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

from envcheck.binaries import torch_symbols
from envcheck.binaries.elf import Elf
from envcheck.binaries.fatbin import gpu_code

_GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")


class Library(NamedTuple):
    """One library, as its headers and tables say.

    `size` is in bytes. `needed` are the libraries that the loader must find, `search` where this one says to look.
    `torch_symbols` are the symbols that torch must define. `glibc` is the newest version of it that is needed, "" if
    none is. `sass` and `ptx` are compute capabilities, "9.0".
    """

    path: str
    size: int
    machine: str
    needed: tuple[str, ...]
    soname: str
    search: tuple[str, ...]
    torch_symbols: tuple[str, ...]
    abi: str
    glibc: str
    sass: tuple[str, ...]
    ptx: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the file's name without its directory."""
        return self.path.rpartition("/")[2]


# How the paths of libraries for several machines name theirs.
_MACHINE_WORDS = {"x86_64": ("x86_64", "x86-64", "amd64"), "aarch64": ("aarch64", "arm64", "sbsa")}


def is_foreign(library: Library, machine: str) -> bool:
    """Return whether a library is for another machine ("x86_64") than this one, and its path does not say so."""
    words = _MACHINE_WORDS.get(library.machine, ())
    return machine in _MACHINE_WORDS and library.machine != machine and not any(w in library.path for w in words)


def read_library(file: BinaryIO, path: str) -> Library:
    """Return what a library needs and holds. Raises BinaryError if it is no ELF library that can be read."""
    elf = Elf(file)
    elf.refuse_hidden_tables()
    dynamic, code = elf.dynamic(), gpu_code(elf)
    needed = [s.name for s in elf.symbols() if not s.defined and not s.weak and torch_symbols.is_torchs(s.name)]
    return Library(
        path,
        elf.size,
        elf.machine,
        dynamic.needed,
        dynamic.soname,
        dynamic.search,
        tuple(sorted(set(needed))),
        torch_symbols.abi(needed),
        newest_glibc(elf.versions()),
        code.sass,
        code.ptx,
    )


def newest_glibc(versions: Iterable[str]) -> str:
    """Return the newest glibc of GLIBC_… symbol versions, "" without any."""
    numbers = [match[1] for version in versions for match in [_GLIBC.fullmatch(version)] if match]
    return max(numbers, key=dotted, default="")


def dotted(version: str) -> tuple[int, ...]:
    """Return "2.17" as (2, 17), to compare."""
    return tuple(int(part) for part in version.split("."))
