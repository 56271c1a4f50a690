"""What `envcheck build` is to do: its options, and the request that they become once nothing contradicts."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envcheck.cli import Settings
from envcheck.cli.options import (
    EXISTING_FILE,
    FILE,
    Argument,
    FiniteRange,
    ImagesDirectory,
    Option,
    Options,
    architecture,
    complete_cells,
)
from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.images.engines import EngineName
from envcheck.images.engines.build import BasePolicy
from envcheck.images.lock_on_top import checked, read_requirements
from envcheck.images.plan import Network
from envcheck.images.tags import REPOSITORY, parse
from envcheck.images.wheels import SHA256
from envcheck.matrix.facts.model import HostArch, Target


class BuildOptions(Options):
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
        ),
    ] = ("runtime",)
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
    tag: Annotated[
        str,
        Option(
            "-t",
            "--tag",
            "Image name. Without TAG, the tag names torch, CUDA, Python and target.",
            metavar="REPOSITORY[:TAG]",
        ),
    ] = REPOSITORY
    push: Annotated[
        str | None,
        Option("Push the proven image to this repository, and print its digest there.", metavar="REPOSITORY"),
    ] = None
    output: Annotated[Path | None, Option("-o", "--output", "Where the venv engine puts the environment.")] = None
    dry_run: Annotated[bool, Option("Print the plan and stop. An engine that you name must answer.")] = False
    as_json: Annotated[bool, Option("--json", "Print the result, or with --dry-run the plan, as JSON.")] = False
    platform: Annotated[
        Literal["auto", "linux/amd64", "linux/arm64"],
        Option("auto: this machine's. Another one needs an engine with emulation (QEMU), and takes minutes to hours."),
    ] = "auto"
    gpus: Annotated[
        tuple[str, ...],
        Option(
            "--gpu",
            "GPU model that an extension of --with must fit, or is compiled for; again for several.",
            metavar="NAME",
        ),
    ] = ()
    extensions: Annotated[
        Path | None, Option("A site's own facts about extensions, beside those shipped.", type=FILE, metavar="FILE")
    ] = None
    sha256: Annotated[
        tuple[str, ...],
        Option("The hash of the wheel that a project itself serves for NAME of --with.", metavar="NAME=HASH"),
    ] = ()
    network: Annotated[
        Literal["auto", "host", "default", "none"],
        Option("The build's network. auto: none if no file must be downloaded, else host."),
    ] = "auto"
    base: Annotated[
        Literal["auto", "registry", "bootstrap"],
        Option("Source of the base image. auto: bootstrap it if no registry has it."),
    ] = "auto"
    timeout: Annotated[float, Option("Seconds.", type=FiniteRange(min=1))] = 7200.0
    images_dir: ImagesDirectory = None
    prefetch: Annotated[bool, Option("Fetch all into the store first, then build without any network.")] = False
    store: Annotated[
        Path | None,
        Option("Store for --prefetch, and for wheels that --with compiles. [$XDG_DATA_HOME/envcheck/store]"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """A build that contradicts itself nowhere: its options, and what they come to.

    `foreign` tells that the image is not for this machine. `tag` is its only tag. `network` None leaves it to the
    context. `requirements` are the user's packages on top, `hashes` the sha256 of wheels by the package's name.
    """

    options: BuildOptions
    settings: Settings
    targets: list[Target]
    requirements: list[str]
    hashes: dict[str, str]
    arch: HostArch
    foreign: bool
    engine: EngineName
    repository: str
    tag: str | None
    network: Network | None
    base: BasePolicy

    @classmethod
    def from_options(
        cls,
        options: BuildOptions,
        settings: Settings,
        find_engine: Callable[[str], EngineName],
        from_environment: Collection[str] = (),
        machine: HostArch | None = None,
    ) -> "BuildRequest":
        """Return the request. Raises ConfigError or UnavailableError for options that contradict each other.

        `find_engine` returns the engine that a name stands for. Options `from_environment` hold for every command, so
        that one that this build does not read is no mistake. `machine` is this machine's architecture.
        """
        repository, tag = parse(options.tag)
        named = options.push is not None and parse(options.push)[1] is not None
        _refuse([(named, f"--push takes a repository, and {options.push} ends in a tag", "give the tag by --tag")])
        requirements = [*checked(options.packages)]
        requirements += read_requirements(options.packages_file) if options.packages_file else []
        arch, here = architecture(options.platform), machine or architecture("auto")
        foreign = options.platform != "auto" and arch != here
        _refuse(_of_several(options, tag))
        engine = _engine(options, find_engine, foreign=foreign)
        _refuse(_for_engine(options, engine, from_environment, foreign=foreign))
        return cls(
            options=options,
            settings=settings,
            targets=[*dict.fromkeys(options.targets)],
            requirements=requirements,
            hashes=_hashes(options.sha256, requirements),
            arch=arch,
            foreign=foreign,
            engine=engine,
            repository=repository,
            tag=tag,
            network="none" if options.prefetch else None if options.network == "auto" else options.network,
            base="bootstrap" if options.prefetch or foreign else options.base,
        )


def _hashes(given: Sequence[str], requirements: Sequence[str]) -> dict[str, str]:
    names = {canonicalize_name(Requirement(line).name) for line in requirements}
    hashes: dict[str, str] = {}
    for text in given:
        name, _, digest = text.partition("=")
        name, digest = canonicalize_name(name), digest.removeprefix("sha256:").lower()
        if not SHA256.fullmatch(digest):
            refuse(f"--sha256 {text[:90]!r} is not NAME=HASH with 64 hex digits", "write flash-attn=0f3e...")
        if name not in names:
            refuse(f"--sha256 {name}: no --with names it", "add --with, or leave it out")
        hashes[name] = digest
    return hashes


# What does not go together: whether it is so, what is wrong, and what to do.
_Refusals = list[tuple[bool, str, str]]


def _refuse(refusals: _Refusals) -> None:
    for applies, message, fix in refusals:
        if applies:
            raise ConfigError(message, fix=fix)


def _of_several(options: BuildOptions, tag: str | None) -> _Refusals:
    """Return what several targets cannot share; which engine --engine auto comes to is seen later."""
    reasons = {
        "an environment is of one target, and the engine is venv": options.engine == "venv",
        "packages on top are locked for one target": bool(options.packages or options.packages_file),
        "without a network each target has a base of its own": options.prefetch or options.network == "none",
        "one TAG names one image": tag is not None,
    }
    several, fix = len(set(options.targets)) > 1, "give one --target at a time"
    return [(several and given, f"several --target: {why}", fix) for why, given in reasons.items()]


def _engine(options: BuildOptions, find_engine: Callable[[str], EngineName], *, foreign: bool) -> EngineName:
    """Return the engine; where neither docker nor podman answers, refuse what only they build."""
    try:
        engine = find_engine(options.engine)
    except UnavailableError as error:
        if not options.dry_run:
            raise
        refuse(f"{error.message}; a plan needs the engine's list of images", error.fix, UnavailableError)
    needs = {
        f"--platform {options.platform}": foreign,
        "several --target": len(set(options.targets)) > 1,
        f"--tag {options.tag}": options.tag != REPOSITORY,
        f"--push {options.push}": options.push is not None,
    }
    option = next((name for name, given in needs.items() if given), None)
    if engine == "venv" and options.engine == "auto" and option:
        refuse(f"{option}: only docker and podman build this, and neither answers", "start one", UnavailableError)
    return engine


def _for_engine(
    options: BuildOptions, engine: EngineName, from_environment: Collection[str], *, foreign: bool
) -> _Refusals:
    """Return what this build would not read, or cannot do; wheels of extensions are kept in the store, too."""
    is_venv, alone = engine == "venv", not (options.packages or options.packages_file)
    offline = options.network == "none" and not options.prefetch and "network" not in from_environment
    stored = options.store is not None and not options.prefetch and "store" not in from_environment
    why = "is for the packages of --with, and there are none"
    no_image, no_venv = f"--network {options.network} is for builds of images", f"and the engine is {engine}"
    offline_fix = "leave --network out; --prefetch builds an environment without a network"
    named = (options.tag != REPOSITORY and is_venv, "--tag names an image, but --engine is venv")
    sent = (options.push is not None and is_venv, f"--push sends an image, {no_venv}")
    out = (options.output is not None and not is_venv, f"--output is for venv, {no_venv}")
    there, carried = f"--platform {options.platform}:", "--prefetch builds without a network, but"
    fix, registry = "leave that out, or build on a machine of that platform", options.base == "registry"
    venv = "an environment runs on this machine, and the engine is venv"
    wheels = "--prefetch collects the files of this machine's platform"
    online = options.prefetch and options.network in {"host", "default"}
    base_fix = "leave --base out: the base is then bootstrapped before the build"
    return [
        (*named, "leave --tag out: --output says where a venv goes"),
        (*sent, "leave --push out, or give --engine docker"),
        (*out, "give --engine venv, or --tag to name the image"),
        (alone and bool(options.gpus), f"--gpu {why}", "add --with, or leave --gpu out"),
        (alone and bool(options.extensions), f"--extensions {why}", "add --with, or leave --extensions out"),
        (alone and stored, "--store is for --prefetch and --with", "add --prefetch, or leave --store out"),
        (is_venv and offline, f"{no_image}, {no_venv}", offline_fix),
        (foreign and is_venv, f"{there} {venv}", fix),
        (foreign and options.prefetch, f"{there} {wheels}", fix),
        (foreign and registry, f"{there} its base is bootstrapped, but --base is registry", fix),
        (online, f"{carried} --network is {options.network}", "leave one of them out"),
        (options.prefetch and registry, f"{carried} --base registry installs packages over one", base_fix),
    ]
