"""From a spec to a proven, tagged image: base, context, plan, build, read back, tag."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from envcheck import __version__
from envcheck.data import data_path, state_path
from envcheck.errors import BuildError, ConfigError, PromiseError
from envcheck.images import context as contexts
from envcheck.images import diagnose, keys, tags, verify
from envcheck.images.engines import Engine, command
from envcheck.images.engines import base as bases
from envcheck.images.engines.sdk import ImageInfo
from envcheck.images.plan import PLATFORMS, BuildPlan, Inputs, Network, Options, make
from envcheck.images.render import base_reference
from envcheck.images.sources import Used, used
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.profile import Profile

BasePolicy = Literal["auto", "registry", "bootstrap"]


class Wish(NamedTuple):
    """What to build and how; `network` None lets the context decide. `timeout` in seconds, of the build itself.

    `wheels`: a directory that has a file of every pin; nothing else is asked for any.
    """

    spec: ImageSpec
    profile: Profile
    repository: str
    network: Network | None
    base: BasePolicy
    timeout: float
    revision: str
    epoch: int
    matrix: Path | None = None
    wheels: Path | None = None


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """A proven image. `skipped`: its key had an image already. `held_back`: aliases that stayed, and why.

    `sources` are those of what was installed now, and not in a layer that the engine had.

    `bytes` as the engine counts: compressed in a containerd store, unpacked elsewhere.
    """

    schema: Literal["envcheck/build/1"] = "envcheck/build/1"
    engine: str
    cell: str
    target: str
    image: str
    id: str
    key: str
    bytes: int
    skipped: bool
    tags: list[str]
    held_back: dict[str, str]
    base: str
    promises: dict[str, str]
    sources: list[Used]
    log: str | None
    seconds: float


def choose_base(engine: Engine, wish: Wish, say: Callable[[str], None]) -> str:
    """Return a base that this engine holds: the registry's, or the bootstrapped one where no registry has it."""
    remote = base_reference(wish.spec, wish.profile.registry)
    own = bases.reference(wish.spec.base, wish.spec.arch)
    if wish.base != "bootstrap":
        if engine.inspect(remote):
            return remote
        if _offered(engine, wish, remote):
            say(f"pulling {remote}")
            engine.pull(remote)
            return remote
    if not engine.inspect(own):
        say(f"no registry has {wish.spec.base.image}: bootstrapping it from the apt mirror (about 30 s)")
        engine.import_base(wish.spec, wish.profile)
    return own


def _offered(engine: Engine, wish: Wish, remote: str) -> bool:
    """Tell whether a registry is to be asked for the base, and has it.

    Docker Hub, which is nobody's mirror, is not asked for a closed profile.
    """
    named = wish.profile.registry is not None or not wish.profile.closed
    if wish.base == "registry" and named:
        return True
    if wish.base == "registry":
        message = f"{wish.profile.name} is closed and names no registry"
        raise ConfigError(message, fix="name one under `registry:`, or leave --base out: the base is bootstrapped")
    return named and engine.has_remote(remote)


def prepare(engine: Engine, wish: Wish, base: str, scratch: Path) -> BuildPlan:
    """Write the context and return the plan; its key is None when the engine does not hold the base yet."""
    context = contexts.write(wish.spec, wish.profile, scratch / "context", matrix=wish.matrix, wheels=wish.wheels)
    held = engine.inspect(base)
    key = held and keys.key(
        context=keys.context_digest(context.path),
        base=hashlib.sha256("".join(held.layers).encode()).hexdigest(),
        platform=PLATFORMS[wish.spec.arch],
        target=wish.spec.target,
        secrets=context.secrets,
    )
    complete = base.startswith(f"{bases.REPOSITORY}:")
    needed: Network = "none" if complete and context.network == "none" else "host"
    options = Options(
        engine=engine.name,
        frontend=engine.frontend(),
        repository=wish.repository,
        network=wish.network or needed,
        epoch=wish.epoch,
        revision=wish.revision,
    )
    own = {"org.opencontainers.image.base.name": base} if complete else {}
    return make(wish.spec, options, Inputs(base, key, context.path, context.secrets, own, context.wheels))


def dry_run(engine: Engine, wish: Wish) -> BuildPlan:
    """Return the plan as `build` would carry it out, fetching, importing and building nothing.

    Its context is left in place, so that what is printed of the plan can be run.
    """
    remote = base_reference(wish.spec, wish.profile.registry)
    there = wish.base != "bootstrap" and (engine.inspect(remote) or _offered(engine, wish, remote))
    base = remote if there else bases.reference(wish.spec.base, wish.spec.arch)
    place = state_path("plans", f"{wish.spec.cell}-{wish.spec.target}")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    planned = prepare(engine, wish, base, place)
    return msgspec.structs.replace(planned, skipped=bool(planned.key and engine.inspect(planned.name)))


def build(engine: Engine, wish: Wish, *, say: Callable[[str], None], on_line: Callable[[str], None]) -> Built:
    """Build, read back, tag. A failure is a BuildError that names step and cause; a lie is a PromiseError."""
    began = time.monotonic()
    base = choose_base(engine, wish, say)
    with tempfile.TemporaryDirectory(prefix="envcheck-build-") as scratch:
        plan = prepare(engine, wish, base, Path(scratch))
        found = engine.inspect(plan.name) if plan.key else None
        log = None if found else _run(engine, plan, wish.timeout, on_line)
    image = found or engine.inspect(plan.name)
    if image is None:
        message = f"the build of {plan.tag} ended without an image"
        raise BuildError(message, fix=f"see {log}")
    given, held_back = _approve(engine, wish.spec, plan, image)
    return Built(
        engine=plan.engine,
        cell=plan.cell,
        target=plan.target,
        image=plan.tag,
        id=image.id,
        key=plan.key or "",
        bytes=image.size,
        skipped=found is not None,
        tags=given,
        held_back=held_back,
        base=base,
        promises=wish.spec.promises,
        sources=used(log.read_text(encoding="utf-8")) if log else [],
        log=str(log) if log else None,
        seconds=round(time.monotonic() - began, 1),
    )


def _approve(engine: Engine, spec: ImageSpec, plan: BuildPlan, image: ImageInfo) -> tuple[list[str], dict[str, str]]:
    """Read the image back; give it its tags if it is what it says, and take its name away if it is not."""
    try:
        verify.demand(spec, image.labels, plan.name)
    except PromiseError:
        engine.untag(plan.name)
        raise
    engine.tag(image.id, plan.tag)
    held_back = {}
    for alias in plan.aliases:
        holder = engine.inspect(alias)
        why = tags.held_back(holder.labels if holder else None, spec)
        if why:
            held_back[alias] = why
        else:
            engine.tag(image.id, alias)
    return [plan.tag, *(a for a in plan.aliases if a not in held_back)], held_back


def _run(engine: Engine, plan: BuildPlan, timeout: float, on_line: Callable[[str], None]) -> Path:
    log = log_path(f"{plan.cell}-{plan.target}")
    done = engine.build(plan, on_line=on_line, timeout=timeout)
    log.write_text(done.output, encoding="utf-8")
    if done.status != 0:
        ended = f"timed out after {timeout:.0f} s" if done.status is None else ""
        raise FailedError(plan.tag, f"{done.output}\n{ended}", log)
    return log


def log_path(name: str) -> Path:
    """Return where a build's whole log goes."""
    log = state_path("logs") / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    return log


class FailedError(BuildError):
    """A build that failed: one line names the cause and what to do; `detail` is the step and its last lines.

    `step` is named for a build that is not in a container, whose log does not tell its steps.
    """

    def __init__(self, what: str, text: str, log: Path, *, step: str | None = None) -> None:
        found = diagnose.explain(text)
        cause = found.cause or diagnose.Cause("no known cause", "read its last lines above, or the whole log")
        fix = cause.fix + ("" if step else cause.contained)
        super().__init__(f"{what} could not be built: {cause.what} (log: {log})", fix=fix)
        self.detail = [f"in {step or found.step}", *found.lines]


def origin() -> tuple[str, int]:
    """Return what the image is built from and its date: the checkout's commit, or envcheck's version and 1970."""
    top = data_path("templates").parent
    if (top / ".git").exists() and command.which("git"):
        done = command.stream(["git", "-C", str(top), "log", "-1", "--format=%H %ct"], timeout=10)
        if done.status == 0:
            commit, _, date = done.output.strip().partition(" ")
            return commit, int(date)
    return __version__, 0
