"""The way without an engine: the same lock, mirror and promises, as a virtual environment of this machine."""

import contextlib
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec
import uv

from envcheck.data import data_path
from envcheck.errors import UnavailableError, refuse
from envcheck.images import build_context as contexts
from envcheck.images import dockerfile
from envcheck.images import plan as build_key
from envcheck.images.build_log import UsedSource, require_success, used
from envcheck.images.dockerfile import lock_files
from envcheck.images.engines import subprocesses
from envcheck.images.engines.build import one_at_a_time
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.profiles.model import Profile

PROMISES: Final = "envcheck-promises.json"
_KEY: Final = "envcheck-key"
_PARTIAL: Final = "envcheck-partial"
_SCRIPTS: Final = ("install/bytecode.py", "install/install.sh", "prove/prove.py")
_TARGET_SCRIPTS: Final = {"devel": ("targets/devel/cuda_home.py",)}


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
    sources: list[UsedSource]
    log: str | None
    seconds: float
    bytes_on_disk: int = 0


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
    say: Callable[[str], None] = lambda _: None,
    wheels: Path | None = None,
) -> Environment:
    """Make `dest` the spec's environment and prove it from the inside; one that is complete already is left as it is.

    A failure leaves the environment that was there before, else a directory that the next build empties. `timeout` in
    seconds, of each step. `wheels`: a directory that has a file of every pin; nothing else is asked for any.
    """
    began = time.monotonic()
    dest = dest.absolute()
    interpreter = find_python(spec.cell.python)
    key = _key(interpreter, spec)
    steps = None
    with one_at_a_time(f"venv {dest.resolve()}", say):
        _put_back(dest)
        skipped = _holds(dest) == key
        if not skipped:
            # Beside the environment, so that wheels are linked and not copied.
            dest.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="envcheck-venv-", dir=dest.parent) as scratch:
                context = contexts.write([spec], profile, Path(scratch) / "context", wheels=wheels)
                steps = _Steps(context, dest, spec, timeout, on_line)
                with _earlier_kept(dest):
                    _fill(dest, interpreter, steps, key)
    return Environment(
        cell=str(spec.cell),
        target=spec.target,
        path=str(dest),
        python=str(dest / "bin/python"),
        key=key,
        skipped=skipped,
        promises=spec.promises,
        sources=used(steps.text) if steps else [],
        log=str(steps.log) if steps and steps.log else None,
        seconds=0.0 if skipped else round(time.monotonic() - began, 1),
        bytes_on_disk=sum(path.lstat().st_size for path in dest.rglob("*")),
    )


def find_python(version: str) -> str:
    """Return an interpreter of this minor version on this machine; none is downloaded."""
    # Without a cache: where none can be made (no home), uv would fail, and a Python that is here be called missing.
    options = ["--no-cache", "--no-project", "--no-python-downloads", "--system"]
    argv = [uv.find_uv_bin(), "python", "find", *options, version]
    result = subprocesses.stream(argv, timeout=60, env={"UV_NO_CONFIG": "1"})
    if result.status != 0:
        refuse(f"no Python {version} on this machine", f"`uv python install {version}`, or docker", UnavailableError)
    return result.output.strip().splitlines()[-1]


def _key(interpreter: str, spec: ImageSpec) -> str:
    locks = hashlib.sha256(b"".join(lock_files(spec.cell, spec.locks).values()))
    templates = data_path("templates") / "context"
    scripts = b"".join((templates / name).read_bytes() for name in (*_SCRIPTS, *(_TARGET_SCRIPTS.get(spec.target, ()))))
    return build_key.key(
        context=hashlib.sha256(scripts + locks.digest()).hexdigest(),
        base=str(Path(interpreter).resolve()),
        platform=spec.arch,
        target="venv",
        secrets=[],
    )


def _holds(dest: Path) -> str | None:
    """Return the key of the complete environment at `dest`; refuse a directory that envcheck did not create."""
    if _complete(dest):
        return (dest / _KEY).read_text(encoding="ascii")
    if dest.exists() and not (dest / _PARTIAL).exists() and (not dest.is_dir() or any(dest.iterdir())):
        refuse(f"{dest} exists and was not created by `envcheck build`", "give another --output, or remove it")
    return None


def _complete(dest: Path) -> bool:
    return (dest / _KEY).is_file() and not (dest / _PARTIAL).exists()


@contextlib.contextmanager
def _earlier_kept(dest: Path) -> Iterator[None]:
    """Keep the complete environment at `dest` until another one is complete there; without that it comes back."""
    if not _complete(dest):
        yield
        return
    dest.rename(_earlier(dest))
    try:
        yield
    except BaseException:
        _put_back(dest)
        raise
    shutil.rmtree(_earlier(dest))


def _put_back(dest: Path) -> None:
    if not _earlier(dest).is_dir():
        return
    if _complete(dest):
        shutil.rmtree(_earlier(dest))
        return
    if dest.is_dir():
        shutil.rmtree(dest)
    _earlier(dest).rename(dest)


def _earlier(dest: Path) -> Path:
    return dest.with_name(f".{dest.name}.earlier")


class _Steps:
    def __init__(
        self, context: contexts.Context, dest: Path, spec: ImageSpec, timeout: float, on_line: Callable[[str], None]
    ) -> None:
        self.mirror = context.path / "mirror"
        self._scripts = context.path / "templates/context"
        self.dest = dest
        self.spec = spec
        self._locks = context.path / "images" / str(spec.cell)
        # Never /run/wheels, which is an image build's.
        self._wheels = str(context.wheels or "")
        self._netrc = {"NETRC": str(context.secrets["netrc"])} if "netrc" in context.secrets else {}
        self.log: Path | None = None
        self._timeout = timeout
        self._on_line = on_line
        self.text = ""

    def install(self, group: str) -> None:
        """Install one group's lock with the script an image build runs."""
        lock = self._locks / f"{group}.lock"
        cache = subprocesses.output([uv.find_uv_bin(), "cache", "dir"]).strip()
        env = {"ENVCHECK_UV": uv.find_uv_bin(), "ENVCHECK_LOCK": str(lock), "ENVCHECK_CACHE": cache}
        env |= {"ENVCHECK_WHEELS": self._wheels, "ENVCHECK_FROM": str(self.mirror / group), **self._netrc}
        self.run(f"install {group}", ["sh", str(self._scripts / "install/install.sh"), group, str(self.dest)], env)

    def script(self, step: str, name: str, *words: str) -> None:
        """Run a script of an image build with the Python of the environment."""
        self.run(step, [str(self.dest / "bin/python"), "-I", "-B", str(self._scripts / name), *words])

    def run(self, step: str, argv: list[str], env: dict[str, str] | None = None) -> None:
        """Run a command; its failure is a FailedError."""
        self._on_line(f"#0 [{self.spec.cell}] {step}")
        result = subprocesses.stream(argv, timeout=self._timeout, on_line=self._on_line, env=env)
        cell, before = str(self.spec.cell), f"{self.text}== {step}\n"
        self.log = require_success(cell, f"{cell}-venv", *result, self._timeout, step=step, before=before)
        self.text = f"{before}{result.output}\n"


def _fill(dest: Path, interpreter: str, steps: _Steps, key: str) -> None:
    """Build in place, because a virtual environment cannot be moved; a mark says it is not complete until it is."""
    if dest.exists():
        shutil.rmtree(dest)
    dest.mkdir(parents=True)
    (dest / _PARTIAL).touch()
    steps.run("create", [interpreter, "-m", "venv", "--without-pip", str(dest)])
    for lock in steps.spec.locks:
        steps.install(lock.group)
    spec = steps.spec
    steps.script("prove", "prove/prove.py", *dockerfile.proof(spec), *dockerfile.added(spec))
    if spec.target == "devel" and spec.cuda:
        # NVIDIA's wheels become cuda/, the CUDA_HOME of this environment.
        packages = str(dest / f"lib/python{spec.cell.python}/site-packages")
        steps.script("link CUDA", "targets/devel/cuda_home.py", packages, str(dest / "cuda"), spec.cuda)
    promises = {name: value for name, value in spec.own_promises.items() if name != "fabric"}
    (dest / PROMISES).write_text(json.dumps(promises, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (dest / _KEY).write_text(key, encoding="ascii")
    (dest / _PARTIAL).unlink()
