"""`envcheck build`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from envcheck.cli import _complete
from envcheck.images.tags import REPOSITORY

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.images.engines.build import Built, Wish
    from envcheck.images.engines.venv import Environment, EnvironmentPlan
    from envcheck.images.spec import ImageSpec
    from envcheck.mirrors.profile import Profile


class Choice(NamedTuple):
    """The options, as given."""

    engine: str
    repository: str
    dest: Path | None
    network: str
    base: str
    timeout: float
    wheels: Path | None = None


@click.command("build", epilog="Example: envcheck build torch2.13.0-cpu-py311 --mirror host")
@click.argument("selector", shell_complete=_complete.cells)
@click.option(
    "--mirror",
    default="user",
    show_default=True,
    help="user (what `mirror use` chose), none, host, a preset, a profile's YAML file, or auto: the best by a probe.",
)
@click.option("--target", default="runtime", show_default=True, type=click.Choice(["runtime"]))
@click.option(
    "--engine",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "docker", "podman", "venv"]),
    help="auto: docker if one answers, else podman, else venv.",
)
@click.option("--tag", "repository", default=REPOSITORY, show_default=True, metavar="REPO", help="Image name.")
@click.option("--dest", type=click.Path(path_type=Path), help="Where the venv engine puts the environment.")
@click.option(
    "--network",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "host", "default", "none"]),
    help="The build's network. auto: none if all files are at hand, else host.",
)
@click.option(
    "--base",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "registry", "bootstrap"]),
    help="Where the base is from. auto: bootstrapped where no registry has it.",
)
@click.option("--timeout", default=7200.0, show_default=True, type=click.FloatRange(min=1), help="Seconds.")
@click.option(
    "--images",
    "images_dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the locks are. [images/]",
)
@click.option("--prefetch", is_flag=True, help="Fetch all into the store first, then build without any network.")
@click.option(
    "--store", type=click.Path(path_type=Path), help="The store of --prefetch. [$XDG_DATA_HOME/envcheck/store]"
)
@click.option("--dry-run", is_flag=True, help="Print the plan and stop. A named engine must answer: it is asked.")
@click.option("--bake", is_flag=True, help="Print the plan as bake JSON and stop (docker only).")
@click.option("--json", "as_json", is_flag=True, help="Print the result, or with --dry-run the plan, as JSON.")
@click.pass_obj
def command(  # noqa: PLR0913 (one argument an option)
    settings: Settings,
    *,
    selector: str,
    mirror: str,
    target: str,
    engine: str,
    repository: str,
    dest: Path | None,
    network: str,
    base: str,
    timeout: float,
    images_dir: Path | None,
    prefetch: bool,
    store: Path | None,
    dry_run: bool,
    bake: bool,
    as_json: bool,
) -> None:
    """Build a cell and prove that it is what its tag says.

    Versions are asserted inside the build, before a layer exists; the labels are read back before a tag is given.
    A cell whose key has an image already is not built again. With --prefetch the build itself has no network: its
    files come from the store, where they were brought through the mirror and held against their hashes; docker needs
    buildx for it, podman 4.2. A mirror that fails while building is named with why, and the next one is tried. With
    `envcheck --verbose` the build's own output is shown, with `--quiet` only the result.

    Exit 0: built, or built already; 1: the build failed, or is not what it promises; 2: wrong usage; 3: an engine, a
    Python or an index that is needed is not there.
    """
    from envcheck.cli._probing import profile_for
    from envcheck.cli._store import prefetched

    choice = Choice(_engine(engine, dry=dry_run or bake, bake=bake), repository, dest, network, base, timeout)
    spec = _spec(settings, selector, target, images_dir)
    if prefetch:
        choice = _without_network(choice)
    profile = profile_for(settings, mirror, spec.locks)
    with contextlib.ExitStack() as stack:
        if prefetch:
            view = prefetched(settings, spec, profile, store, engine=choice.engine, fetch=not (dry_run or bake))
            choice = choice._replace(wheels=stack.enter_context(view))
        if choice.engine == "venv":
            _venv(spec, profile, choice, settings, as_json=as_json, dry=dry_run)
            return
        wish = _wish(settings, spec, profile, choice)
        if dry_run or bake:
            _plan(wish, choice.engine, bake=bake, as_json=as_json)
            return
        _image(wish, choice.engine, settings, as_json=as_json)


def _without_network(choice: Choice) -> Choice:
    """Refuse what asks for a network; a base from a registry would, to install what it lacks."""
    from envcheck.errors import ConfigError
    from envcheck.images import engines

    if choice.network in {"host", "default"}:
        message = f"--prefetch builds without any network, and --network is {choice.network}"
        raise ConfigError(message, fix="leave one of them out")
    if choice.base == "registry":
        message = "--prefetch builds without any network, and a registry's base has packages installed over one"
        raise ConfigError(message, fix="leave --base out: it is bootstrapped with all it needs before the build")
    if choice.engine != "venv":
        engines.connect(choice.engine).demand_contexts()
    return choice._replace(network="none", base="bootstrap")


def _engine(name: str, *, dry: bool, bake: bool) -> str:
    from envcheck.errors import ConfigError, UnavailableError
    from envcheck.images import engines

    try:
        found = engines.find(name)
    except UnavailableError as error:
        if not dry:
            raise
        message = f"{error.message}, and a plan asks it which bases and images it holds"
        raise UnavailableError(message, fix=error.fix) from error
    if bake and found != "docker":
        message = f"--bake is for docker's buildx, and the engine is {found}"
        raise ConfigError(message, fix="give --engine docker, or --dry-run --json for this engine's plan")
    return found


def _spec(settings: Settings, selector: str, target: Any, images_dir: Path | None) -> ImageSpec:
    from envcheck.errors import ConfigError
    from envcheck.images.spec import load_spec, select
    from envcheck.matrix.load import load

    matrix = load(settings.matrix)
    cells = select(matrix, [selector])
    if len(cells) != 1:
        message = f"{selector!r} names {len(cells)} cells"
        raise ConfigError(message, fix=f"build one at a time, e.g. {cells[0]}")
    spec = load_spec(matrix, cells[0], target, images_dir=images_dir)
    if not spec.locks:
        message = f"{spec.cell} has no lock"
        raise ConfigError(message, fix=f"run `envcheck lock {spec.cell}` where its index can be reached")
    return spec


def _wish(settings: Settings, spec: ImageSpec, profile: Profile, choice: Choice) -> Wish:
    from envcheck.images.engines import build

    revision, epoch = build.origin()
    return build.Wish(
        spec=spec,
        profile=profile,
        repository=choice.repository,
        network=None if choice.network == "auto" else choice.network,  # type: ignore[arg-type]  # click.Choice
        base=choice.base,  # type: ignore[arg-type]  # click.Choice
        timeout=choice.timeout,
        revision=revision,
        epoch=epoch,
        matrix=settings.matrix,
        wheels=choice.wheels,
    )


def _plan(wish: Wish, engine: str, *, bake: bool, as_json: bool) -> None:
    import shlex

    import msgspec

    from envcheck.images import engines, plan
    from envcheck.images.engines import build

    planned = build.dry_run(engines.connect(engine), wish)
    if bake or as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(plan.bake(planned) if bake else planned)))
        return
    click.echo(f"key     {planned.key or 'known once the base is here'}")
    click.echo(f"base    {planned.base}")
    click.echo(f"tag     {planned.tag}")
    for alias in planned.aliases:
        click.echo(f"alias   {alias}")
    for secret in planned.secrets:
        click.echo(f"secret  {secret}")
    click.echo(f"run     {shlex.join(planned.argv)}")
    if planned.skipped:
        click.echo("skip    this key has an image already: a build would run nothing and tag that")


def _image(wish: Wish, engine: str, settings: Settings, *, as_json: bool) -> None:
    from envcheck.cli._progress import details, listeners
    from envcheck.images import engines
    from envcheck.images.engines import build

    with listeners(settings) as (say, on_line), details():
        built = build.build(engines.connect(engine), wish, say=say, on_line=on_line)
    _show(built, built.image, settings, as_json=as_json)
    if not as_json and not settings.quiet:
        click.echo(f"size    {built.bytes / 1e6:.0f} MB   id {built.id[:19]}")
        for tag in built.tags[1:]:
            click.echo(f"alias   {tag}")
        for alias, why in built.held_back.items():
            click.echo(f"stays   {alias}: {why}")
        click.echo(f"next    envcheck run --image {engines.local_name(engine, built.image)}")
        gpus = "" if built.promises["cuda"] == "none" else f"{engines.GPUS[engine]} "
        click.echo(f"or      {engine} run --rm {gpus}--shm-size 8g {built.image} envcheck run")


def _venv(spec: ImageSpec, profile: Profile, choice: Choice, settings: Settings, *, as_json: bool, dry: bool) -> None:
    from envcheck.cli._progress import details, listeners
    from envcheck.data import state_path
    from envcheck.images.engines import venv

    dest = choice.dest or state_path("venvs", str(spec.cell))
    if dry:
        _show_venv_plan(venv.plan(spec, dest), as_json=as_json)
        return
    with listeners(settings) as (_, on_line), details():
        wheels = choice.wheels
        built = venv.build(spec, profile, dest, timeout=choice.timeout, on_line=on_line, wheels=wheels)
    _show(built, built.path, settings, as_json=as_json)
    if not as_json and not settings.quiet:
        click.echo(f"next    envcheck run --python {built.python}")


def _show_venv_plan(planned: EnvironmentPlan, *, as_json: bool) -> None:
    import msgspec

    from envcheck.cli._words import counted

    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(planned)))
        return
    click.echo(f"key     {planned.key}")
    click.echo(f"path    {planned.path}")
    click.echo(f"python  {planned.python}")
    for group, packages in planned.installs.items():
        click.echo(f"install {counted(packages, 'package')} of {group}.lock")
    if planned.skipped:
        click.echo("skip    this key is built there already: a build would run nothing")


def _show(built: Built | Environment, what: str, settings: Settings, *, as_json: bool) -> None:
    import msgspec

    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(built)))
        return
    click.echo(f"{'skipped, its key is built already' if built.skipped else 'built and proven'}: {what}")
    if settings.quiet:
        return
    promised = {name: built.promises[name] for name in ("torch", "cuda", "cudnn", "nccl", "python")}
    click.echo(f"proof   {', '.join(f'{name} {value}' for name, value in promised.items())}")
    for used in (used for used in built.sources if used.failed):
        why = "; ".join(f"{source} failed: {reason}" for source, reason in used.failed.items())
        click.echo(f"source  {used.group}: {used.source}, since {why}")
    click.echo(f"took    {built.seconds:.1f} s")
    if built.log:
        click.echo(f"log     {built.log}")
