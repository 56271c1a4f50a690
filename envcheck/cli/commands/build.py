"""`envcheck build`: its steps, its plans and what it prints of what was built."""

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.build.cell_to_build import BestCell, kept_locks, newest_available, published_here, spec_to_build
from envcheck.cli.build.on_top import details, listeners, locked_specs, requested_packages, with_requirements
from envcheck.cli.build.request import BuildOptions, BuildRequest
from envcheck.cli.commands.resolve import active_python, fill
from envcheck.cli.options import architecture, command_with
from envcheck.cli.sources import prefetched_wheels, profile_for
from envcheck.counting import counted
from envcheck.data import state_path
from envcheck.errors import ConfigError, NothingLegalError
from envcheck.images import engines
from envcheck.images.engines import build, venv
from envcheck.images.engines.build import BuildResult, TargetRequest
from envcheck.images.lock_on_top import uv_for
from envcheck.images.plan import BuildPlan
from envcheck.images.spec import ImageSpec
from envcheck.images.tags import parse
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.resolve import Query, resolve
from envcheck.mirrors.profiles.load import AUTO
from envcheck.mirrors.profiles.load import load as load_profile
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

    Several --target are built at once and share their layers: a shared step runs once.

    The build checks its versions before an image exists, and the labels before the image gets its tag. A cell that has
    an image with the same key is not built again. With --prefetch, envcheck downloads and verifies all files first, and
    the build has no network (docker needs buildx, podman 4.2). If a mirror fails, envcheck says why and tries the next
    one. `envcheck --verbose` shows the build's output, `--quiet` only the result.

    Exit 0: built, or already present; 1: the build failed, or breaks a promise; 2: wrong usage; 3: an engine, a
    Python or an index is missing.
    """
    parse(options.tag)  # a wrong one is refused before anything runs
    selector, arch = (
        options.selector or _cell_for_this_machine(settings, options.mirror),
        architecture(options.platform),
    )
    targets = dict.fromkeys(options.targets)
    specs = [spec_to_build(settings, selector, target, options.images_dir, arch) for target in targets]
    request = BuildRequest.from_options(options, engines.find, _from_environment())
    _demand_engine(request)
    requirements = requested_packages(options.packages, options.packages_file)
    unlocked = [spec for spec in specs if spec.lacks_lock]
    if unlocked and options.mirror == AUTO:
        message = f"--mirror auto probes for the files of a lock, and {unlocked[0].cell} has none yet"
        raise ConfigError(message, fix="name the mirror that the lock is made through, e.g. --mirror host")
    profile = profile_for(settings, options.mirror, [lock for spec in specs for lock in spec.locks])
    if options.dry_run and unlocked:
        if request.engine == "venv":
            venv.plan(unlocked[0], _destination(unlocked[0], options.output))  # refuses what a build would
        _show_unlocked(unlocked, profile, request, requirements)
        return
    specs = locked_specs(settings, specs, profile, options.images_dir)
    if not requirements:
        _build(specs, profile, request, settings)
        return

    def show_plan(plan: dict[str, Any], lines: Sequence[str]) -> None:
        _show_without_key(specs, request, plan, lines)

    with with_requirements(settings, specs[0], requirements, profile, request, show_plan) as spec_and_profile:
        if spec_and_profile is not None:
            _build([spec_and_profile.spec], spec_and_profile.profile, request, settings)


def _cell_for_this_machine(settings: Settings, mirror: str) -> str:
    """Return the name of the published cell to build here through this mirror, and say which it is and why."""
    matrix = load(settings.matrix)
    node = fill(matrix, Query(), collect.identify(), active_python())
    answer = resolve(matrix, node.query, read_here=node.read, notes=node.notes)
    cells = published_here(matrix, [answer, resolve(matrix, node.query.replace(python=None))])
    if answer.published is None:
        message = "no published cell runs on this machine"
        raise NothingLegalError(message, fix="`envcheck resolve` says why, `envcheck images` what is published")
    best = BestCell(cells[0]) if mirror == AUTO else newest_available(matrix, cells, load_profile(mirror), answer.arch)
    click.echo(f"cell    {best.cell}: {best.why or 'the best published one for this machine'}", err=True)
    return str(best.cell)


def _from_environment() -> set[str]:
    """Return the options of this command whose value is from the environment: one for every command."""
    context = click.get_current_context()
    named = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in named.items() if source is click.core.ParameterSource.ENVIRONMENT}


def _demand_engine(request: BuildRequest) -> None:
    """Refuse what this machine's engine does not do."""
    if request.engine != "venv" and request.foreign and not request.options.dry_run:
        engines.connect(request.engine).demand_platform(request.options.platform)
    if request.engine != "venv" and request.options.prefetch:
        engines.connect(request.engine).demand_contexts()


def _destination(spec: ImageSpec, output: Path | None) -> Path:
    """Return where an environment goes: a directory of its own for each target and each set of packages on top."""
    plain = spec.target == "runtime" and not spec.on_top
    return output or state_path("venvs", str(spec.cell) if plain else f"torch{spec.tag}")


def _build(specs: Sequence[ImageSpec], profile: Profile, request: BuildRequest, settings: Settings) -> None:
    options = request.options
    with contextlib.ExitStack() as stack:
        wheels = None
        if options.prefetch:
            engine, fetch = request.engine, not options.dry_run
            prefetched = prefetched_wheels(settings, specs[0], profile, options.store, engine=engine, fetch=fetch)
            wheels = stack.enter_context(prefetched)
        if request.engine == "venv":
            _venv(specs[0], profile, wheels, request, settings)
        else:
            _images([_target(settings, spec, profile, wheels, request) for spec in specs], request, settings)


def _target(
    settings: Settings, spec: ImageSpec, profile: Profile, wheels: Path | None, request: BuildRequest
) -> TargetRequest:
    revision, epoch = build.origin()
    return TargetRequest(
        spec=spec,
        profile=profile,
        repository=request.repository,
        network=request.network,
        base=request.base,
        timeout=request.options.timeout,
        revision=revision,
        epoch=epoch,
        matrix=settings.matrix,
        wheels=wheels,
        tag=request.tag,
        tool=uv_for(spec.arch, profile) if request.foreign and not request.options.dry_run else None,
    )


def _images(targets: Sequence[TargetRequest], request: BuildRequest, settings: Settings) -> None:
    as_json, engine = request.options.as_json, engines.connect(request.engine)
    if request.options.dry_run:
        plans = [build.dry_run(engine, target) for target in targets]
        if as_json:
            _print_json(_one_or_all(plans))
        for plan in [] if as_json else plans:
            _show_plan(plan)
        return
    say, on_line = listeners(settings)
    with details():
        images = build.build(engine, targets, say=say, on_line=on_line)
    if as_json:
        _print_json(_one_or_all(images))
    for image in [] if as_json else images:
        _show_image(image, gpus=bool(targets[0].spec.cuda), quiet=settings.quiet)


def _venv(spec: ImageSpec, profile: Profile, wheels: Path | None, request: BuildRequest, settings: Settings) -> None:
    options, dest = request.options, _destination(spec, request.options.output)
    if options.dry_run:
        plan = venv.plan(spec, dest)
        if options.as_json:
            _print_json(plan)
            return
        for name, value in (("key", plan.key), ("path", plan.path), ("python", plan.python)):
            click.echo(f"{name:<7} {value}")
        for group, packages in plan.installs.items():
            click.echo(f"install {counted(packages, 'package')} of {group}.lock")
        if plan.skipped:
            click.echo("skip    this key is built there already: a build would run nothing")
        return
    say, on_line = listeners(settings)
    with details():
        built = venv.build(spec, profile, dest, timeout=options.timeout, on_line=on_line, say=say, wheels=wheels)
    if options.as_json:
        _print_json(built)
        return
    _show_built(built, built.path, quiet=settings.quiet)
    if not settings.quiet:
        click.echo(f"next    envcheck run --python {built.python}")


def _print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value)))


def _one_or_all(values: Sequence[object]) -> object:
    """Return the one value, or a list of several."""
    return values[0] if len(values) == 1 else list(values)


def _show_unlocked(
    specs: Sequence[ImageSpec], profile: Profile, request: BuildRequest, packages: Sequence[str]
) -> None:
    """Print the plan of targets of a cell that have no lock: what they install is not known yet, `packages` neither."""
    kept = kept_locks(specs[0].cell)
    lines = [f"lock    made first, through mirror profile {profile.name}; kept in {kept}"]
    lines += [f"with    {package}: locked on top once the cell's lock is made" for package in packages]
    plan = {"lock": "made first", "mirror": profile.name, "with": list(packages)}
    _show_without_key(specs, request, plan, [*lines, "key     known once the lock is made"])


def _show_without_key(
    specs: Sequence[ImageSpec], request: BuildRequest, plan: dict[str, Any], lines: Sequence[str]
) -> None:
    """Print a plan whose locks are not made yet, as JSON or as these lines below the cell's."""
    if request.options.as_json:
        first = {"schema": "envcheck/build-plan/1", "engine": request.engine, "cell": str(specs[0].cell)}
        _print_json(_one_or_all([{**first, "target": each.target, "key": None, **plan} for each in specs]))
        return
    for line in (f"cell    {specs[0].cell}", *lines):
        click.echo(line)


def _show_plan(plan: BuildPlan) -> None:
    rows = [("key", plan.key or "known once the base is here"), ("base", plan.base), ("tag", plan.tag)]
    rows += [("alias", alias) for alias in plan.aliases] + [("secret", secret) for secret in plan.secrets]
    rows += [("run", shlex.join(plan.argv))]
    rows += [("skip", "this key has an image already: a build would run nothing and tag that")] if plan.skipped else []
    for name, value in rows:
        click.echo(f"{name:<7} {value}")


def _show_image(image: BuildResult, *, gpus: bool, quiet: bool) -> None:
    """Print an image that was built, and unless `quiet` what to do with it; `gpus`: it is for some."""
    _show_built(image, image.image, quiet=quiet)
    if quiet:
        return
    click.echo(f"size    {image.bytes / 1e6:.0f} MB   id {image.id[:19]}")
    for tag in image.tags[1:]:
        click.echo(f"alias   {tag}")
    for alias, why in image.held_back.items():
        click.echo(f"stays   {alias}: {why}")
    click.echo(f"next    envcheck run --image {engines.local_name(image.engine, image.image)}")
    options = f"{engines.GPUS[image.engine]} " if gpus else ""
    click.echo(f"or      {image.engine} run --rm {options}--shm-size 8g {image.image} envcheck run")


def _show_built(built: BuildResult | venv.Environment, name: str, *, quiet: bool) -> None:
    """Print what was built: its name, and unless `quiet` what was proven of it."""
    click.echo(f"{'skipped, its key is built already' if built.skipped else 'built and proven'}: {name}")
    if quiet:
        return
    promised = {name: built.promises[name] for name in ("torch", "cuda", "cudnn", "nccl", "python")}
    click.echo(f"proof   {', '.join(f'{name} {value}' for name, value in promised.items())}")
    for used in (used for used in built.sources if used.failed):
        why = "; ".join(f"{source} failed: {reason}" for source, reason in used.failed.items())
        click.echo(f"source  {used.group}: {used.source}, since {why}")
    click.echo(f"took    {built.seconds:.1f} s")
    if built.log:
        click.echo(f"log     {built.log}")
