"""`envcheck mirror use`: the profile that `--mirror user` means."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from envcheck.cli.shared.typed_options import takes
from envcheck.errors import ConfigError


class MirrorUseOptions(NamedTuple):
    """The options of `envcheck mirror use`."""

    profile: str


@click.command("use")
@click.argument("profile")
@takes(MirrorUseOptions)
def command(options: MirrorUseOptions) -> None:
    """Choose the profile that `--mirror user` means, for this user. `none` takes the choice back.

    build, fetch and store use it where no --mirror is given. It is one line in the user's configuration directory; no
    client's own settings are changed.

    \b
    envcheck mirror use tuna
    envcheck mirror use site.yaml
    """
    from envcheck.mirrors.profiles import user_choice
    from envcheck.mirrors.profiles.load import BUILT_IN_NAMES, load, presets

    profile = options.profile
    if profile == "user":
        message = "user is what is chosen here"
        raise ConfigError(message, fix="name a profile of `envcheck mirror list`, or a YAML file")
    if profile == "none":
        gone = user_choice.forget()
        click.echo(f"removed {gone}" if gone else "nothing was chosen")
        return
    load(profile)
    named = profile if profile in {*BUILT_IN_NAMES, *presets()} else str(Path(profile).absolute())
    click.echo(f"wrote {user_choice.write(named)}: {named}")
    click.echo("`--mirror user` means it from now on; `envcheck mirror env user` is for other programs")
    click.echo("`envcheck mirror show user` says what it lacks, and what its settings cannot do")
