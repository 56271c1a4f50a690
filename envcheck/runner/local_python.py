"""A Python of this machine as the target of a run, and the contract of each target."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import envcheck
from envcheck.errors import ConfigError, refuse
from envcheck.images.promises import read_promises, with_packages
from envcheck.node import subprocesses
from envcheck.runner.schema import TargetFacts, encodable
from envcheck.runner.worker import process_limits

PACKAGE: Final = Path(envcheck.__file__).resolve().parent
_GRACE: Final = 6.0
_LOG_TAIL: Final = 1 << 16
_LOG_MOST: Final = 1 << 24
_OLDEST: Final = (3, 9)  # what the worker is written for


class Handle(Protocol):
    """A started worker. Its stdin is held open by this process, and its end is the worker's."""

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def logs(self) -> str:
        """Return the last of what the worker itself printed."""

    def close(self) -> None:
        """Cut the lifeline, end what does not follow, and remove what is left of it."""


class Target(Protocol):
    """Something with a Python in it."""

    facts: TargetFacts

    def start(self, directory: Path) -> Handle:
        """Start the worker on the plan in a directory of this machine."""

    def promises(self, environment: Mapping[str, Any]) -> dict[str, str]:
        """Return what it says of itself; nothing for one that promises nothing."""


class ChosenPython(NamedTuple):
    """An interpreter of this machine, and why this one."""

    python: Path
    why: str


def choose_python(path: Path | None, environ: Mapping[str, str] = os.environ) -> ChosenPython:
    """Return --python, else the active virtual or conda environment's, else `python3` on PATH, else envcheck's own."""
    if path is not None:
        return ChosenPython(_interpreter(path), "--python")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        active = Path(environ.get(name) or "/nonexistent") / "bin" / "python"
        if os.access(active, os.X_OK):
            return ChosenPython(active, f"${name}")
    on_path = shutil.which("python3", path=environ.get("PATH"))
    return ChosenPython(Path(on_path or sys.executable), "python3 on PATH" if on_path else "envcheck's own")


def _interpreter(path: Path) -> Path:
    """Return an absolute path; a virtual environment's symlink stays one, for it decides which environment it is."""
    python = path / "bin" / "python" if path.is_dir() else path
    if not python.exists():
        on_path = shutil.which(str(path)) if path.name == str(path) and not path.is_dir() else None
        if on_path is None:
            refuse(f"no Python at {python}", "give --python the path of an interpreter or of an environment")
        python = Path(on_path)
    if not os.access(python, os.X_OK):
        refuse(f"{python} is not executable", "give --python the path of an interpreter")
    return Path(os.path.abspath(python))  # noqa: PTH100 (resolve() would follow the environment's symlink)


class LocalPython:
    """The environment of one interpreter, given the user's own variables and nothing of envcheck's."""

    def __init__(self, chosen: ChosenPython) -> None:
        self._python = chosen.python
        self.facts = TargetFacts(kind="python", name=encodable(str(chosen.python)), chosen=chosen.why)

    def start(self, directory: Path) -> Handle:
        """Start the worker from a staging directory that holds the package alone."""
        staging = directory / "staging"
        staging.mkdir()
        (staging / "envcheck").symlink_to(PACKAGE)
        worker = staging / "envcheck" / "runner" / "worker" / "main.py"
        return LocalHandle([str(self._python), "-B", str(worker), str(directory)], directory)

    def promises(self, environment: Mapping[str, Any]) -> dict[str, str]:
        """Return what the environment's own file says."""
        return with_packages(read_promises(str(environment.get("prefix", ""))))


class LocalHandle:
    """A worker on this machine."""

    def __init__(self, argv: list[str], directory: Path) -> None:
        # Read by its descriptor: whatever has its name later may be a link or a pipe.
        self._log = (directory / "worker.log").open("w+b", buffering=0)
        self._cut = ""
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=foreign_environment(os.environ),
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise _cannot_start(argv[0], error) from error

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; what it printed is cut at 16 MiB, so that it fills no disk."""
        if os.fstat(self._log.fileno()).st_blocks * 512 > _LOG_MOST:
            os.ftruncate(self._log.fileno(), 0)
            self._cut = f"[cut: more than {_LOG_MOST >> 20} MiB]\n"
        return self._process.poll()

    def logs(self) -> str:
        """Return the last of what the worker printed."""
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), _LOG_TAIL, max(0, size - _LOG_TAIL)).lstrip(b"\0")
        return f"{self._cut}{tail.decode(errors='replace')}"

    def close(self) -> None:
        """Cut the lifeline; after a while, or where the guard itself is gone, kill what is left of its session."""
        self._log.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process.wait(_GRACE) >= 0:
                return
        everybody = [subprocesses.stat(process.name) for process in Path("/proc").glob("[0-9]*")]
        for group in {fields[2] for fields in everybody if fields[3:4] == [str(self._process.pid)]}:
            subprocesses.signal_quietly(-int(group), signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)


def answering(chosen: ChosenPython) -> ChosenPython:
    """Return the interpreter once it has answered as a Python that the worker runs on; else a ConfigError says why."""
    environment = {"PYTHONPATH": foreign_environment(os.environ).get("PYTHONPATH", "")}
    asked = r"import sys; print('\nPython-%d.%d' % sys.version_info[:2])"
    try:
        # A cold network filesystem needs tens of seconds for a Python.
        output = subprocesses.output(chosen.python, "-S", "-c", asked, timeout=60.0, environment=environment)
    except OSError as error:
        if error.errno:
            raise _cannot_start(str(chosen.python), error) from error
        output = str(error.strerror)
    version = re.search(r"^Python-(\d+)\.(\d+)$", output, re.MULTILINE)
    if version is None:
        said = next(iter(output.strip().splitlines()), "")[:200]
        did = f'said "{said}"' if said else "printed nothing"
        fix = "give --python a working interpreter, or an environment that has one"
        refuse(f"{chosen.python} is not a Python: it {did}", fix)
    if (int(version[1]), int(version[2])) < _OLDEST:
        fix = f"give --python one of {_OLDEST[0]}.{_OLDEST[1]} or newer"
        refuse(f"{chosen.python} is {version[0].replace('-', ' ')}", fix)
    return chosen


def _cannot_start(python: str, error: OSError) -> ConfigError:
    why = process_limits.explained(str(error.strerror))
    fix = "give --python the path of a working interpreter" if why == error.strerror else "raise that limit"
    return ConfigError(f"{python} cannot be started: {why}", fix=fix)


def foreign_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's variables less what points another Python at envcheck's own packages."""
    kept = dict(environ)
    paths = [p for p in kept.pop("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != PACKAGE.parent]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)} if paths else kept
