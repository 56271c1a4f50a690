"""`envcheck mirror use`: the profile that `--mirror user` means."""

from __future__ import annotations

from pathlib import Path

import click

from envcheck.errors import ConfigError


@click.command("use")
@click.argument("profile")
def command(*, profile: str) -> None:
    """Choose the profile that `--mirror user` means, for this user. `none` takes the choice back.

    build, fetch and store use it where no --mirror is given. It is one line in the user's configuration directory; no
    client's own settings are changed.

    \b
    envcheck mirror use tuna
    envcheck mirror use site.yaml
    """
    from envcheck.mirrors import chosen
    from envcheck.mirrors.load import NAMES, load, presets

    if profile == "user":
        message = "user is what is chosen here"
        raise ConfigError(message, fix="name a profile of `envcheck mirror list`, or a YAML file")
    if profile == "none":
        gone = chosen.forget()
        click.echo(f"removed {gone}" if gone else "nothing was chosen")
        return
    load(profile)
    named = profile if profile in {*NAMES, *presets()} else str(Path(profile).absolute())
    click.echo(f"wrote {chosen.write(named)}: {named}")
    click.echo("`--mirror user` means it from now on; `envcheck mirror env user` is for other programs")
    click.echo("`envcheck mirror show user` says what it lacks, and what its settings cannot do")
