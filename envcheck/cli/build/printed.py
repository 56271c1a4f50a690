"""What `envcheck build` prints: plans, as text and JSON, and what was built."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from envcheck.counting import counted

if TYPE_CHECKING:
    from envcheck.images.engines.build import BuildResult
    from envcheck.images.engines.venv import Environment, EnvironmentPlan
    from envcheck.images.plan import BuildPlan
    from envcheck.images.spec import ImageSpec
    from envcheck.mirrors.profiles.model import Profile


def show_unlocked(
    specs: Sequence[ImageSpec], profile: Profile, *, engine: str, packages: Sequence[str], as_json: bool
) -> None:
    """Print the plan of targets of a cell that have no lock: what they install is not known yet, `packages` neither."""
    from envcheck.cli.build.cell_to_build import kept_locks

    spec = specs[0]
    if as_json:
        plan: dict[str, Any] = {"schema": "envcheck/build-plan/1", "engine": engine, "cell": str(spec.cell)}
        more = {"key": None, "lock": "made first", "mirror": profile.name, "with": list(packages)}
        as_program(_one_or_all([{**plan, "target": each.target, **more} for each in specs]))
        return
    click.echo(f"cell    {spec.cell}")
    click.echo(f"lock    made first, through mirror profile {profile.name}; kept in {kept_locks(spec.cell)}")
    for package in packages:
        click.echo(f"with    {package}: locked on top once the cell's lock is made")
    click.echo("key     known once the lock is made")


def show_uncompiled(
    spec: ImageSpec, compiled: Sequence[str], *, engine: str, packages: Sequence[str], as_json: bool
) -> None:
    """Print the plan of a build whose extensions are not compiled or fetched yet: what it installs is not known."""
    if as_json:
        plan: dict[str, Any] = {
            "schema": "envcheck/build-plan/1",
            "engine": engine,
            "cell": str(spec.cell),
            "target": spec.target,
        }
        plan |= {"key": None, "compile": list(compiled), "with": list(packages)}
        click.echo(json.dumps(plan, indent=2))
        return
    click.echo(f"cell    {spec.cell}")
    for name in compiled:
        click.echo(f"compile {name}: first, on the cell's devel; its wheel is kept in the store")
    for package in packages:
        click.echo(f"with    {package}: locked on top once the wheel is there")
    click.echo("key     known once the wheel is there")


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
    from envcheck.images import engines

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
