"""`envcheck mirror list`: the names that `--mirror` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.options import Option, command_with
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.load import Preset, presets


@dataclass(frozen=True, kw_only=True)
class MirrorListOptions:
    as_json: Annotated[bool, Option("--json", "Print envcheck/mirrors/1.")] = False


@command_with(MirrorListOptions, name="list", epilog="`--mirror` also takes the path of a profile's YAML file.")
def command(options: MirrorListOptions, _settings: Settings) -> None:
    """List the mirrors that `--mirror` takes by name.

    No mirror is trusted: envcheck compares every file with its hash. The column "seen" has the day on which all
    addresses of the mirror were last seen to work, or "never".

    \b
    envcheck mirror list
    """
    chosen = model.read_choice()
    if options.as_json:
        rows = [{"name": name, **msgspec.to_builtins(preset)} for name, preset in presets().items()]
        document: dict[str, Any] = {"schema": "envcheck/mirrors/1", "chosen": chosen, "mirrors": rows}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return
    for name, text in _BUILT_IN.items():
        click.echo(f"{name:<11} {text}")
    click.echo()
    click.echo(f"{'name':<11} {'seen':<11} {'for':<46} region")
    for name, preset in presets().items():
        kinds = ", ".join(dict.fromkeys(entry.kind for entry in preset.entries))
        click.echo(f"{name:<11} {_last_seen(preset):<11} {kinds:<46} {preset.region}")
    click.echo("\n`envcheck mirror show NAME` shows what a mirror sets, lacks and cannot do.")
    if chosen:
        click.echo(f"Chosen with `envcheck mirror use`: {chosen}")


_BUILT_IN = {
    "none": "the default of every client",
    "host": "this machine's own pip, uv, apt and CA configuration",
    "user": "the choice of `envcheck mirror use`; `none` without a choice",
}


def _last_seen(preset: Preset) -> str:
    days = [entry.last_verified for entry in preset.entries]
    return str(min(day for day in days if day)) if all(days) else "never"
