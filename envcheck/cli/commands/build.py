"""`envcheck build`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from envcheck.cli.shared import completion
from envcheck.cli.shared.parameter_types import FiniteRange
from envcheck.cli.shared.typed_options import takes
from envcheck.images.tags import REPOSITORY

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.images.engines import EngineName
    from envcheck.images.engines.build import BuildRequest
    from envcheck.images.spec import ImageSpec
    from envcheck.mirrors.profiles.model import Profile


class BuildOptions(NamedTuple):
    """The options of `envcheck build`."""

    selector: str | None
    mirror: str
    targets: tuple[Literal["runtime", "devel", "train", "jupyter"], ...]
    platform: Literal["auto", "linux/amd64", "linux/arm64"]
    engine: Literal["auto", "docker", "podman", "venv"]
    packages: tuple[str, ...]
    packages_file: Path | None
    gpus: tuple[str, ...]
    extensions: Path | None
    tag: str
    output: Path | None
    network: Literal["auto", "host", "default", "none"]
    base: Literal["auto", "registry", "bootstrap"]
    compression: Literal["gzip", "zstd"]
    timeout: float
    images_dir: Path | None
    prefetch: bool
    store: Path | None
    dry_run: bool
    bake: bool
    as_json: bool

    @property
    def plan_only(self) -> bool:
        """True if nothing is built: the plan is printed."""
        return self.dry_run or self.bake


@click.command("build", epilog="Example: envcheck build torch2.13.0-cpu-py311 --mirror host")
@click.argument("selector", metavar="[CELL]", required=False, shell_complete=completion.cells)
@click.option(
    "--mirror",
    default="user",
    show_default=True,
    help="user (what `mirror use` chose), none, host, a preset, a profile's YAML file, or auto: the best by a probe.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=["runtime"],
    show_default=True,
    type=click.Choice(["runtime", "devel", "train", "jupyter"]),
    help="What the image holds besides torch: compilers, a training stack, or JupyterLab. Repeatable.",
)
@click.option(
    "--platform",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "linux/amd64", "linux/arm64"]),
    help="auto: this machine's. Another one needs an engine with emulation (QEMU), and takes minutes to hours.",
)
@click.option(
    "--engine",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "docker", "podman", "venv"]),
    help="auto: docker if one answers, else podman, else venv.",
)
@click.option(
    "--with",
    "packages",
    multiple=True,
    metavar="NAME[SPEC]",
    help="A package of your own on top, e.g. 'einops>=0.8'. Repeatable.",
)
@click.option(
    "--with-file",
    "packages_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A requirements.txt of packages on top.",
)
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="NAME",
    help="GPU model that an extension of --with must fit, or is compiled for; again for several.",
)
@click.option(
    "--extensions",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A site's own facts about extensions, beside those shipped.",
)
@click.option(
    "-t",
    "--tag",
    default=REPOSITORY,
    show_default=True,
    metavar="REPOSITORY[:TAG]",
    help="Image name. Without TAG, the tag names torch, CUDA, Python and target.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where the venv engine puts the environment.")
@click.option(
    "--network",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "host", "default", "none"]),
    help="The build's network. auto: none if no file must be downloaded, else host.",
)
@click.option(
    "--base",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "registry", "bootstrap"]),
    help="Source of the base image. auto: bootstrap it if no registry has it.",
)
@click.option(
    "--compression",
    default="gzip",
    show_default=True,
    type=click.Choice(["gzip", "zstd"]),
    help="Of the layers. zstd builds and pulls faster and is smaller; docker before 23 cannot pull it.",
)
@click.option("--timeout", default=7200.0, show_default=True, type=FiniteRange(min=1), help="Seconds.")
@click.option(
    "--images",
    "images_dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the locks are. [images/]",
)
@click.option("--prefetch", is_flag=True, help="Fetch all into the store first, then build without any network.")
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="Store for --prefetch, and for wheels that --with compiles. [$XDG_DATA_HOME/envcheck/store]",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and stop. An engine that you name must answer.")
@click.option("--bake", is_flag=True, help="Print the plan as bake JSON and stop (docker only).")
@click.option("--json", "as_json", is_flag=True, help="Print the result, or with --dry-run the plan, as JSON.")
@click.pass_obj
@takes(BuildOptions)
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
    from envcheck.cli.build.cell_to_build import (
        destination,
        locked_specs,
        refuse_ignored,
        refuse_network,
        refuse_several,
        refuse_without_lock,
        spec_to_build,
    )
    from envcheck.cli.build.extension_wheels import RequirementOptions, with_requirements
    from envcheck.cli.build.printed import show_unlocked
    from envcheck.cli.shared.platforms import architecture
    from envcheck.cli.sources.best_cell import cell_for_this_machine
    from envcheck.cli.sources.mirror_selection import profile_for
    from envcheck.cli.sources.packages_on_top import requested_packages
    from envcheck.images.engines import venv
    from envcheck.images.tags import parse

    parse(options.tag)  # a wrong one is refused before anything runs
    selector = options.selector or cell_for_this_machine(settings, options.mirror)
    targets, arch = dict.fromkeys(options.targets), architecture(options.platform)
    specs = [spec_to_build(settings, selector, name, options.images_dir, arch) for name in targets]
    refuse_several(options)
    options = options._replace(engine=_engine(options))
    refuse_ignored(options, options.engine)
    if options.prefetch:
        refuse_network(options.network, options.base, options.engine)
        options = options._replace(network="none", base="bootstrap")
    requirements = requested_packages(options.packages, options.packages_file)
    for spec in specs:
        refuse_without_lock(spec, options.mirror, bake=options.bake)
    profile = profile_for(settings, options.mirror, [lock for spec in specs for lock in spec.locks])
    if options.dry_run and (unlocked := [spec for spec in specs if spec.lacks_lock]):
        if options.engine == "venv":
            venv.plan(unlocked[0], destination(unlocked[0], options.output))  # what it would refuse is refused here too
        show_unlocked(unlocked, profile, engine=options.engine, packages=requirements, as_json=options.as_json)
        return
    specs = locked_specs(settings, specs, profile, options.images_dir)
    if not requirements:
        _build(specs, profile, options, settings)
        return
    how = RequirementOptions(*(getattr(options, name) for name in RequirementOptions._fields))
    with with_requirements(settings, specs[0], requirements, profile, how) as spec_and_profile:
        if spec_and_profile is not None:
            _build([spec_and_profile.spec], spec_and_profile.profile, options, settings)


def _build(specs: Sequence[ImageSpec], profile: Profile, options: BuildOptions, settings: Settings) -> None:
    from envcheck.cli.store.common import prefetched_wheels

    with contextlib.ExitStack() as stack:
        wheels = None
        if options.prefetch:
            engine, fetch = options.engine, not options.plan_only
            prefetched = prefetched_wheels(settings, specs[0], profile, options.store, engine=engine, fetch=fetch)
            wheels = stack.enter_context(prefetched)
        if options.engine == "venv":
            _venv(specs[0], profile, wheels, options, settings)
        else:
            _images([_request(settings, spec, profile, wheels, options) for spec in specs], options, settings)


def _engine(options: BuildOptions) -> EngineName:
    from envcheck.cli.shared.platforms import architecture, refuse_platform, refuse_without_engine
    from envcheck.errors import ConfigError, UnavailableError
    from envcheck.images import engines

    try:
        engine = engines.find(options.engine)
    except UnavailableError as error:
        if not options.plan_only:
            raise
        message = f"{error.message}; a plan needs the engine's list of images"
        raise UnavailableError(message, fix=error.fix) from error
    tag = options.tag if options.tag != REPOSITORY else None
    if engine == "venv" and options.engine == "auto":
        refuse_without_engine(options.targets, options.platform, tag, bake=options.bake)
    if tag is not None and engine == "venv":
        message = "--tag names an image, but --engine is venv"
        raise ConfigError(message, fix="leave --tag out: --output says where a venv goes")
    if options.output is not None and engine != "venv":
        message = f"--output is for the venv engine, and the engine is {engine}"
        raise ConfigError(message, fix="give --engine venv, or --tag to name the image")
    if architecture(options.platform) != architecture("auto"):
        refuse_platform(options.platform, engine, prefetch=options.prefetch, base=options.base)
        if not options.plan_only:
            engines.connect(engine).demand_platform(options.platform)
    if options.compression != "gzip" and (engine == "venv" or options.bake):
        message = f"--compression {options.compression} is for images that are built here"
        raise ConfigError(message, fix="leave --compression out")
    if options.bake and engine != "docker":
        message = f"--bake is for docker's buildx, and the engine is {engine}"
        raise ConfigError(message, fix="give --engine docker, or --dry-run --json for this engine's plan")
    return engine


def _request(
    settings: Settings, spec: ImageSpec, profile: Profile, wheels: Path | None, options: BuildOptions
) -> BuildRequest:
    from envcheck.cli.shared.platforms import architecture
    from envcheck.images.engines import build
    from envcheck.images.lock_on_top import uv_for
    from envcheck.images.tags import parse

    repository, tag = parse(options.tag)
    foreign = spec.arch != architecture("auto")
    revision, epoch = build.origin()
    return build.BuildRequest(
        spec=spec,
        profile=profile,
        repository=repository,
        network=None if options.network == "auto" else options.network,
        base="bootstrap" if foreign else options.base,
        timeout=options.timeout,
        revision=revision,
        epoch=epoch,
        matrix=settings.matrix,
        wheels=wheels,
        tag=tag,
        compression=options.compression,
        tool=uv_for(spec.arch, profile) if foreign and not options.plan_only else None,
    )


def _images(requests: Sequence[BuildRequest], options: BuildOptions, settings: Settings) -> None:
    from envcheck.cli.build.printed import as_program, show_images, show_plans
    from envcheck.cli.shared.build_progress import details, listeners
    from envcheck.images import engines, plan
    from envcheck.images.engines import build

    if options.plan_only:
        plans = [build.dry_run(engines.connect(options.engine), request) for request in requests]
        if options.bake:
            as_program(plan.bake(*plans))
        else:
            show_plans(plans, as_json=options.as_json)
        return
    with listeners(settings) as (say, on_line), details():
        images = build.build(engines.connect(options.engine), requests, say=say, on_line=on_line)
    gpus = bool(requests[0].spec.cuda)
    show_images(images, gpus=gpus, quiet=settings.quiet, as_json=options.as_json)


def _venv(spec: ImageSpec, profile: Profile, wheels: Path | None, options: BuildOptions, settings: Settings) -> None:
    from envcheck.cli.build.cell_to_build import destination
    from envcheck.cli.build.printed import show_built, show_environment_plan
    from envcheck.cli.shared.build_progress import details, listeners
    from envcheck.images.engines import venv

    dest = destination(spec, options.output)
    if options.dry_run:
        show_environment_plan(venv.plan(spec, dest), as_json=options.as_json)
        return
    with listeners(settings) as (say, on_line), details():
        built = venv.build(spec, profile, dest, timeout=options.timeout, on_line=on_line, say=say, wheels=wheels)
    show_built(built, built.path, quiet=settings.quiet, as_json=options.as_json)
    if not options.as_json and not settings.quiet:
        click.echo(f"next    envcheck run --python {built.python}")
