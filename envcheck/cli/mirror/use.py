"""`envcheck mirror use`: choose the profile of `--mirror user`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from envcheck.cli import Settings
from envcheck.cli.options import Argument, command_with
from envcheck.errors import ConfigError
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.load import BUILT_IN_NAMES, load, presets


@dataclass(frozen=True, kw_only=True)
class MirrorUseOptions:
    profile: Annotated[str, Argument()]


@command_with(MirrorUseOptions)
def command(options: MirrorUseOptions, _settings: Settings) -> None:
    """Choose the profile that `--mirror user` means, for this user. `none` removes the choice.

    build, fetch and store use it if --mirror is not given. The choice is one line of a file in the user's
    configuration directory; the settings of other programs stay as they are.

    \b
    envcheck mirror use tuna
    envcheck mirror use site.yaml
    """
    profile = options.profile
    if profile == "user":
        message = "`mirror use user` is circular"
        raise ConfigError(message, fix="pass a name from `envcheck mirror list`, or a YAML file")
    if profile == "none":
        removed = model.forget_choice()
        click.echo(f"removed {removed}" if removed else "nothing was chosen")
        return
    load(profile)
    choice = profile if profile in {*BUILT_IN_NAMES, *presets()} else str(Path(profile).absolute())
    click.echo(f"wrote {model.write_choice(choice)}: {choice}")
    click.echo("`--mirror user` now means this profile; `envcheck mirror show user --format env` is for other programs")
    click.echo("`envcheck mirror show user` shows what it lacks and what its settings cannot do")
