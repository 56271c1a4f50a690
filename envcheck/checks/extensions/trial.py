"""Import one extension in a process of its own, load its libraries, and run its smallest operation.

    trial.py PLAN    PLAN is a JSON file: name, modules, root, libraries, path (sys.path), gpu, result

The result is written to the file `result` before each step, so that after a crash or a hang it names the step. Nothing
is read off what the extension prints.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

# One library may take so long: loading runs its initialisers.
_LIBRARY_SECONDS = 60
_LONGEST_TEXT = 2000
# libbitsandbytes_cuda128.so, libtorchcodec_core7.so, sm90/common_ops.so: the number before a suffix or in a directory.
_NUMBER = re.compile(r"(?<=[a-z_])\d+(?=(?:_nocublaslt)?(?:\.abi3|\.cpython-\w+-[\w-]+)?\.so|/)")


class TrialFile:
    """What was done so far, in a file."""

    def __init__(self, path: str) -> None:
        self.path, self.begun = Path(path), time.monotonic()
        self.facts: dict[str, Any] = {"step": "", "done": False}

    def step(self, name: str, **facts: Any) -> None:
        """Say what comes next, before it does."""
        self.facts.update(facts, step=name, seconds=round(time.monotonic() - self.begun, 2))
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self.facts), encoding="utf-8")
        unfinished.replace(self.path)


def run(plan: dict[str, Any], trial: TrialFile) -> None:
    """Go through the steps; the first exception ends them."""
    for module in ("torch", *plan["modules"]):
        trial.step(f"import {module}")
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if module == "torch" and error.name == "torch":
                continue  # an extension that needs it says so
            trial.step(f"import {module}", error=described(error))
            trial.step(f"import {module}", done=True, **_libraries(plan))
            return
        except BaseException as error:  # noqa: BLE001 (an import may raise anything, SystemExit too)
            # The package's own text may leave out which library is at fault.
            trial.step(f"import {module}", error=described(error))
            trial.step(f"import {module}", done=True, **_libraries(plan))
            return
    trial.step("load its libraries", imported=True)
    trial.step("run its smallest operation", **_libraries(plan))
    root = Path(plan["root"])
    try:
        operation = _operate(plan, trial)
    except BaseException as error:  # noqa: BLE001 (as above)
        trial.step("run its smallest operation", done=True, error=described(error))
        return
    trial.step("end", done=True, operation=operation, mapped=mapped(root, plan["libraries"]))


def _libraries(plan: dict[str, Any]) -> dict[str, Any]:
    """Load each library that the package has not loaded. Of a choice, one suffices."""
    root = Path(plan["root"])
    loaded = mapped(root, plan["libraries"])
    held, alone, refused = {choice(path) for path in loaded}, [], {}
    for path in plan["libraries"]:
        if path in loaded or choice(path) in held:
            continue
        why = refusal(root, path)
        if why:
            refused[path] = why
        else:
            alone.append(path)
            held.add(choice(path))
    return {"mapped": loaded, "alone": alone, "refused": refused}


def choice(path: str) -> str:
    """Return what libraries have in common of which a package loads one: for one CUDA, GPU or FFmpeg of several."""
    return _NUMBER.sub("N", path)


def _operate(plan: dict[str, Any], trial: TrialFile) -> list[dict[str, Any]] | None:
    """Return what the operation came to on one GPU of each model, or on the CPU; None where there is none to run."""
    from envcheck.checks.extensions import operations

    known = operations.OPERATIONS.get(plan["name"])
    if known is None or not (plan["gpu"] or known.on_cpu):
        return None
    results = []
    for device in operations.devices(gpu=plan["gpu"]):
        trial.step(f"run {known.name} on {device}")
        results.append(operations.run(known, device))
    return results


def mapped(root: Path, libraries: list[str]) -> list[str]:
    """Return those of the libraries that this process has in its memory."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 (no Path is made here)
        here = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "/" in line}
    return [path for path in libraries if os.path.realpath(root / path) in here]


def refusal(root: Path, path: str) -> str | None:
    """Load a library in a process forked for it; return why the loader refused it, None if it did not."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            signal.alarm(_LIBRARY_SECONDS)
            os.write(writing, (load(root, path) or "loaded").encode()[:_LONGEST_TEXT])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if not answer:
        ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        return f"loading it ended the process: {ended}"
    return None if answer == "loaded" else answer


def load(root: Path, path: str) -> str | None:
    """Load a library with all its symbols, as the package does; return what the loader says against it."""
    import ctypes

    try:
        ctypes.CDLL(str(root / path), mode=os.RTLD_NOW)
    except OSError as error:
        return str(error)
    return None


def described(error: BaseException) -> dict[str, str]:
    """Return an exception's type, its text, and the texts of those that it was raised from or while handling."""
    chain, seen = [str(error)], {id(error)}
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        chain.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    traceback.print_exception(type(error), error, error.__traceback__)
    return {"type": type(error).__name__, "text": str(error)[:_LONGEST_TEXT], "chain": "\n".join(chain)[:8000]}


def main(path: str) -> None:
    """Go through a plan as the last thing that this process does."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 (as little as possible is imported before)
        plan = json.load(file)
    sys.path[:] = plan["path"]
    run(plan, TrialFile(plan["result"]))
    # No teardown: a library that crashes while it unloads would take a good result with it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
