"""Compile an extension on `devel`, with an engine or as a virtual environment, and keep the wheel that is right."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import envcheck
from envcheck.binaries.elf import BinaryError
from envcheck.data import state_path
from envcheck.errors import PromiseError, UnavailableError
from envcheck.images import engines
from envcheck.images.build.build_log import FailedError, keep_log, log_path
from envcheck.images.build.plan import PLATFORMS, BuildPlan
from envcheck.images.build.tags import REPOSITORY
from envcheck.images.engines import build as image_builds
from envcheck.images.engines import subprocesses, venv
from envcheck.images.engines.build import BasePolicy, BuildRequest, one_at_a_time
from envcheck.images.locks import prefetch
from envcheck.images.locks.local_wheels import sha256
from envcheck.images.source_builds import context as contexts
from envcheck.images.source_builds import kept_wheels
from envcheck.images.source_builds.built_wheel import relabelled, require
from envcheck.images.source_builds.kept_wheels import KeptWheel
from envcheck.images.source_builds.recipe import ExtensionBuild
from envcheck.matrix.facts.lookup import Facts
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.store.objects import Store


class Compiler(NamedTuple):
    """Where and how to compile. `timeout` is in seconds; `most_jobs` is the user's own limit (MAX_JOBS)."""

    engine: str
    profile: Profile
    base: BasePolicy
    timeout: float
    most_jobs: int | None
    on_line: Callable[[str], None]
    say: Callable[[str], None]


def wheel_of(
    build: ExtensionBuild, store: Store, facts: Facts, compiler: Compiler, means: Callable[[str], TransferOptions]
) -> tuple[KeptWheel, bool]:
    """Return the wheel of a build, and whether it was compiled now; one that the store has is not compiled again.

    Raise BuildError if it does not compile, PromiseError if the wheel is not what it was compiled to be.
    """
    kept = kept_wheels.find(store, build)
    if kept is not None:
        return kept, False
    kept_wheels.require_writable(store)
    with one_at_a_time(f"extension {build.key}", compiler.say):
        kept = kept_wheels.find(store, build)
        if kept is not None:
            return kept, False
        prefetch.bring(store, contexts.required(build), build.devel.cell.python, compiler.profile, means)
        with tempfile.TemporaryDirectory(prefix=".view-", dir=store.root) as scratch:
            return _compiled(build, store, facts, compiler, Path(scratch)), True


def _compiled(build: ExtensionBuild, store: Store, facts: Facts, compiler: Compiler, scratch: Path) -> KeptWheel:
    scratch.chmod(0o755)
    context, out, labelled = scratch / "context", scratch / "out", scratch / "labelled"
    jobs = contexts.write(build, store, context, image_builds.origin()[1], compiler.most_jobs)
    compiler.say(f"compiling {build.what}, {jobs} at once")
    for directory in (out, labelled):
        directory.mkdir()
    if compiler.engine == "venv":
        _in_environment(build, compiler, context, out)
    else:
        _in_stage(build, compiler, context, out)
    wheels = list(out.glob("*.whl"))
    if len(wheels) != 1:
        message = f"the build of {build.what} made {len(wheels)} wheels"
        raise PromiseError(message, fix="take another version")
    try:
        wheel = relabelled(wheels[0], labelled, build.local_version)
    except BinaryError as error:
        message = f"the build of {build.what} made {wheels[0].name}: {error}"
        raise PromiseError(message, fix="take another version") from error
    require(wheel, build, facts)
    return kept_wheels.keep(store, build, wheel, sha256(wheel))


def _in_stage(build: ExtensionBuild, compiler: Compiler, context: Path, out: Path) -> None:
    """Compile in a stage on the cell's `devel`, which is built first where it is not there, without a network."""
    engine = engines.connect(compiler.engine)
    revision, epoch = image_builds.origin()
    request = BuildRequest(
        spec=build.devel,
        profile=compiler.profile,
        repository=REPOSITORY,
        network=None,
        base=compiler.base,
        timeout=compiler.timeout,
        revision=revision,
        epoch=epoch,
    )
    (devel,) = image_builds.build(engine, [request], say=compiler.say, on_line=compiler.on_line)
    plan = stage(build, engine.name, engine.frontend(), engines.local_name(engine.name, devel.image), context, out)
    (result,) = engine.build([plan], on_line=compiler.on_line, timeout=compiler.timeout)
    _require_success(build, result, compiler.timeout)


def stage(build: ExtensionBuild, engine: str, frontend: list[str], base: str, context: Path, out: Path) -> BuildPlan:
    """Return the plan of the stage: it leaves the wheel in `out`, and no image."""
    command = [word for word in frontend if word != "--load"]
    options = [f"--platform={PLATFORMS[build.devel.arch]}", "--network=none", f"--build-arg=BASE={base}"]
    return BuildPlan(
        engine="podman" if engine == "podman" else "docker",
        cell=str(build.devel.cell),
        target="devel",
        platform=PLATFORMS[build.devel.arch],
        base=base,
        key=build.key,
        name="",
        tag="",
        aliases=[],
        context=str(context),
        network="none",
        contexts={},
        secrets={},
        build_args={"BASE": base},
        labels={},
        argv=[*command, *options, f"--output=type=local,dest={out}", str(context)],
    )


def _in_environment(build: ExtensionBuild, compiler: Compiler, context: Path, out: Path) -> None:
    """Compile in the cell's `devel` as a virtual environment, with the compiler of this machine."""
    if subprocesses.which("g++") is None:
        message = f"{build.what} must be compiled, and this machine has no g++"
        raise UnavailableError(message, fix="install g++ and the headers of its Python, or use --engine docker")
    devel = venv.build(
        build.devel,
        compiler.profile,
        state_path("venvs", f"torch{build.devel.tag}"),
        timeout=compiler.timeout,
        on_line=compiler.on_line,
        say=compiler.say,
    )
    _require_headers(devel.python)
    (context / "envcheck").symlink_to(Path(envcheck.__file__).resolve().parent)
    home = {"CUDA_HOME": f"{devel.path}/cuda"} if build.gpus else {}
    argv = [*_closed(compiler.say), "sh", str(context / "build_wheel.sh"), devel.python, str(context), str(out)]
    (context / "tmp").mkdir()
    result = subprocesses.stream(
        argv, timeout=compiler.timeout, on_line=compiler.on_line, env={"TMPDIR": str(context / "tmp"), **home}
    )
    _require_success(build, result, compiler.timeout)


def _require_headers(python: str) -> None:
    where = subprocesses.output([python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('include'))"]).strip()
    if not Path(where, "Python.h").is_file():
        message = f"{where} has no Python.h, which compiling an extension needs"
        raise UnavailableError(message, fix="install the headers of that Python, or use --engine docker")


def _closed(say: Callable[[str], None]) -> list[str]:
    """Return the command that runs another one without a network; nothing, and say so, where the kernel forbids it."""
    for argv in (["unshare", "--net"], ["unshare", "--user", "--map-current-user", "--net"]):
        if subprocesses.which(argv[0]) and subprocesses.stream([*argv, "true"], timeout=10).status == 0:
            return argv
    say("this machine allows no network namespace: the build may reach the network")
    return []


def _require_success(build: ExtensionBuild, result: subprocesses.CommandResult, timeout: float) -> None:
    if result.status == 0:
        return
    ended = f"timed out after {timeout:.0f} s" if result.status is None else ""
    name = f"{build.sdist.name} {build.sdist.version}"
    log = keep_log(log_path(f"{build.devel.cell}-{build.sdist.name}-{build.sdist.version}"), result.output)
    raise FailedError(name, f"{result.output}\n{ended}", log, step="compile")
