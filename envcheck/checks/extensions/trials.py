"""Import each installed extension in a process of its own, load its libraries, and run its smallest operation.

What was done so far is written to a file before each step, so that after a crash or a hang it names the step. Nothing
is read off what an extension prints.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import resource
import signal
import site
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from envcheck.binaries import native_library
from envcheck.checks.extensions import installed, operations
from envcheck.checks.extensions.installed import KNOWN, InstalledExtension, import_name
from envcheck.checks.support import process_group

# One extension may take so long, as in the design of this check; the rest of the time is for the others.
SECONDS = 120.0
_GRACE, _TICK = 2.0, 0.02
_OUTPUT, _LOG = "output.txt", 4000
# Libraries that are tried by themselves where the package has not loaded them; the static check reads all.
_TRIED = 64
# One library may take so long: loading runs its initialisers.
_LIBRARY_SECONDS = 60
_LONGEST_TEXT = 2000
# libbitsandbytes_cuda128.so, libtorchcodec_core7.so, sm90/common_ops.so: the number before a suffix or in a directory.
_NUMBER = re.compile(r"(?<=[a-z_])\d+(?=(?:_nocublaslt)?(?:\.abi3|\.cpython-\w+-[\w-]+)?\.so|/)")
# What an extension says whose dependency has changed: numpy 2.5 took row_stack away from numba-cuda 0.30.
GONE = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'|cannot import name '(\w+)' from '([\w.]+)'")


def run_all(extensions: Iterable[InstalledExtension], scratch: Path, seconds: float, *, gpu: bool) -> dict[str, Any]:
    """Return the result of each extension's trial by name; None for those that the time did not suffice for."""
    deadline = time.monotonic() + seconds
    results: dict[str, Any] = {}
    brought = installed.brought_libraries(installed.torch_root())
    for number, extension in enumerate(extensions):
        left, trial = min(SECONDS, deadline - time.monotonic()), _Trial(extension, scratch / f"trial{number}", gpu=gpu)
        if left <= _GRACE:
            results[extension.name] = None
            continue
        code = trial.begin(left)
        sys.stdout.write(f"--- {extension.name}\n{trial.printed()}\n")
        results[extension.name] = {"code": code, "limit": round(left, 1), **_explained(trial.left(), brought)}
    return results


class _Trial:
    """One extension, tried in a fork of this process, which has torch already."""

    def __init__(self, extension: InstalledExtension, directory: Path, *, gpu: bool) -> None:
        self.extension, self.directory, self.gpu = extension, directory, gpu
        self.root, self.libraries = Path(extension.root), [library.path for library in extension.libraries][:_TRIED]
        self.result, self.begun = directory / "result.json", time.monotonic()
        self.facts: dict[str, Any] = {"step": "", "done": False}

    def begin(self, seconds: float) -> int | None:
        """Go through the steps in a fork; return its exit code, negative for a signal, None where it was too slow."""
        self.directory.mkdir()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            # No teardown: a library that crashes while it unloads would take a good result with it.
            try:
                self._prepare()
                self._run()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
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

    def printed(self) -> str:
        """Return the end of what it printed."""
        with contextlib.suppress(OSError):
            return (self.directory / _OUTPUT).read_bytes()[-_LOG:].decode(errors="replace")
        return ""

    def left(self) -> dict[str, Any]:
        """Return what it left in its file."""
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads(self.result.read_text(encoding="utf-8"))
            return facts if isinstance(facts, dict) else self.facts
        return self.facts

    def _prepare(self) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with (self.directory / _OUTPUT).open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        home = self.directory / "home"
        home.mkdir()
        # Another home has no user site: packages that were installed there must still be found.
        os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())
        os.environ |= {"HOME": str(home), "XDG_CACHE_HOME": f"{home}/.cache", "XDG_CONFIG_HOME": f"{home}/.config"}
        os.environ |= {"TORCH_EXTENSIONS_DIR": f"{home}/torch", "TRITON_CACHE_DIR": f"{home}/triton"}
        process_group.leave()

    def _step(self, name: str, **facts: Any) -> None:
        self.facts.update(facts, step=name, seconds=round(time.monotonic() - self.begun, 2))
        unfinished = self.result.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self.facts), encoding="utf-8")
        unfinished.replace(self.result)

    def _run(self) -> None:
        for module in ("torch", *modules(self.extension)):
            self._step(f"import {module}")
            try:
                importlib.import_module(module)
            except BaseException as error:  # noqa: BLE001 (an import may raise anything, SystemExit too)
                if module == "torch" and isinstance(error, ModuleNotFoundError) and error.name == "torch":
                    continue  # an extension that needs it says so
                # The package's own text may leave out which library is at fault.
                self._step(f"import {module}", error=_described(error))
                self._step(f"import {module}", done=True, **self._loaded())
                return
        self._step("load its libraries", imported=True)
        self._step("run its smallest operation", **self._loaded())
        try:
            operation = self._operate()
        except BaseException as error:  # noqa: BLE001 (as above)
            self._step("run its smallest operation", done=True, error=_described(error))
            return
        self._step("end", done=True, operation=operation, mapped=self._mapped())

    def _loaded(self) -> dict[str, Any]:
        loaded = self._mapped()
        held, alone, refused = {choice(path) for path in loaded}, [], {}
        for path in self.libraries:
            if path in loaded or choice(path) in held:
                continue
            why = _refusal(str(self.root / path))
            if why:
                refused[path] = why
            else:
                alone.append(path)
                held.add(choice(path))
        return {"mapped": loaded, "alone": alone, "refused": refused}

    def _operate(self) -> list[dict[str, Any]] | None:
        known = operations.OPERATIONS.get(self.extension.name)
        if known is None or not (self.gpu or known.on_cpu):
            return None
        results = []
        for device in operations.devices(gpu=self.gpu):
            self._step(f"run {known.name} on {device}")
            results.append(operations.run(known, device))
        return results

    def _mapped(self) -> list[str]:
        with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
            here = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "/" in line}
        return [path for path in self.libraries if os.path.realpath(self.root / path) in here]


def choice(path: str) -> str:
    """Return what libraries have in common of which a package loads one: for one CUDA, GPU or FFmpeg of several."""
    return _NUMBER.sub("N", path)


def _refusal(path: str) -> str | None:
    import ctypes

    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            signal.alarm(_LIBRARY_SECONDS)
            answer = "loaded"
            try:
                ctypes.CDLL(path, mode=os.RTLD_NOW)
            except OSError as error:
                answer = str(error)
            os.write(writing, answer.encode()[:_LONGEST_TEXT])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if not said:
        ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        return f"loading it ended the process: {ended}"
    return None if said == "loaded" else said


def _described(error: BaseException) -> dict[str, str]:
    chain, seen = [str(error)], {id(error)}
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        chain.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    traceback.print_exception(type(error), error, error.__traceback__)
    return {"type": type(error).__name__, "text": str(error)[:_LONGEST_TEXT], "chain": "\n".join(chain)[:8000]}


def modules(extension: InstalledExtension) -> list[str]:
    """Return what is imported: the known module, else the packages and modules that hold the libraries."""
    if extension.name in KNOWN:
        return [import_name(extension.name)]
    tops = {Path(library.path).parts[0] for library in extension.libraries}
    names = {top.split(".")[0] for top in tops if not top.endswith((".libs", ".data"))}
    # A library that lies beside the packages and is no module of Python's is loaded, and not imported.
    importable = sorted(name for name in names if name.isidentifier() and _found(name))
    return importable or [name for name in [import_name(extension.name)] if _found(name)]


def _found(name: str) -> bool:
    """Return whether Python finds a module, which may lie elsewhere; a directory without __init__.py is none."""
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(name)
        return spec is not None and spec.origin is not None
    return False


def _explained(facts: dict[str, Any], brought: set[str]) -> dict[str, Any]:
    """Add what the loader's texts name; `brought` are libraries of the environment, which cupy loads before its own."""
    if facts.get("error"):
        error = facts["error"]
        facts["error"] = {**error, **_named(error["chain"]), "dependency": _dependency(error["text"])}
    named = {path: {"text": text[:500], **_named(text)} for path, text in facts.get("refused", {}).items()}
    facts["refused"] = {path: {**why, "brought": why.get("library") in brought} for path, why in named.items()}
    return facts


def _dependency(text: str) -> str:
    """Return the version of the package that an exception says lacks an attribute, "" if it says so of none."""
    found = GONE.search(text)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version((found[1] or found[4]).partition(".")[0]) if found else ""
    return ""


_PATTERNS = (
    ("symbol", re.compile(r"undefined symbol: ([^\s,()]+)")),
    ("version", re.compile(r"version [`']((?:GLIBC|GLIBCXX|CXXABI)_[\w.]+)' not found")),
    ("library", re.compile(r"(\S+): cannot open shared object file")),
    ("invalid", re.compile(r"(\S+): (?:invalid ELF header|file too short|wrong ELF class\S*)")),
)


def cause(text: str) -> tuple[str, str] | None:
    """Return what the loader did not find, the most telling first, and its name; None for another's text."""
    return next(((kind, match[1]) for kind, pattern in _PATTERNS if (match := pattern.search(text))), None)


def _named(text: str) -> dict[str, Any]:
    kind, name = cause(text) or ("", "")
    return {kind: name, "torchs": native_library.is_torch_symbol(name)} if kind else {}
