"""The installed packages that have native code for torch or CUDA, what their libraries need, and what there is of it.

What there is: the libraries that the loader finds, and the symbols that torch's libraries define. Nothing is loaded.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from envcheck.binaries import native_library
from envcheck.binaries.native_library import BinaryError, Elf, Library, read_library
from envcheck.checks.support.package_files import EDITABLE, key

# What the others stand on: torch and triton are judged by their own checks, and NVIDIA's packages bring the libraries.
KNOWN: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("known.json").read_text(encoding="utf-8"))
_BASE = re.compile(r"torch|triton|pytorch-triton(-\w+)?|nvidia-.+|cuda-(toolkit|bindings|pathfinder|core|python)")
_INFO = ".dist-info"
_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_FOR_PYTHON = re.compile(r"\.(cpython-\d+t?|pypy\d+-pp\d+)-[\w-]+\.so$")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


class InstalledExtension(NamedTuple):
    """An installed package. `unread` are libraries that cannot be read, and why.

    `requires` are its Requires-Dist on torch, triton, NVIDIA's packages and other extensions. `tags` are those of its
    wheel, empty where none was kept. `other_python` are modules of which every file is for another Python. `versions`
    are those of its METADATA in `root`: more than one where an installation broke off.
    """

    name: str
    version: str
    root: str
    libraries: list[Library]
    unread: dict[str, str]
    requires: list[str]
    tags: list[str]
    other_python: list[str]
    listed: bool
    versions: list[str]


def distributions() -> dict[str, importlib.metadata.Distribution]:
    """Return the distribution of each name that Python imports: the first on sys.path."""
    first: dict[str, importlib.metadata.Distribution] = {}
    for dist in importlib.metadata.distributions():
        name = None
        with contextlib.suppress(FileNotFoundError):  # what an interrupted installation left
            name = dist.metadata["Name"]
        if name:
            first.setdefault(key(name), dist)
    return first


def extensions(installed: dict[str, importlib.metadata.Distribution]) -> list[InstalledExtension]:
    """Return the packages with native code for torch or CUDA, and those whose name is known for it."""
    listed = []
    for name, dist in sorted(installed.items()):
        if name in KNOWN or not _BASE.fullmatch(name):
            extension = _extension(name, dist)
            if extension is not None:
                listed.append(extension)
    return listed


def _extension(name: str, dist: importlib.metadata.Distribution) -> InstalledExtension | None:
    root = Path(os.path.abspath(str(dist.locate_file(""))))  # noqa: PTH100 (links stay as the loader sees them)
    paths = _libraries(dist, root)
    if name not in KNOWN and not any(_binds(root / path) for path in paths):
        return None
    libraries, unread = [], {}
    for path in paths:
        try:
            with (root / path).open("rb") as file:
                libraries.append(read_library(file, path))
        except (BinaryError, OSError) as error:  # noqa: PERF203 (reading takes far longer)
            unread[path] = str(error.strerror if isinstance(error, OSError) else error)
    return InstalledExtension(
        name,
        dist.version or "",
        str(root),
        libraries,
        unread,
        [line for line in dist.requires or [] if (required(line) in KNOWN or bool(_BASE.fullmatch(required(line))))],
        re.findall(r"(?m)^Tag: *(\S+)", dist.read_text("WHEEL") or ""),
        _other_python(paths),
        _listed(dist) is not None,
        _versions(name, root),
    )


def _versions(name: str, root: Path) -> list[str]:
    try:
        stems = [entry[: -len(_INFO)] for entry in os.listdir(root) if entry.endswith(_INFO)]  # noqa: PTH208 (names)
    except OSError:
        return []
    return sorted(stem.rpartition("-")[2] for stem in stems if key(stem.rpartition("-")[0]) == name)


def _libraries(dist: importlib.metadata.Distribution, root: Path) -> list[str]:
    """Return a package's libraries, relative to `root` or absolute: as its installer listed them, or as they lie there.

    An editable package, and one whose installer listed no files, are looked for where Python imports them from. Of a
    known extension also those that lie in its directory count: a list may leave some out, and Python loads them.
    """
    name, files = key(dist.metadata["Name"]), _listed(dist)
    listed = [path for path in files or [] if _LIBRARY.search(path)]
    # RECORD leaves out the package itself, by PEP 660 or setuptools' own list of sources.
    editable = EDITABLE.search(dist.read_text("direct_url.json") or "") or dist.read_text("SOURCES.txt") is not None
    if not listed and (files is None or editable):
        listed = _beside_modules(dist, root)
    elif name in KNOWN:
        found = (root / import_name(name).replace(".", "/")).rglob("*.so*")
        listed += [str(path.relative_to(root)) for path in found if _LIBRARY.search(path.name)]
    return _without_links(root, {name for name in listed if ".." not in name})


def _listed(dist: importlib.metadata.Distribution) -> list[str] | None:
    """Return the files that the installer listed, None without a list. From Python 3.12 on, `files` hides lost ones."""
    record = dist.read_text("RECORD")
    if record is not None:
        return [row[0] for row in csv.reader(record.splitlines()) if row]
    return None if dist.files is None else [str(path) for path in dist.files]


def _beside_modules(dist: importlib.metadata.Distribution, root: Path) -> list[str]:
    tops = set((dist.read_text("top_level.txt") or import_name(key(dist.metadata["Name"])).partition(".")[0]).split())
    paths: list[Path] = []
    for top in tops:
        places = [*root.glob(f"{top}.*so"), root / top]
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            spec = importlib.util.find_spec(top)
            if spec is not None:
                places += map(Path, [*(spec.submodule_search_locations or []), spec.origin or ""])
        for place in places:
            paths += place.rglob("*.so*") if place.is_dir() else [place]
    libraries = {path for path in paths if _LIBRARY.search(path.name)}
    return [str(path.relative_to(root) if root in path.parents else path) for path in libraries]


def _without_links(root: Path, names: set[str]) -> list[str]:
    """Return the names without those that are links to another of them. uv may link every file to its cache."""
    files = {os.path.realpath(root / name) for name in names if not (root / name).is_symlink()}
    kept = set(names)
    for name in sorted(names):
        target = os.path.realpath(root / name)
        if (root / name).is_symlink():
            kept -= {name} if target in files else set()
            files.add(target)
    return sorted(kept)


def _binds(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            needed = Elf(file).dynamic().needed
    except (BinaryError, OSError):
        return False
    return any(
        native_library.is_torch_library(name) or native_library.is_nvidias(name) or name.startswith("libcuda.so")
        for name in needed
    )


def required(line: str) -> str:
    """Return the name of the package in a requirement."""
    match = _REQUIREMENT.match(line)
    return key(match[1]) if match else ""


def _other_python(paths: Iterable[str]) -> list[str]:
    modules: dict[str, list[str]] = {}
    for path in paths:
        if _FOR_PYTHON.search(path):
            modules.setdefault(_FOR_PYTHON.sub("", path), []).append(path)
    own = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    return sorted(files[0] for files in modules.values() if not any(path.endswith(own) for path in files))


def interpreter() -> dict[str, object]:
    """Return what decides whether a wheel's tag is for this Python: its version, and whether it is free-threaded."""
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    version, machine = list(sys.version_info[:2]), platform.machine()
    return {"name": sys.implementation.name, "version": version, "free_threaded": free, "machine": machine}


def import_name(extension: str) -> str:
    """Return the module that an extension of extensions.yaml is imported as."""
    return str(KNOWN.get(extension, {}).get("module", extension.replace("-", "_")))


CACHE = "/etc/ld.so.cache"
# ld.so(8), and Debian's and Red Hat's directories beside them.
_DEFAULT = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/lib/{machine}-linux-gnu", "/lib/{machine}-linux-gnu")
_VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)", re.MULTILINE)


def torch_root() -> Path | None:
    """Return the directory of the torch that Python imports, which need not be an installed one; None without one."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    return next((place for place in places if place.is_dir()), None)


def torch_version(torch: Path | None, known: Mapping[str, importlib.metadata.Distribution]) -> str | None:
    """Return the version of the torch in a directory: the installed one's, or what its version.py says."""
    dist = known.get("torch")
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
    return {name for place in directories for name in _names_in(place)} | set(map(os.path.basename, cached()))


def _names_in(directory: Path) -> set[str]:
    try:
        return {name for name in os.listdir(directory) if ".so" in name}  # noqa: PTH208 (names, not paths)
    except OSError:
        return set()


def cached() -> list[str]:
    """Return the paths of the libraries that the loader's cache knows."""
    try:
        entries = Path(CACHE).read_bytes().split(b"\0")
    except OSError:
        return []
    return [entry.decode(errors="replace") for entry in entries if entry.startswith(b"/") and b".so" in entry]


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
    """Return each extension's torch symbols that neither torch nor its own libraries define; without torch, all."""
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
    return sorted(own, key=lambda path: path.stat().st_size if path.exists() else 0, reverse=True)


def _defined(path: Path, symbols: set[str]) -> set[str]:
    try:
        with path.open("rb") as file:
            return {symbol.name for symbol in Elf(file).symbols() if symbol.defined and symbol.name in symbols}
    except (BinaryError, OSError):
        return set()


def glibc() -> str | None:
    """Return the version of glibc that this process runs with, None for another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return None
    return version if name == "glibc" else None
