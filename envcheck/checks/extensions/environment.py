"""What an environment brings: the libraries that the loader finds, and the symbols that torch's libraries define."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from envcheck.binaries import native_library
from envcheck.binaries.elf import BinaryError, Elf
from envcheck.binaries.native_library import Library, demangled
from envcheck.checks.extensions.installed import InstalledExtension
from envcheck.checks.support import subprocesses

CACHE = "/etc/ld.so.cache"
# ld.so(8), and Debian's and Red Hat's directories beside them.
_DEFAULT = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/lib/{machine}-linux-gnu", "/lib/{machine}-linux-gnu")
_VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)", re.MULTILINE)
# A missing symbol is looked at by people: the report lists so many of a library, and counts the rest.
_SHOWN = 5


def torch_root() -> Path | None:
    """Return the directory of the torch that Python imports, which need not be an installed one; None without one."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    return next((place for place in places if place.is_dir()), None)


def torch_version(torch: Path | None, installed: Mapping[str, importlib.metadata.Distribution]) -> str | None:
    """Return the version of the torch in a directory: the installed one's, or what its version.py says."""
    dist = installed.get("torch")
    if torch is None:
        return None
    if dist is not None and os.path.realpath(str(dist.locate_file("torch"))) == os.path.realpath(torch):
        return dist.version
    try:
        match = _VERSION.search((torch / "version.py").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return match[1] if match else None


def brought_libraries(torch: Path | None) -> set[str]:
    """Return the names of the libraries that torch, NVIDIA's packages, conda and the system bring to every process."""
    directories = [Path(place.format(machine=platform.machine())) for place in _DEFAULT]
    directories += [Path(place) for place in os.environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    directories.append(Path(sys.prefix, "lib"))
    sites = {Path(place) for place in sys.path if place} | ({torch.parent} if torch else set())
    directories += [torch / "lib"] if torch else []
    directories += [lib for site in sorted(sites) for lib in (*site.glob("nvidia/*/lib"), *site.glob("nvidia/lib"))]
    return {name for place in directories for name in _listed(place)} | _cached()


def _listed(directory: Path) -> set[str]:
    try:
        return {name for name in os.listdir(directory) if ".so" in name}  # noqa: PTH208 (names, not paths)
    except OSError:
        return set()


def _cached() -> set[str]:
    try:
        entries = Path(CACHE).read_bytes().split(b"\0")
    except OSError:
        return set()
    return {os.path.basename(entry.decode(errors="replace")) for entry in entries if entry.startswith(b"/")}  # noqa: PTH119


def missing_libraries(extension: InstalledExtension, library: Library, brought: set[str]) -> list[str]:
    """Return the libraries of torch and CUDA that a library needs and that nothing brings."""
    needed = [
        name for name in library.needed if native_library.is_torch_library(name) or native_library.is_nvidias(name)
    ]
    own = {other.name for other in extension.libraries} | {other.soname for other in extension.libraries}
    folder = os.path.dirname(os.path.join(extension.root, library.path))  # noqa: PTH118, PTH120 (thousands of them)
    searched = [place.replace("$ORIGIN", folder).replace("${ORIGIN}", folder) for place in library.search]
    # The loader takes a path as it is, and looks for a name.
    places = {name: [name] if "/" in name else [f"{place}/{name}" for place in searched] for name in needed}
    return [
        name
        for name in needed
        if name not in brought and name not in own and not any(map(os.path.exists, places[name]))
    ]


def undefined_symbols(extensions: Iterable[InstalledExtension], torch: Path | None) -> dict[str, set[str]]:
    """Return the torch symbols of each extension that neither torch's libraries nor its own define.

    Without torch all of them are undefined.
    """
    left = {extension.name: {s for lib in extension.libraries for s in lib.torch_symbols} for extension in extensions}
    everything = set().union(*left.values())
    for path in _torch_libraries(torch) if torch and everything else []:
        everything -= _defined(path, everything)
    for extension in extensions:
        missing = left[extension.name] & everything
        for library in extension.libraries if missing else []:
            missing -= _defined(Path(extension.root, library.path), missing)
        left[extension.name] = missing
    return left


def _torch_libraries(torch: Path) -> list[Path]:
    """Return the libraries of torch, largest first: beside it, or where conda and Debian put them."""
    own = [*(torch / "lib").glob("lib*.so*")]
    if not any(path.name.startswith("libtorch_cpu.so") for path in own):
        machine = platform.machine()
        places = [Path(sys.prefix, "lib"), *(Path(place.format(machine=machine)) for place in _DEFAULT)]
        own += [path for place in places for name in ("libtorch*.so*", "libc10*.so*") for path in place.glob(name)]
    return sorted(own, key=_size, reverse=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _defined(path: Path, symbols: set[str]) -> set[str]:
    """Return those of the symbols that a library defines. A library of torch that is damaged defines none."""
    try:
        with path.open("rb") as file:
            return {symbol.name for symbol in Elf(file).symbols() if symbol.defined and symbol.name in symbols}
    except (BinaryError, OSError):
        return set()


def readable(symbols: Iterable[str]) -> dict[str, Any]:
    """Return some symbols with their names in the source, and how many there are."""
    ordered = sorted(symbols)
    return {"count": len(ordered), "symbols": {symbol: demangled(symbol) for symbol in ordered[:_SHOWN]}}


def glibc() -> str | None:
    """Return the version of glibc that this process runs with, None for another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return None
    return version if name == "glibc" else None


# Packages that hold the kernels which an extension would compile otherwise.
PRECOMPILED = {"flashinfer-python": ("flashinfer-jit-cache",)}
_DEFAULT_HOME = "/usr/local/cuda"
_RELEASE = re.compile(r"\brelease (\d+\.\d+)")
_SECONDS = 20.0


class FoundCompiler(NamedTuple):
    """The path of nvcc, and its CUDA ("13.0"). `why` says why there is no CUDA: it is absent, or does not run."""

    path: str
    cuda: str
    why: str


def found() -> FoundCompiler:
    """Return the nvcc of this environment, where torch.utils.cpp_extension looks: CUDA_HOME, CUDA_PATH, then PATH."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    path = f"{home}/bin/nvcc" if home else shutil.which("nvcc") or f"{_DEFAULT_HOME}/bin/nvcc"
    if not os.access(path, os.X_OK):
        return FoundCompiler(path, "", f"{path} does not exist" if home else "there is no nvcc")
    try:
        finished = subprocesses.run([path, "--version"], _SECONDS)
    except OSError as error:
        return FoundCompiler(path, "", f"{path} does not run: {error.strerror}")
    release = _RELEASE.search(finished.output)
    if finished.code != 0 or release is None:
        return FoundCompiler(path, "", f"{path} does not say its version")
    return FoundCompiler(path, release[1], "")
