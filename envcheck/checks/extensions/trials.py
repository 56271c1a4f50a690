"""Start a process for each installed extension that imports it and runs its smallest operation, and collect results."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import site
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from envcheck.binaries import native_library
from envcheck.binaries.native_library import demangled
from envcheck.checks.extensions import environment, trial
from envcheck.checks.extensions.installed import KNOWN, InstalledExtension, import_name
from envcheck.checks.support import subprocesses

# One extension may take so long, as in the design of this check; the rest of the time is for the others.
SECONDS = 120.0
_GRACE, _TICK = 2.0, 0.02
_OUTPUT, _LOG = "output.txt", 4000
# Libraries that are tried by themselves where the package has not loaded them; the static check reads all.
_TRIED = 64
# What an extension says whose dependency has changed: numpy 2.5 took row_stack away from numba-cuda 0.30.
GONE = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'|cannot import name '(\w+)' from '([\w.]+)'")
# What the runner sets for a group of ranks: an extension would join that group.
_GROUP = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run_all(extensions: Iterable[InstalledExtension], scratch: Path, seconds: float, *, gpu: bool) -> dict[str, Any]:
    """Return the result of each extension's trial by name; None for those that the time did not suffice for."""
    deadline = time.monotonic() + seconds
    results: dict[str, Any] = {}
    brought = environment.brought_libraries(environment.torch_root())
    for number, extension in enumerate(extensions):
        left, directory = min(SECONDS, deadline - time.monotonic()), scratch / f"trial{number}"
        results[extension.name] = _run(extension, directory, left, brought, gpu=gpu) if left > _GRACE else None
    return results


def _run(
    extension: InstalledExtension, directory: Path, seconds: float, brought: set[str], *, gpu: bool
) -> dict[str, Any]:
    directory.mkdir()
    result = directory / "result.json"
    plan = {
        "name": extension.name,
        "modules": modules(extension),
        "root": extension.root,
        "libraries": [library.path for library in extension.libraries][:_TRIED],
        "path": sys.path,
        "gpu": gpu,
        "result": str(result),
    }
    (directory / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    begin = _execute if _cuda_is_up() else _fork
    code = begin(directory, seconds)
    sys.stdout.write(f"--- {extension.name}\n{_tail(directory / _OUTPUT)}\n")
    return {"code": code, "limit": round(seconds, 1), **_explained(_left(result), brought)}


def _cuda_is_up() -> bool:
    """Return whether importing torch has initialised CUDA, which no fork survives. Without torch it has not."""
    with contextlib.suppress(Exception):
        import torch

        return bool(torch.cuda.is_initialized())
    return False


def _fork(directory: Path, seconds: float) -> int | None:
    """Go through the plan in a fork of this process, which has torch already; return its exit code, None: too slow."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        try:
            with (directory / _OUTPUT).open("wb") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            variables = _environment(directory)
            os.environ.clear()
            os.environ.update(variables)
            trial.main(str(directory / "plan.json"))
        finally:
            os._exit(1)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        time.sleep(_TICK)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _execute(directory: Path, seconds: float) -> int | None:
    """Go through the plan in a new interpreter; return its exit code, None: too slow."""
    command = [sys.executable, "-B", str(Path(trial.__file__)), str(directory / "plan.json")]
    done = subprocesses.run(command, seconds, _GRACE, _environment(directory))
    (directory / _OUTPUT).write_text(f"{done.output}{done.errors}", encoding="utf-8")
    return done.code


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-_LOG:].decode(errors="replace")
    except OSError:
        return ""


def modules(extension: InstalledExtension) -> list[str]:
    """Return what is imported: the known module, else the packages and modules that hold the libraries."""
    if extension.name in KNOWN:
        return [import_name(extension.name)]
    tops = {Path(library.path).parts[0] for library in extension.libraries}
    names = {
        top.split(".")[0] for top in tops if not top.endswith((".libs", ".data")) and top.split(".")[0].isidentifier()
    }
    # A library that lies beside the packages and is no module of Python's is loaded below, and not imported.
    importable = sorted(name for name in names if _importable(Path(extension.root), name))
    return importable or [name for name in [import_name(extension.name)] if _found(name)]


def _found(name: str) -> bool:
    """Return whether Python finds a module: one of an editable package lies elsewhere."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _importable(root: Path, name: str) -> bool:
    files = [root / name / "__init__.py", *(root / f"{name}{end}" for end in importlib.machinery.all_suffixes())]
    return any(file.exists() for file in files)


def _environment(directory: Path) -> dict[str, str]:
    """Return the variables of a trial: its own home and caches, and no group of ranks."""
    kept = {name: value for name, value in os.environ.items() if name not in _GROUP}
    home = directory / "home"
    home.mkdir()
    own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "XDG_CONFIG_HOME": str(home / ".config")}
    own |= {"TORCH_EXTENSIONS_DIR": str(home / "torch"), "TRITON_CACHE_DIR": str(home / "triton")}
    # Another home has no user site: packages that were installed there must still be found.
    return {**kept, **own, "PYTHONUSERBASE": os.environ.get("PYTHONUSERBASE") or site.getuserbase()}


def _left(result: Path) -> dict[str, Any]:
    try:
        facts = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"step": "", "done": False}
    return facts if isinstance(facts, dict) else {"step": "", "done": False}


def _explained(facts: dict[str, Any], brought: set[str]) -> dict[str, Any]:
    """Add what the loader's texts name: the symbol as in the source, or the library.

    `brought` are libraries that the environment has: a package may load one of them before its own, as cupy does.
    """
    error = facts.get("error")
    if isinstance(error, dict):
        facts["error"] = {**error, **_named(str(error.get("chain"))), "dependency": _dependency(str(error.get("text")))}
    refused = facts.get("refused")
    if isinstance(refused, dict):
        named = {path: {"text": str(text)[:500], **_named(str(text))} for path, text in refused.items()}
        facts["refused"] = {path: {**why, "brought": why.get("library") in brought} for path, why in named.items()}
    return facts


def _dependency(text: str) -> str:
    """Return the version of the package that an exception says lacks an attribute, "" if it says so of none."""
    found = GONE.search(text)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version((found[1] or found[4]).partition(".")[0]) if found else ""
    return ""


def _named(text: str) -> dict[str, Any]:
    lacking = cause(text)
    if lacking is None:
        return {}
    if lacking.kind != "symbol":
        return {lacking.kind: lacking.name}
    name = lacking.name
    return {"symbol": name, "readable": demangled(name), "torchs": native_library.is_torch_symbol(name)}


_PATTERNS = (
    ("symbol", re.compile(r"undefined symbol: ([^\s,()]+)")),
    ("version", re.compile(r"version [`']((?:GLIBC|GLIBCXX|CXXABI)_[\w.]+)' not found")),
    ("library", re.compile(r"(\S+): cannot open shared object file")),
    ("invalid", re.compile(r"(\S+): (?:invalid ELF header|file too short|wrong ELF class\S*)")),
)


class LoaderError(NamedTuple):
    """What a library lacks. `kind` is "symbol", "library" or "version"; "invalid" where it is no library."""

    kind: str
    name: str


def cause(text: str) -> LoaderError | None:
    """Return what the loader did not find, None if the text is not the loader's.

    A text that has several is of a package with a library for each version of another, of which one would do: that a
    library was there, and a symbol was not, says more than that other versions are not installed.
    """
    named = (LoaderError(kind, match[1]) for kind, pattern in _PATTERNS for match in [pattern.search(text)] if match)
    return next(named, None)
