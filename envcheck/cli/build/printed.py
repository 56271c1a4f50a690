"""What `envcheck build` prints: plans, as text and JSON, and what was built; what is seen of a build while it runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.build.cell_to_build import kept_locks
from envcheck.cli.build.request import BuildRequest
from envcheck.counting import counted
from envcheck.images import engines
from envcheck.images.build_log import FailedError, said_of, step_of
from envcheck.images.engines.build import BuildResult
from envcheck.images.engines.venv import Environment, EnvironmentPlan
from envcheck.images.plan import BuildPlan
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.profiles.model import Profile


def show_unlocked(specs: Sequence[ImageSpec], profile: Profile, request: BuildRequest, packages: Sequence[str]) -> None:
    """Print the plan of targets of a cell that have no lock: what they install is not known yet, `packages` neither."""
    kept = kept_locks(specs[0].cell)
    lines = [f"lock    made first, through mirror profile {profile.name}; kept in {kept}"]
    lines += [f"with    {package}: locked on top once the cell's lock is made" for package in packages]
    plan = {"lock": "made first", "mirror": profile.name, "with": list(packages)}
    show_without_key(specs, request, plan, [*lines, "key     known once the lock is made"])


def show_without_key(
    specs: Sequence[ImageSpec], request: BuildRequest, plan: dict[str, Any], lines: Sequence[str]
) -> None:
    """Print a plan whose locks are not made yet, as JSON or as these lines below the cell's."""
    if request.options.as_json:
        first = {"schema": "envcheck/build-plan/1", "engine": request.engine, "cell": str(specs[0].cell)}
        as_program(_one_or_all([{**first, "target": each.target, "key": None, **plan} for each in specs]))
        return
    for line in (f"cell    {specs[0].cell}", *lines):
        click.echo(line)


def show_plans(plans: Sequence[BuildPlan], *, as_json: bool) -> None:
    """Print the plans of images."""
    if as_json:
        as_program(_one_or_all(plans))
        return
    for planned in plans:
        _show_plan(planned)


def _show_plan(planned: BuildPlan) -> None:
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


def show_environment_plan(planned: EnvironmentPlan, *, as_json: bool) -> None:
    """Print the plan of a virtual environment."""
    if as_json:
        as_program(planned)
        return
    click.echo(f"key     {planned.key}")
    click.echo(f"path    {planned.path}")
    click.echo(f"python  {planned.python}")
    for group, packages in planned.installs.items():
        click.echo(f"install {counted(packages, 'package')} of {group}.lock")
    if planned.skipped:
        click.echo("skip    this key is built there already: a build would run nothing")


def show_images(images: Sequence[BuildResult], *, gpus: bool, quiet: bool, as_json: bool) -> None:
    """Print the images that were built, and unless `quiet` what to do with them; `gpus`: they are for some."""
    if as_json:
        as_program(_one_or_all(images))
        return
    for image in images:
        show_built(image, image.image, quiet=quiet, as_json=False)
        if quiet:
            continue
        click.echo(f"size    {image.bytes / 1e6:.0f} MB   id {image.id[:19]}")
        for tag in image.tags[1:]:
            click.echo(f"alias   {tag}")
        for alias, why in image.held_back.items():
            click.echo(f"stays   {alias}: {why}")
        click.echo(f"next    envcheck run --image {engines.local_name(image.engine, image.image)}")
        options = f"{engines.GPUS[image.engine]} " if gpus else ""
        click.echo(f"or      {image.engine} run --rm {options}--shm-size 8g {image.image} envcheck run")


def _one_or_all(values: Sequence[object]) -> object:
    """Return the one value, or a list of several."""
    return values[0] if len(values) == 1 else list(values)


def show_built(built: BuildResult | Environment, name: str, *, quiet: bool, as_json: bool) -> None:
    """Print what was built: its name, and unless `quiet` what was proven of it."""
    if as_json:
        as_program(built)
        return
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


def as_program(value: object) -> None:
    """Print a value as JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value)))


_Listener = Callable[[str], None]


@contextmanager
def details() -> Iterator[None]:
    """Print the step and its last lines before the one line that every error gets."""
    try:
        yield
    except FailedError as error:
        for line in error.detail:
            click.echo(f"  {line}", err=True)
        raise


@contextmanager
def listeners(settings: Settings) -> Iterator[tuple[_Listener, _Listener]]:
    """Give the two listeners, for messages and for the build's lines.

    --quiet hears nothing and --verbose all; else it is one live line on a terminal, and the steps elsewhere.
    """
    if settings.quiet:
        yield _nothing, _nothing
    elif settings.verbose:
        yield _message, _show_whole
    elif not sys.stderr.isatty():
        yield _message, _steps()
    else:
        with _live() as update:
            yield update, update


def _nothing(_: str) -> None:
    return


def _show_whole(line: str) -> None:
    click.echo(line, err=True)


def _message(line: str) -> None:
    click.echo(f"  {line}"[:80], err=True)


def _steps() -> _Listener:
    """Return what prints each step once: targets that are built at once share steps."""
    shown: set[str] = set()

    def listener(line: str) -> None:
        title = step_of(line)
        if title and title not in shown:
            shown.add(title)
            _message(title)

    return listener


@contextmanager
def _live() -> Iterator[_Listener]:
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    current = ["", ""]
    with console.status("building") as status:

        def update(line: str) -> None:
            title = step_of(line)
            current[:] = [title, ""] if title else [current[0], said_of(line)]
            status.update(escape(" ".join(part for part in current if part)[: console.width - 4]))

        yield update
