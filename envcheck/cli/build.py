"""`envcheck build`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.images.engines.build import Built, Wish
    from envcheck.images.engines.venv import Environment
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


@click.command("build", epilog="Example: envcheck build torch2.13.0-cpu-py311 --mirror host")
@click.argument("selector")
@click.option("--mirror", default="none", show_default=True, help="none, host, or a profile's YAML file.")
@click.option("--target", default="runtime", show_default=True, type=click.Choice(["runtime"]))
@click.option(
    "--engine",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "docker", "podman", "venv"]),
    help="auto: docker if one answers, else podman, else venv.",
)
@click.option("--tag", "repository", default="envcheck/torch", show_default=True, metavar="REPO", help="Image name.")
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
    "--images", "images_dir", type=click.Path(path_type=Path, file_okay=False), help="Where the locks are. [images/]"
)
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option("--bake", is_flag=True, help="Print the plan as bake JSON and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
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
    dry_run: bool,
    bake: bool,
    as_json: bool,
) -> None:
    """Build a cell and prove that it is what its tag says.

    Versions are asserted inside the build, before a layer exists; the labels are read back before a tag is given.
    A cell whose key has an image already is not built again.
    """
    from envcheck.images import engines
    from envcheck.mirrors import load as load_profile

    choice = Choice(engines.find(engine), repository, dest, network, base, timeout)
    spec = _spec(settings, selector, target, images_dir)
    profile = load_profile(mirror)
    if choice.engine == "venv":
        _venv(spec, profile, choice, as_json=as_json, quiet=settings.quiet, dry=dry_run or bake)
        return
    wish = _wish(settings, spec, profile, choice)
    if dry_run or bake:
        _plan(wish, choice.engine, bake=bake, as_json=as_json)
        return
    _image(wish, choice.engine, as_json=as_json, quiet=settings.quiet)


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


def _image(wish: Wish, engine: str, *, as_json: bool, quiet: bool) -> None:
    from envcheck.images import engines
    from envcheck.images.engines import build

    with _progress(quiet=quiet) as (say, on_line), _details():
        built = build.build(engines.connect(engine), wish, say=say, on_line=on_line)
    _show(built, built.image, as_json=as_json)
    if not as_json:
        click.echo(f"size    {built.bytes / 1e6:.0f} MB   id {built.id[:19]}")
        for tag in built.tags[1:]:
            click.echo(f"alias   {tag}")
        for alias, why in built.held_back.items():
            click.echo(f"stays   {alias}: {why}")
        # `run --image` speaks docker's API, which podman offers on a socket that is seldom on.
        inside = f"podman run --rm --shm-size 8g {built.image} envcheck run"
        click.echo(f"next    {inside if engine == 'podman' else f'envcheck run --image {built.image}'}")


def _venv(spec: ImageSpec, profile: Profile, choice: Choice, *, as_json: bool, quiet: bool, dry: bool) -> None:
    from envcheck.data import state_path
    from envcheck.images.engines import venv

    dest = choice.dest or state_path("venvs", str(spec.cell))
    if dry:
        click.echo(f"path    {dest.absolute()}")
        click.echo(f"python  {venv.find_python(spec.cell.python)}")
        for lock in spec.locks:
            click.echo(f"install {len(lock.pins)} packages of {lock.group}.lock")
        return
    with _progress(quiet=quiet) as (_, on_line), _details():
        built = venv.build(spec, profile, dest, timeout=choice.timeout, on_line=on_line)
    _show(built, built.path, as_json=as_json)
    if not as_json:
        click.echo(f"next    envcheck run --python {built.python}")


def _show(built: Built | Environment, what: str, *, as_json: bool) -> None:
    import msgspec

    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(built)))
        return
    click.echo(f"{'skipped, its key is built already' if built.skipped else 'built and proven'}: {what}")
    promised = {name: built.promises[name] for name in ("torch", "cuda", "cudnn", "nccl", "python")}
    click.echo(f"proof   {', '.join(f'{name} {value}' for name, value in promised.items())}")
    click.echo(f"took    {built.seconds:.1f} s")
    if built.log:
        click.echo(f"log     {built.log}")


@contextmanager
def _details() -> Iterator[None]:
    """Print the step and its last lines before the one line that every error gets."""
    from envcheck.images.engines.build import FailedError

    try:
        yield
    except FailedError as error:
        for line in error.detail:
            click.echo(f"  {line}", err=True)
        raise


@contextmanager
def _progress(*, quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Give the two listeners, for messages and for the build's lines: one live line on a terminal, else the steps."""
    from envcheck.images.diagnose import step_of

    def nothing(_: str) -> None:
        return

    def message(line: str) -> None:
        click.echo(f"  {line}"[:80], err=True)

    def step(line: str) -> None:
        title = step_of(line)
        if title:
            message(title)

    if quiet:
        yield nothing, nothing
    elif not sys.stderr.isatty():
        yield message, step
    else:
        with _live() as update:
            yield update, update


@contextmanager
def _live() -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.markup import escape

    from envcheck.images.diagnose import said_of, step_of

    console = Console(stderr=True)
    current = ["", ""]
    with console.status("building") as status:

        def update(line: str) -> None:
            title = step_of(line)
            current[:] = [title, ""] if title else [current[0], said_of(line)]
            status.update(escape(" ".join(part for part in current if part)[: console.width - 4]))

        yield update
