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
    from envcheck.images.build.plan import BuildPlan
    from envcheck.images.engines.build import BuildResult
    from envcheck.images.engines.venv import Environment, EnvironmentPlan
    from envcheck.images.spec import ImageSpec
    from envcheck.mirrors.profiles.model import Profile


def show_unlocked(spec: ImageSpec, profile: Profile, *, engine: str, packages: Sequence[str], as_json: bool) -> None:
    """Print the plan of a cell that has no lock: what it installs is not known yet, `packages` on top neither."""
    from envcheck.cli.build.cell_to_build import kept_locks

    if as_json:
        plan: dict[str, Any] = {
            "schema": "envcheck/build-plan/1",
            "engine": engine,
            "cell": str(spec.cell),
            "target": spec.target,
        }
        plan |= {"key": None, "lock": "made first", "mirror": profile.name, "with": list(packages)}
        click.echo(json.dumps(plan, indent=2))
        return
    click.echo(f"cell    {spec.cell}")
    click.echo(f"lock    made first, through mirror profile {profile.name}; kept in {kept_locks(spec.cell)}")
    for package in packages:
        click.echo(f"with    {package}: locked on top once the cell's lock is made")
    click.echo("key     known once the lock is made")


def show_plan(planned: BuildPlan, *, as_json: bool) -> None:
    """Print the plan of an image."""
    if as_json:
        as_program(planned)
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
