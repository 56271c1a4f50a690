"""`envcheck build`: its steps, its plans and what it prints of what was built."""

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.building.cell_to_build import best_cell, kept_locks
from envcheck.cli.building.on_top import details, listeners, locked_specs, specs_to_build, with_requirements
from envcheck.cli.building.request import BuildOptions, BuildRequest
from envcheck.cli.commands.resolve import active_python, fill
from envcheck.cli.options import command_with
from envcheck.cli.sources import prefetched_wheels, profile_for
from envcheck.counting import counted
from envcheck.data import rendered, state_path
from envcheck.errors import ConfigError
from envcheck.images import engines
from envcheck.images.engines import build, venv
from envcheck.images.engines.build import BuildResult, TargetRequest
from envcheck.images.lock_on_top import uv_for
from envcheck.images.plan import BuildPlan
from envcheck.images.spec import ImageSpec
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.resolve import Query, resolve
from envcheck.mirrors.profiles.load import AUTO
from envcheck.mirrors.profiles.model import Profile
from envcheck.node import collect


@command_with(BuildOptions, "platform", epilog="Example: envcheck build torch2.13.0-cpu-py311 --mirror host")
def command(options: BuildOptions, settings: Settings) -> None:
    """Build a cell and prove that it is what its tag says.

    Without CELL, envcheck builds the published cell that `envcheck resolve` names for this machine, or the newest one
    whose torch the mirror has. On a CPU that may be a CUDA build; envcheck then prints its size.

    An unpublished cell is locked first, through the mirror. Its hashes are trusted on first use and kept. Packages of
    --with get a lock of their own on top of the cell's; a package that needs another torch or numpy is refused.
    A native extension without a wheel that fits is compiled on the cell's devel, and its wheel is kept in the store.

    --push REPOSITORY pushes what was built and proven, under its full tag, and prints REPOSITORY@DIGEST.

    Several --target are built at once and share their layers: a shared step runs once.

    The build checks its versions before an image exists, and the labels before the image gets its tag. A cell that has
    an image with the same key is not built again. With --prefetch, envcheck downloads and verifies all files first, and
    the build has no network (docker needs buildx, podman 4.2). If a mirror fails, envcheck says why and tries the next
    one. `envcheck --verbose` shows the build's output, `--quiet` only the result.

    Exit 0: built, or already present; 1: the build failed, or breaks a promise; 2: wrong usage; 3: an engine, a
    Python or an index is missing.
    """
    request = BuildRequest.from_options(options, settings, engines.find, _from_environment())
    _demand_engine(request)
    matrix = load(settings.matrix)
    specs = specs_to_build(matrix, request, request.options.selector or _cell_for_this_machine(matrix, request))
    unlocked = [spec for spec in specs if spec.lacks_lock]
    if unlocked and request.options.mirror == AUTO:
        message = f"--mirror auto probes for the files of a lock, and {unlocked[0].cell} has none yet"
        raise ConfigError(message, fix="name the mirror that the lock is made through, e.g. --mirror host")
    profile = profile_for(settings, request.options.mirror, [lock for spec in specs for lock in spec.locks])
    if request.options.dry_run and unlocked:
        if request.engine == "venv":
            venv.plan(unlocked[0], _destination(unlocked[0], request.options.output))  # refuses what a build would
        plan = {"lock": "made first", "mirror": profile.name, "with": request.requirements}
        _print_without_key(unlocked, request, plan)
        return
    with with_requirements(matrix, locked_specs(matrix, request, specs, profile), profile, request) as on_top:
        if on_top.first:
            _print_without_key(on_top.specs, request, on_top.first)
        else:
            _build(on_top.specs, on_top.profile, request)


def _from_environment() -> set[str]:
    """Return the options of this command whose value is from the environment: one for every command."""
    context = click.get_current_context()
    named = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in named.items() if source is click.core.ParameterSource.ENVIRONMENT}


def _demand_engine(request: BuildRequest) -> None:
    if request.engine != "venv" and request.foreign and not request.options.dry_run:
        engines.connect(request.engine).demand_platform(request.options.platform)
    if request.engine != "venv" and request.options.prefetch:
        engines.connect(request.engine).demand_contexts()


def _cell_for_this_machine(matrix: Matrix, request: BuildRequest) -> str:
    """Return the name of the published cell to build here through this mirror, and say which it is and why."""
    node = fill(matrix, Query(), collect.identify(), active_python())
    answer = resolve(matrix, node.query, read_here=node.read, notes=node.notes)
    answers = [answer, resolve(matrix, node.query.replace(python=None))]
    best = best_cell(matrix, answers, request.engine, request.options.mirror)
    click.echo(f"cell    {best.cell}: {best.why or 'the best published one for this machine'}", err=True)
    return str(best.cell)


def _destination(spec: ImageSpec, output: Path | None) -> Path:
    """Return where an environment goes: a directory of its own for each target and each set of packages on top."""
    plain = spec.target == "runtime" and not spec.on_top
    return output or state_path("venvs", str(spec.cell) if plain else f"torch{spec.tag}")


def _build(specs: Sequence[ImageSpec], profile: Profile, request: BuildRequest) -> None:
    options, settings = request.options, request.settings
    with contextlib.ExitStack() as stack:
        wheels = None
        if options.prefetch:
            engine, fetch = request.engine, not options.dry_run
            prefetched = prefetched_wheels(settings, specs[0], profile, options.store, engine=engine, fetch=fetch)
            wheels = stack.enter_context(prefetched)
        stack.enter_context(details())
        build = _venv if request.engine == "venv" else _images
        made = build(specs, profile, wheels, request)
    _print(
        "plan" if options.dry_run else "built",
        made,
        request,
        run_options=engines.run_options,
        local_name=engines.local_name,
    )


def _images(
    specs: Sequence[ImageSpec], profile: Profile, wheels: Path | None, request: BuildRequest
) -> Sequence[BuildPlan | BuildResult]:
    engine, dry_run = engines.connect(request.engine), request.options.dry_run
    targets = [
        TargetRequest(
            spec=spec,
            profile=profile,
            repository=request.repository,
            network=request.network,
            base=request.base,
            timeout=request.options.timeout,
            matrix=request.settings.matrix,
            wheels=wheels,
            tag=request.tag,
            tool=uv_for(spec.arch, profile) if request.foreign and not dry_run else None,
        )
        for spec in specs
    ]
    if dry_run:
        return [build.dry_run(engine, target) for target in targets]
    with listeners(request.settings) as (say, on_line):
        made = build.build(engine, targets, say=say, on_line=on_line)
    repository, timeout = request.options.push, request.options.timeout
    return [build.push(engine, each, repository, timeout) for each in made] if repository else made


def _venv(
    specs: Sequence[ImageSpec], profile: Profile, wheels: Path | None, request: BuildRequest
) -> Sequence[venv.EnvironmentPlan | venv.Environment]:
    (spec,), options = specs, request.options
    dest = _destination(spec, options.output)
    if options.dry_run:
        return [venv.plan(spec, dest)]
    with listeners(request.settings) as (say, on_line):
        return [venv.build(spec, profile, dest, timeout=options.timeout, on_line=on_line, say=say, wheels=wheels)]


def _print_without_key(specs: Sequence[ImageSpec], request: BuildRequest, plan: dict[str, Any]) -> None:
    """Print a plan of what has no lock yet, or no wheel: what it installs is not known, and so it has no key."""
    first = {"schema": "envcheck/build-plan/1", "engine": request.engine, "cell": str(specs[0].cell)}
    plans = [{**first, "target": spec.target, "key": None, **plan} for spec in specs]
    _print("plan-without-key", plans, request, kept=kept_locks(specs[0].cell))


def _print(template: str, values: Sequence[object], request: BuildRequest, **more: object) -> None:
    """Print plans or what was built: as JSON, one or a list of several, or as templates/printed/ has it."""
    if request.options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(values[0] if len(values) == 1 else values)))
        return
    context = {"quiet": request.settings.quiet, "counted": counted, "join": shlex.join, **more}
    for value in values:
        name = "built" if template == "built" else "plan"
        click.echo(rendered(f"printed/{template}.txt.j2", {name: value, **context}), nl=False)
