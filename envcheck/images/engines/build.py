"""From a spec to a proven, tagged image: base, context, plan, build, read back, tag."""

import contextlib
import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from envcheck import __version__, safe_files
from envcheck.data import data_path, state_path
from envcheck.errors import BuildError, ConfigError, PromiseError, UnavailableError, refuse
from envcheck.images import build_context as contexts
from envcheck.images import build_log, tags
from envcheck.images import plan as build_key
from envcheck.images.build_log import UsedSource, used
from envcheck.images.dockerfile import base_reference
from envcheck.images.engines import Engine, ImageInfo, subprocesses
from envcheck.images.engines import bootstrap as bases
from envcheck.images.engines.subprocesses import CommandResult
from envcheck.images.plan import BUILDS, KEY_LABEL, PACKAGES_LABEL, PLATFORMS, BuildPlan, Network
from envcheck.images.spec import ImageSpec
from envcheck.images.targets import RECIPES, os_packages
from envcheck.mirrors.profiles.model import Profile
from envcheck.safe_files import held

BasePolicy = Literal["auto", "registry", "bootstrap"]
# What the docker client and buildx say last when the daemon goes away under a build.
_ENDED: Final = re.compile(
    r"Cannot connect to the Docker daemon|error during connect|error reading from server|transport is closing"
    r"|rpc error: code = Unavailable|docker\.sock.*connection refused"
)


class TargetRequest(NamedTuple):
    """What to build and how. If `network` is None, the context decides. `timeout` limits the build itself, in seconds.

    `wheels` is a directory with a file for every pin, which replaces all indexes. `tag` is the only tag of the image.
    `tool` is uv for a platform that is not this machine's.
    """

    spec: ImageSpec
    profile: Profile
    repository: str
    network: Network | None
    base: BasePolicy
    timeout: float
    matrix: Path | None = None
    wheels: Path | None = None
    tag: str | None = None
    tool: Path | None = None


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """A proven image. `skipped`: its key had an image already. `held_back`: aliases that stayed, and why.

    `sources` are those of what was installed now, and not in a layer that the engine had.

    `bytes_compressed` is None until the engine or, after a push, the registry says it. `pushed` is REPOSITORY@DIGEST.
    """

    schema: Literal["envcheck/build/1"] = "envcheck/build/1"
    engine: str
    cell: str
    target: str
    image: str
    id: str
    key: str
    bytes_on_disk: int
    bytes_compressed: int | None
    skipped: bool
    tags: list[str]
    held_back: dict[str, str]
    base: str
    promises: dict[str, str]
    sources: list[UsedSource]
    log: str | None
    seconds: float
    pushed: str | None = None


def base_packages(request: TargetRequest) -> tuple[str, ...]:
    """Return what a bootstrapped base includes: the target's packages too where the build itself has no network.

    Otherwise all targets of a cell stand on one base, and their builds share its layers.
    """
    more = RECIPES[request.spec.target].packages if request.network == "none" else ()
    return (*os_packages(request.spec.cuda), *more)


def choose_base(engine: Engine, request: TargetRequest, say: Callable[[str], None]) -> str:
    """Return a base that this engine holds: the registry's, or the bootstrapped one where no registry has it."""
    remote = base_reference(request.spec, request.profile.registry)
    packages = base_packages(request)
    own = bases.reference(request.spec.base, request.spec.arch, packages)
    if request.base != "bootstrap":
        if engine.inspect(remote):
            return remote
        # The daemon's registry mirrors serve a pull, but not `manifest inspect`, which the client does.
        if _offered(engine, request, remote) or (_named(request) and not engine.inspect(own)):
            say(f"pulling {remote}")
            try:
                engine.pull(remote)
            except UnavailableError:
                if request.base == "registry":
                    raise
            else:
                return remote
    if not engine.inspect(own):
        say(f"no registry has {request.spec.base.image}: bootstrapping it from the apt mirror (about 30 s)")
        engine.import_base(request.spec, packages, request.profile)
    return own


def _named(request: TargetRequest) -> bool:
    """Tell whether a registry may be asked: Docker Hub, which is nobody's mirror, is not for a closed profile."""
    return request.profile.registry is not None or not request.profile.closed


def _offered(engine: Engine, request: TargetRequest, remote: str) -> bool:
    if request.base == "registry" and not _named(request):
        message = f"{request.profile.name} is closed and names no registry"
        raise ConfigError(message, fix="name one under `registry:`, or leave --base out: the base is bootstrapped")
    return request.base == "registry" or (_named(request) and engine.has_remote(remote))


def prepare(engine: Engine, request: TargetRequest, base: str, scratch: Path, *, key_only: bool = False) -> BuildPlan:
    """Write the context and return the plan; its key is None when the engine does not hold the base yet.

    With `key_only` the key and the names are right, and the plan is not one to build by.
    """
    context = _context([request], scratch, key_only=key_only)
    base_image = engine.inspect(base)
    key = base_image and build_key.key(
        context=build_key.context_digest(context.path),
        base=hashlib.sha256("".join(base_image.layers).encode()).hexdigest(),
        platform=PLATFORMS[request.spec.arch],
        target=request.spec.target,
        secrets=context.secrets,
    )
    return _plan(engine, request, base, key, context)


def _context(requests: Sequence[TargetRequest], scratch: Path, *, key_only: bool = False) -> contexts.Context:
    return contexts.write(
        [request.spec for request in requests],
        requests[0].profile,
        scratch / "context",
        matrix=requests[0].matrix,
        wheels=requests[0].wheels,
        tool=requests[0].tool,
        key_only=key_only,
    )


def _plan(engine: Engine, request: TargetRequest, base: str, key: str | None, context: contexts.Context) -> BuildPlan:
    complete = base.startswith(f"{bases.REPOSITORY}:")
    asks_apt = not complete or bool(RECIPES[request.spec.target].packages)
    needed: Network = "none" if not asks_apt and context.network == "none" else "host"
    spec, (revision, epoch) = request.spec, origin()
    plan = BuildPlan(
        engine=engine.name,
        cell=str(spec.cell),
        target=spec.target,
        platform=PLATFORMS[spec.arch],
        base=base,
        key=key,
        name=f"{BUILDS}:{(key or 'key-not-known-yet')[:32]}",
        tag=f"{request.repository}:{request.tag or spec.tag}",
        aliases=[] if request.tag else tags.aliases(request.repository, spec),
        context=str(context.path),
        network=request.network or needed,
        contexts={"wheels": str(context.wheels)} if context.wheels else {},
        secrets={name: str(path) for name, path in sorted(context.secrets.items())},
        build_args={"BASE": base, "REVISION": revision, "SOURCE_DATE_EPOCH": str(epoch)},
        labels={
            PACKAGES_LABEL: spec.packages,
            **({KEY_LABEL: key} if key else {}),
            **({"org.opencontainers.image.base.name": base} if complete else {}),
        },
    )
    return msgspec.structs.replace(plan, argv=[*engine.frontend(), *build_key.arguments(plan)])


def _record(engine: Engine, key: str) -> Path:
    return state_path("built", f"{engine.name}-{key}")


def _built(engine: Engine, key: str | None) -> ImageInfo | None:
    """Return the proven image of a key, by its id: images that are derived from it inherit its label."""
    record = _record(engine, key) if key else None
    identity = record.read_text(encoding="ascii") if record and record.is_file() else ""
    image = engine.inspect(identity) if identity else None
    return image if image and image.labels.get(KEY_LABEL) == key else None


def dry_run(engine: Engine, request: TargetRequest) -> BuildPlan:
    """Return the plan of `build`, which builds nothing. Its context stays: what is printed of it can be run."""
    remote = base_reference(request.spec, request.profile.registry)
    pullable = request.base != "bootstrap" and (engine.inspect(remote) or _offered(engine, request, remote))
    base = remote if pullable else bases.reference(request.spec.base, request.spec.arch, base_packages(request))
    place = state_path("plans", f"{request.spec.cell}-{request.spec.target}")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    planned = prepare(engine, request, base, place)
    return msgspec.structs.replace(planned, skipped=_built(engine, planned.key) is not None)


def build(
    engine: Engine, requests: Sequence[TargetRequest], *, say: Callable[[str], None], on_line: Callable[[str], None]
) -> list[BuildResult]:
    """Build targets of one cell, read back, tag. The requests differ in their targets alone.

    Several of them need a network: without one each target has a base of its own.

    A failure is a BuildError that names step and cause; a lie is a PromiseError. The other targets are built and tagged
    all the same. Of two builds of one key the second waits for the first. An engine that ends under way is an
    UnavailableError.
    """
    try:
        return _build(engine, requests, say, on_line)
    except PromiseError:
        raise
    except BuildError as error:
        # It may be up again.
        if not _ENDED.search("\n".join(getattr(error, "detail", [])[-1:])) and engine.answers():
            raise
        log = getattr(error, "log", None)
        message = f"{engine.name} stopped answering during the build{f' (log: {log})' if log else ''}"
        raise UnavailableError(message, fix="start it again, then build again: finished layers are kept") from error


def _build(
    engine: Engine, requests: Sequence[TargetRequest], say: Callable[[str], None], on_line: Callable[[str], None]
) -> list[BuildResult]:
    began = time.monotonic()
    first = requests[0]
    with one_at_a_time(bases.reference(first.spec.base, first.spec.arch, base_packages(first)), say):
        base = choose_base(engine, first, say)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="envcheck-build-")))
        plans = [prepare(engine, request, base, scratch / request.spec.target, key_only=True) for request in requests]
        for key in sorted({f"{engine.name} {plan.key}" for plan in plans}):
            stack.enter_context(one_at_a_time(key, say))
        targets = [
            _Target(request, plan, _built(engine, plan.key)) for request, plan in zip(requests, plans, strict=True)
        ]
        outcomes = [_outcome(engine, target, began) for target in _run(engine, targets, scratch, on_line)]
    for outcome in outcomes:
        if isinstance(outcome, BuildError):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, BuildResult)]


class _Target(NamedTuple):
    """A target on its way: the image that its key had, or how the command of its plan ended."""

    request: TargetRequest
    plan: BuildPlan
    existing: ImageInfo | None
    ended: CommandResult | None = None


def _run(engine: Engine, targets: Sequence[_Target], scratch: Path, on_line: Callable[[str], None]) -> list[_Target]:
    lacking = [target for target in targets if target.existing is None]
    if not lacking:
        return list(targets)
    context = _context([target.request for target in lacking], scratch)
    plans = [_plan(engine, t.request, t.plan.base, t.plan.key, context) for t in lacking]
    results = engine.build(plans, on_line=on_line, timeout=lacking[0].request.timeout)
    built = (t._replace(plan=plan, ended=end) for t, plan, end in zip(lacking, plans, results, strict=True))
    return [target if target.existing else next(built) for target in targets]


def _outcome(engine: Engine, target: _Target, began: float) -> BuildResult | BuildError:
    try:
        return _result(engine, target, began)
    except BuildError as error:
        return error


def _result(engine: Engine, target: _Target, began: float) -> BuildResult:
    request, plan, existing, ended = target
    log = build_log.require_success(plan.tag, f"{plan.cell}-{plan.target}", *ended, request.timeout) if ended else None
    # A build of another state folder on the same engine may have tagged it meanwhile, and taken the build's name away.
    image = existing or engine.inspect(plan.name) or engine.inspect(plan.tag)
    if image is None:
        refuse(f"the build of {plan.tag} ended without an image", f"see {log}" if log else "build again", BuildError)
    names, held_back = _approve(engine, request.spec, plan, image)
    on_disk, compressed = engine.sizes(image)
    return BuildResult(
        engine=plan.engine,
        cell=plan.cell,
        target=plan.target,
        image=plan.tag,
        id=image.id,
        key=plan.key or "",
        bytes_on_disk=on_disk,
        bytes_compressed=compressed,
        skipped=existing is not None,
        tags=names,
        held_back=held_back,
        base=plan.base,
        promises=request.spec.promises,
        sources=used(ended.output if ended else ""),
        log=str(log) if log else None,
        seconds=0.0 if existing else round(time.monotonic() - began, 1),  # of the targets that were built
    )


def _approve(engine: Engine, spec: ImageSpec, plan: BuildPlan, image: ImageInfo) -> tuple[list[str], dict[str, str]]:
    """Read the image back, and give it its tags if it is what it says; the name that it was built by goes."""
    held_back = {}
    try:
        tags.require_labels(spec, image.labels, plan.name, plan.key)
    except PromiseError:
        engine.untag(plan.name)
        raise
    engine.tag(image.id, plan.tag)
    for alias in plan.aliases:
        holder = engine.inspect(alias)
        why = tags.held_back(holder.labels if holder else None, spec)
        if why:
            held_back[alias] = why
        else:
            engine.tag(image.id, alias)
    engine.untag(plan.name)
    record = _record(engine, plan.key or "")
    record.parent.mkdir(parents=True, exist_ok=True)
    safe_files.replace(record, image.id.encode())
    return [plan.tag, *(a for a in plan.aliases if a not in held_back)], held_back


def push(engine: Engine, built: BuildResult, repository: str, timeout: float) -> BuildResult:
    """Push a proven image under the tag that it has here, and return the result with the digest it has there."""
    name = f"{repository}:{built.image.rpartition(':')[2]}"
    engine.tag(built.id, name)
    digest = engine.push(name, timeout)
    held = engine.inspect(name)
    if held is None or held.id != built.id:
        refuse(f"{name} became another image while it was pushed", "build and push again", PromiseError)
    compressed = built.bytes_compressed or engine.pushed_bytes(f"{repository}@{digest}")
    return msgspec.structs.replace(built, pushed=f"{repository}@{digest}", bytes_compressed=compressed)


@contextlib.contextmanager
def one_at_a_time(key: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold what only one build of this user may do at once; say that another one is waited for."""
    lock = state_path("locks") / hashlib.sha256(key.encode()).hexdigest()[:32]
    lock.parent.mkdir(parents=True, exist_ok=True)
    with held(lock, lambda: say("another build of the same image is running; waiting for it")):
        yield


def origin() -> tuple[str, int]:
    """Return what the image is built from and its date: the checkout's commit, or envcheck's version and 1970."""
    top = data_path("templates").parent
    if (top / ".git").exists() and subprocesses.which("git"):
        result = subprocesses.stream(["git", "-C", str(top), "log", "-1", "--format=%H %ct"], timeout=10)
        if result.status == 0:
            commit, _, date = result.output.strip().partition(" ")
            return commit, int(date)
    return __version__, 0
