"""What the check `extensions` measured, as types: what does not fit them was not measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class MeasuredLibrary(msgspec.Struct, frozen=True):
    """One library: what it lacks, the newest glibc that it needs ("" for none), and its GPU code ("9.0").

    `foreign` is the machine that it is for, where that is another one than this.
    """

    path: str
    missing: list[str]
    undefined: list[str]
    glibc: str
    sass: list[str]
    ptx: list[str]
    foreign: str = ""


class UndefinedSymbols(msgspec.Struct, frozen=True):
    """How many torch symbols are undefined, and some of them with their names in the source."""

    count: int
    symbols: dict[str, str]


class MeasuredExtension(msgspec.Struct, frozen=True):
    """An installed package, as checks/env/support/extensions/installed.py describes it."""

    name: str
    version: str
    listed: bool
    tags: list[str]
    requires: list[str]
    other_python: list[str]
    unread: dict[str, str]
    undefined: UndefinedSymbols
    libraries: list[MeasuredLibrary]
    versions: list[str] = []


class Interpreter(msgspec.Struct, frozen=True):
    """The Python that a wheel's tags are compared with. `version` is major and minor."""

    version: tuple[int, int]
    free_threaded: bool
    machine: str


class MeasuredCompiler(msgspec.Struct, frozen=True):
    """The nvcc of an environment: its CUDA ("13.0"), "" if there is none, and why then."""

    path: str
    cuda: str
    why: str


class MeasuredLibraries(msgspec.Struct, frozen=True):
    """All extensions of one environment. `glibc` is None for another C library, `torch` where there is none.

    `nvcc` is None where every extension has libraries of its own, so that none compiles later.
    """

    interpreter: Interpreter
    glibc: str | None
    torch: str | None
    installed: dict[str, str]
    extensions: list[MeasuredExtension]
    nvcc: MeasuredCompiler | None = None


def why_not_measured(measured: Mapping[str, Any]) -> str:
    """Return what is wrong with what was measured, "" if it is whole."""
    try:
        msgspec.convert(measured, MeasuredLibraries)
    except msgspec.ValidationError as error:
        return str(error)
    return ""
