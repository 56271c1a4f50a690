"""What `envcheck build` is to do: its options, and the request that they become once nothing contradicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click

from envcheck.cli.options import EXISTING_DIRECTORY, EXISTING_FILE, FILE, Argument, Option
from envcheck.cli.shared.parameter_types import FiniteRange, architecture, complete_cells
from envcheck.errors import ConfigError, UnavailableError
from envcheck.images.engines import Compression, EngineName
from envcheck.images.engines.build import BasePolicy
from envcheck.images.plan import Network
from envcheck.images.tags import REPOSITORY, parse
from envcheck.matrix.facts.model import HostArch, Target


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    selector: Annotated[str | None, Argument(metavar="[CELL]", shell_complete=complete_cells)] = None
    mirror: Annotated[
        str,
        Option(
            "user (what `mirror use` chose), none, host, a preset, a profile's YAML file, or auto: the best by a probe."
        ),
    ] = "user"
    targets: Annotated[
        tuple[Target, ...],
        Option(
            "--target",
            "What the image holds besides torch: compilers, a training stack, or JupyterLab. Repeatable.",
            type=click.Choice(["runtime", "devel", "train", "jupyter"]),
        ),
    ] = ("runtime",)
    platform: Annotated[
        Literal["auto", "linux/amd64", "linux/arm64"],
        Option(
            "auto: this machine's. Another one needs an engine with emulation (QEMU), and takes minutes to hours.",
            advanced=True,
        ),
    ] = "auto"
    engine: Annotated[
        Literal["auto", "docker", "podman", "venv"], Option("auto: docker if one answers, else podman, else venv.")
    ] = "auto"
    packages: Annotated[
        tuple[str, ...],
        Option("--with", "A package of your own on top, e.g. 'einops>=0.8'. Repeatable.", metavar="NAME[SPEC]"),
    ] = ()
    packages_file: Annotated[
        Path | None, Option("--with-file", "A requirements.txt of packages on top.", type=EXISTING_FILE)
    ] = None
    gpus: Annotated[
        tuple[str, ...],
        Option(
            "--gpu",
            "GPU model that an extension of --with must fit, or is compiled for; again for several.",
            metavar="NAME",
            advanced=True,
        ),
    ] = ()
    extensions: Annotated[
        Path | None,
        Option("A site's own facts about extensions, beside those shipped.", type=FILE, metavar="FILE", advanced=True),
    ] = None
    tag: Annotated[
        str,
        Option(
            "-t",
            "--tag",
            "Image name. Without TAG, the tag names torch, CUDA, Python and target.",
            metavar="REPOSITORY[:TAG]",
        ),
    ] = REPOSITORY
    output: Annotated[Path | None, Option("-o", "--output", "Where the venv engine puts the environment.")] = None
    network: Annotated[
        Literal["auto", "host", "default", "none"],
        Option("The build's network. auto: none if no file must be downloaded, else host.", advanced=True),
    ] = "auto"
    base: Annotated[
        Literal["auto", "registry", "bootstrap"],
        Option("Source of the base image. auto: bootstrap it if no registry has it.", advanced=True),
    ] = "auto"
    compression: Annotated[
        Literal["gzip", "zstd"],
        Option(
            "Of the layers. zstd builds and pulls faster and is smaller; docker before 23 cannot pull it.",
            advanced=True,
        ),
    ] = "gzip"
    timeout: Annotated[float, Option("Seconds.", type=FiniteRange(min=1), advanced=True)] = 7200.0
    images_dir: Annotated[
        Path | None, Option("--images", "Where the locks are. [images/]", type=EXISTING_DIRECTORY, advanced=True)
    ] = None
    prefetch: Annotated[
        bool, Option("Fetch all into the store first, then build without any network.", advanced=True)
    ] = False
    store: Annotated[
        Path | None,
        Option(
            "Store for --prefetch, and for wheels that --with compiles. [$XDG_DATA_HOME/envcheck/store]", advanced=True
        ),
    ] = None
    dry_run: Annotated[bool, Option("Print the plan and stop. An engine that you name must answer.")] = False
    as_json: Annotated[bool, Option("--json", "Print the result, or with --dry-run the plan, as JSON.")] = False

    @property
    def on_top(self) -> bool:
        """True if there are packages of the user's own."""
        return bool(self.packages or self.packages_file)


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """A build that contradicts itself nowhere.

    `arch` is what the image is for, `foreign` tells that it is not this machine's. `tag` is the only tag of the image.
    `network` None leaves it to the context. `timeout` is in seconds.
    """

    selector: str | None
    mirror: str
    targets: tuple[Target, ...]
    platform: str
    arch: HostArch
    foreign: bool
    engine: EngineName
    packages: tuple[str, ...]
    packages_file: Path | None
    gpus: tuple[str, ...]
    extensions: Path | None
    repository: str
    tag: str | None
    output: Path | None
    network: Network | None
    base: BasePolicy
    compression: Compression
    timeout: float
    images_dir: Path | None
    prefetch: bool
    store: Path | None
    dry_run: bool
    as_json: bool

    @classmethod
    def from_options(
        cls,
        options: BuildOptions,
        find_engine: Callable[[str], EngineName],
        from_environment: Collection[str] = (),
        machine: HostArch | None = None,
    ) -> BuildRequest:
        """Return the request. Raises ConfigError or UnavailableError for options that contradict each other.

        `find_engine` returns the engine that a name stands for. Options `from_environment` hold for every command, so
        that one that this build does not read is no mistake. `machine` is this machine's architecture.
        """
        repository, tag = parse(options.tag)
        arch, here = architecture(options.platform), machine or architecture("auto")
        foreign = arch != (here if options.platform != "auto" else arch)
        _refuse(_of_several(options, tag), "give one --target at a time", "several --target: {}")
        engine = _engine(options, find_engine, foreign=foreign)
        _refuse_for_engine(options, engine)
        if foreign:
            _refuse_platform(options, engine)
        _refuse_ignored(options, engine, from_environment)
        if options.prefetch:
            _refuse_network(options)
        network: Network | None = None if options.network == "auto" else options.network
        taken = {field.name for field in dataclasses.fields(cls)} & set(vars(options))
        return cls(
            **{
                **{name: getattr(options, name) for name in taken},
                "targets": tuple(dict.fromkeys(options.targets)),
                "arch": arch,
                "foreign": foreign,
                "engine": engine,
                "repository": repository,
                "tag": tag,
                "network": "none" if options.prefetch else network,
                "base": "bootstrap" if options.prefetch or foreign else options.base,
            }
        )


def _refuse(reasons: Mapping[str, bool], fix: str, form: str) -> None:
    """Raise ConfigError for the first reason that applies."""
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if reason is not None:
        raise ConfigError(form.format(reason), fix=fix)


def _of_several(options: BuildOptions, tag: str | None) -> dict[str, bool]:
    """Return what several targets cannot share; which engine --engine auto comes to is seen later."""
    several = len(set(options.targets)) > 1
    return {
        "an environment is of one target, and the engine is venv": several and options.engine == "venv",
        "packages on top are locked for one target": several and options.on_top,
        "without a network each target has a base of its own": several
        and (options.prefetch or options.network == "none"),
        "one TAG names one image": several and tag is not None,
    }


def _engine(options: BuildOptions, find_engine: Callable[[str], EngineName], *, foreign: bool) -> EngineName:
    """Return the engine; where neither docker nor podman answers, refuse what only they build."""
    try:
        engine = find_engine(options.engine)
    except UnavailableError as error:
        if not options.dry_run:
            raise
        message = f"{error.message}; a plan needs the engine's list of images"
        raise UnavailableError(message, fix=error.fix) from error
    needs = {
        f"--platform {options.platform}": foreign,
        "several --target": len(set(options.targets)) > 1,
        f"--tag {options.tag}": options.tag != REPOSITORY,
    }
    option = next((option for option, given in needs.items() if given), None)
    if engine == "venv" and options.engine == "auto" and option:
        message = f"{option}: only docker and podman build this, and neither answers"
        raise UnavailableError(message, fix="start docker or podman")
    return engine


def _refuse_for_engine(options: BuildOptions, engine: EngineName) -> None:
    if options.tag != REPOSITORY and engine == "venv":
        message = "--tag names an image, but --engine is venv"
        raise ConfigError(message, fix="leave --tag out: --output says where a venv goes")
    if options.output is not None and engine != "venv":
        message = f"--output is for the venv engine, and the engine is {engine}"
        raise ConfigError(message, fix="give --engine venv, or --tag to name the image")
    if options.compression != "gzip" and engine == "venv":
        message = f"--compression {options.compression} is for images that are built here"
        raise ConfigError(message, fix="leave --compression out")


def _refuse_platform(options: BuildOptions, engine: EngineName) -> None:
    reasons = {
        "an environment runs on this machine, and the engine is venv": engine == "venv",
        "--prefetch collects the files of this machine's platform": options.prefetch,
        "its base is bootstrapped, but --base is registry": options.base == "registry",
    }
    fix = "leave that out, or build on a machine of that platform"
    _refuse(reasons, fix, f"--platform {options.platform}: {{}}")


def _refuse_ignored(options: BuildOptions, engine: EngineName, from_environment: Collection[str]) -> None:
    """Refuse an option that this build would not read."""
    if not options.on_top:
        for name, given in (("--gpu", options.gpus), ("--extensions", options.extensions)):
            _refuse(
                {name: bool(given)},
                f"add --with, or leave {name} out",
                "{} is for the packages of --with, and there are none",
            )
    # The wheels of extensions that --with compiles or fetches are kept in the store, too.
    unread = options.store is not None and not (options.prefetch or options.on_top)
    if unread and "store" not in from_environment:
        message = "--store is for --prefetch and --with"
        raise ConfigError(message, fix="add --prefetch, or leave --store out")
    offline = options.network == "none" and not options.prefetch and "network" not in from_environment
    if engine == "venv" and offline:
        message = f"--network {options.network} is for builds of images, and the engine is venv"
        raise ConfigError(message, fix="leave --network out; --prefetch builds an environment without a network")


def _refuse_network(options: BuildOptions) -> None:
    """Refuse what asks for a network beside --prefetch; a base from a registry would, to install what it lacks."""
    if options.network in {"host", "default"}:
        message = f"--prefetch builds without a network, but --network is {options.network}"
        raise ConfigError(message, fix="leave one of them out")
    if options.base == "registry":
        message = "--prefetch builds without a network, but --base registry installs packages over one"
        raise ConfigError(message, fix="leave --base out: the base is then bootstrapped before the build")
