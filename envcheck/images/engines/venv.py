"""The way without an engine: the same lock, mirror and promises, as a virtual environment of this machine."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec
import uv

from envcheck.data import data_path
from envcheck.errors import ConfigError, UnavailableError
from envcheck.images import context as contexts
from envcheck.images import keys, render
from envcheck.images.engines import command
from envcheck.images.engines.build import FailedError, log_path
from envcheck.images.sources import Used, used
from envcheck.images.spec import ImageSpec
from envcheck.images.store import lock_files
from envcheck.mirrors.profile import Profile

PROMISES: Final = "envcheck-promises.json"
_KEY: Final = "envcheck-key"
_PARTIAL: Final = "envcheck-partial"


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """A proven virtual environment. `skipped`: it was there already, with this key."""

    schema: Literal["envcheck/build/1"] = "envcheck/build/1"
    engine: Literal["venv"] = "venv"
    cell: str
    target: str
    path: str
    python: str
    key: str
    skipped: bool
    promises: dict[str, str]
    sources: list[Used]
    log: str | None
    seconds: float


class EnvironmentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a build would do: `installs` are packages per lock; `skipped`: `path` holds this key already."""

    schema: Literal["envcheck/build-plan/1"] = "envcheck/build-plan/1"
    engine: Literal["venv"] = "venv"
    cell: str
    target: str
    path: str
    python: str
    key: str
    installs: dict[str, int]
    skipped: bool


def plan(spec: ImageSpec, dest: Path) -> EnvironmentPlan:
    """Return what `build` would do, making nothing."""
    interpreter = find_python(spec.cell.python)
    key = _key(interpreter, spec)
    return EnvironmentPlan(
        cell=str(spec.cell),
        target=spec.target,
        path=str(dest.absolute()),
        python=interpreter,
        key=key,
        installs={str(lock.group): len(lock.pins) for lock in spec.locks},
        skipped=_holds(dest.absolute()) == key,
    )


def build(
    spec: ImageSpec,
    profile: Profile,
    dest: Path,
    *,
    timeout: float,
    on_line: Callable[[str], None],
    wheels: Path | None = None,
) -> Environment:
    """Make `dest` the spec's environment and prove it from the inside; one that is complete already is left as it is.

    A failure leaves a directory that the next build empties. `timeout` in seconds, of each step. `wheels`: a directory
    that has a file of every pin; nothing else is asked for any.
    """
    began = time.monotonic()
    dest = dest.absolute()
    interpreter = find_python(spec.cell.python)
    key = _key(interpreter, spec)
    skipped = _holds(dest) == key
    log = None if skipped else log_path(f"{spec.cell}-venv")
    if log is not None:
        with tempfile.TemporaryDirectory(prefix="envcheck-venv-", dir=_scratch(dest)) as scratch:
            context = contexts.write(spec, profile, Path(scratch) / "context", wheels=wheels)
            steps = _Steps(context, dest, spec, log, timeout, on_line)
            _fill(dest, interpreter, steps, key)
    return Environment(
        cell=str(spec.cell),
        target=spec.target,
        path=str(dest),
        python=str(dest / "bin/python"),
        key=key,
        skipped=skipped,
        promises=spec.promises,
        sources=used(log.read_text(encoding="utf-8")) if log else [],
        log=str(log) if log else None,
        seconds=round(time.monotonic() - began, 1),
    )


def find_python(version: str) -> str:
    """Return an interpreter of this minor version on this machine; none is downloaded."""
    argv = [uv.find_uv_bin(), "python", "find", "--no-project", "--no-python-downloads", "--system", version]
    done = command.stream(argv, timeout=60, env={"UV_NO_CONFIG": "1"})
    if done.status != 0:
        message = f"no Python {version} on this machine"
        raise UnavailableError(message, fix=f"install python{version}, or `uv python install {version}`, or use docker")
    return done.output.strip().splitlines()[-1]


def _scratch(dest: Path) -> Path:
    """Return where the context is written: beside the environment, so that wheels are linked and not copied."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    return dest.parent


def _key(interpreter: str, spec: ImageSpec) -> str:
    locks = hashlib.sha256(b"".join(lock_files(spec.cell, spec.locks).values()))
    templates = data_path("templates") / "context"
    scripts = b"".join((templates / name).read_bytes() for name in ("install.sh", "prove.py"))
    return keys.key(
        context=hashlib.sha256(scripts + locks.digest()).hexdigest(),
        base=str(Path(interpreter).resolve()),
        platform=spec.arch,
        target="venv",
        secrets=[],
    )


def _holds(dest: Path) -> str | None:
    """Return the key of the complete environment at `dest`; refuse a directory that is none of ours."""
    if (dest / _KEY).is_file() and not (dest / _PARTIAL).exists():
        return (dest / _KEY).read_text(encoding="ascii")
    if dest.exists() and not (dest / _PARTIAL).exists() and (not dest.is_dir() or any(dest.iterdir())):
        message = f"{dest} is there and was not made by envcheck build"
        raise ConfigError(message, fix="give another --dest, or remove it")
    return None


class _Steps:
    """The commands that fill an environment, each a step of one log."""

    def __init__(
        self,
        context: contexts.Context,
        dest: Path,
        spec: ImageSpec,
        log: Path,
        timeout: float,
        on_line: Callable[[str], None],
    ) -> None:
        self.mirror = context.path / "mirror"
        self.dest = dest
        self.spec = spec
        self._locks = context.path
        # Never /run/wheels, which is an image build's.
        self._wheels = str(context.wheels or context.path / "mirror/wheels")
        self._netrc = {"NETRC": str(context.secrets["netrc"])} if "netrc" in context.secrets else {}
        self._log = log
        self._timeout = timeout
        self._on_line = on_line
        self._text = ""

    def install(self, group: str) -> None:
        """Install one group's lock with the script an image build runs."""
        lock = self._locks / f"{group}.lock"
        cache = command.output([uv.find_uv_bin(), "cache", "dir"]).strip()
        env = {"ENVCHECK_UV": uv.find_uv_bin(), "ENVCHECK_LOCK": str(lock), "ENVCHECK_CACHE": cache}
        env |= {"ENVCHECK_WHEELS": self._wheels, **self._netrc}
        self.run(f"install {group}", ["sh", str(self.mirror / "install.sh"), group, str(self.dest)], env)

    def prove(self) -> None:
        """Ask the installed torch what it is, with the script an image build runs."""
        promised = [f"{name}={self.spec.promises[name]}" for name in render.PROVEN]
        self.run("prove", [str(self.dest / "bin/python"), "-I", "-B", str(self.mirror / "prove.py"), *promised])

    def run(self, step: str, argv: list[str], env: dict[str, str] | None = None) -> None:
        """Run a command; its failure is a FailedError."""
        self._on_line(f"#0 [{self.spec.cell}] {step}")
        done = command.stream(argv, timeout=self._timeout, on_line=self._on_line, env=env)
        self._text += f"== {step}\n{done.output}\n"
        self._log.write_text(self._text, encoding="utf-8")
        if done.status != 0:
            ended = "" if done.status is not None else f"timed out after {self._timeout:.0f} s"
            text = f"{done.output}\n{ended}"
            raise FailedError(str(self.spec.cell), text, self._log, step=step)


def _fill(dest: Path, interpreter: str, steps: _Steps, key: str) -> None:
    """Build in place, because a virtual environment cannot be moved; a mark says it is not complete until it is."""
    if dest.exists():
        shutil.rmtree(dest)
    dest.mkdir(parents=True)
    (dest / _PARTIAL).touch()
    steps.run("create", [interpreter, "-m", "venv", str(dest)])
    for lock in steps.spec.locks:
        steps.install(lock.group)
    steps.prove()
    (dest / PROMISES).write_text(json.dumps(steps.spec.promises, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (dest / _KEY).write_text(key, encoding="ascii")
    (dest / _PARTIAL).unlink()
