"""`envcheck build`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import click

from envcheck.cli import Settings
from envcheck.cli.build.cell_to_build import destination, locked_specs, refuse_without_lock, spec_to_build
from envcheck.cli.build.extension_wheels import with_requirements
from envcheck.cli.build.printed import (
    details,
    listeners,
    show_built,
    show_environment_plan,
    show_images,
    show_plans,
    show_unlocked,
)
from envcheck.cli.build.request import BuildOptions, BuildRequest
from envcheck.cli.options import architecture, command_with
from envcheck.cli.sources.downloads import profile_for
from envcheck.cli.sources.on_top import requested_packages
from envcheck.cli.sources.store import prefetched_wheels
from envcheck.cli.sources.this_machine import cell_for_this_machine
from envcheck.images import engines
from envcheck.images.engines import build, venv
from envcheck.images.engines.build import TargetRequest
from envcheck.images.lock_on_top import uv_for
from envcheck.images.spec import ImageSpec
from envcheck.images.tags import parse
from envcheck.mirrors.profiles.model import Profile


@command_with(BuildOptions, epilog="Example: envcheck build torch2.13.0-cpu-py311 --mirror host")
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
    selector, arch = options.selector or cell_for_this_machine(settings, options.mirror), architecture(options.platform)
    targets = dict.fromkeys(options.targets)
    specs = [spec_to_build(settings, selector, target, options.images_dir, arch) for target in targets]
    request = BuildRequest.from_options(options, engines.find, _from_environment())
    _demand_engine(request)
    requirements = requested_packages(options.packages, options.packages_file)
    for spec in specs:
        refuse_without_lock(spec, options.mirror)
    profile = profile_for(settings, options.mirror, [lock for spec in specs for lock in spec.locks])
    if options.dry_run and (unlocked := [spec for spec in specs if spec.lacks_lock]):
        if request.engine == "venv":
            venv.plan(unlocked[0], destination(unlocked[0], options.output))  # what it would refuse is refused here too
        show_unlocked(unlocked, profile, request, requirements)
        return
    specs = locked_specs(settings, specs, profile, options.images_dir)
    if not requirements:
        _build(specs, profile, request, settings)
        return
    with with_requirements(settings, specs[0], requirements, profile, request) as spec_and_profile:
        if spec_and_profile is not None:
            _build([spec_and_profile.spec], spec_and_profile.profile, request, settings)


def _from_environment() -> set[str]:
    """Return the options of this command whose value is from the environment: one for every command."""
    context = click.get_current_context()
    named = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in named.items() if source is click.core.ParameterSource.ENVIRONMENT}


def _demand_engine(request: BuildRequest) -> None:
    """Refuse what this machine's engine does not do."""
    options = request.options
    if request.engine == "venv":
        return
    if request.foreign and not options.dry_run:
        engines.connect(request.engine).demand_platform(options.platform)
    if options.prefetch:
        engines.connect(request.engine).demand_contexts()


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
    options = request.options
    revision, epoch = build.origin()
    return TargetRequest(
        spec=spec,
        profile=profile,
        repository=request.repository,
        network=request.network,
        base=request.base,
        timeout=options.timeout,
        revision=revision,
        epoch=epoch,
        matrix=settings.matrix,
        wheels=wheels,
        tag=request.tag,
        tool=uv_for(spec.arch, profile) if request.foreign and not options.dry_run else None,
    )


def _images(targets: Sequence[TargetRequest], request: BuildRequest, settings: Settings) -> None:
    options = request.options
    if options.dry_run:
        plans = [build.dry_run(engines.connect(request.engine), target) for target in targets]
        show_plans(plans, as_json=options.as_json)
        return
    with listeners(settings) as (say, on_line), details():
        images = build.build(engines.connect(request.engine), targets, say=say, on_line=on_line)
    show_images(images, gpus=bool(targets[0].spec.cuda), quiet=settings.quiet, as_json=options.as_json)


def _venv(spec: ImageSpec, profile: Profile, wheels: Path | None, request: BuildRequest, settings: Settings) -> None:
    options = request.options
    dest = destination(spec, options.output)
    if options.dry_run:
        show_environment_plan(venv.plan(spec, dest), as_json=options.as_json)
        return
    with listeners(settings) as (say, on_line), details():
        built = venv.build(spec, profile, dest, timeout=options.timeout, on_line=on_line, say=say, wheels=wheels)
    show_built(built, built.path, quiet=settings.quiet, as_json=options.as_json)
    if not options.as_json and not settings.quiet:
        click.echo(f"next    envcheck run --python {built.python}")
