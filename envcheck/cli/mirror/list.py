"""`envcheck mirror list`: the mirrors that can be named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from envcheck.cli.shared.typed_options import takes

if TYPE_CHECKING:
    from envcheck.mirrors.profiles.presets import Preset


class MirrorListOptions(NamedTuple):
    """The options of `envcheck mirror list`."""

    as_json: bool


@click.command("list", epilog="`--mirror` also takes the path of a profile's YAML file.")
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/mirrors/1.")
@takes(MirrorListOptions)
def command(options: MirrorListOptions) -> None:
    """List the mirrors that `--mirror` takes by name.

    None of them is trusted: every file is held against its hash. "seen" is the oldest day on which an address was
    seen to work; "never" where envcheck's authors never saw it.

    \b
    envcheck mirror list
    """
    from envcheck.mirrors.profiles import user_choice
    from envcheck.mirrors.profiles.load import presets

    chosen_name = user_choice.read()
    if options.as_json:
        import msgspec

        rows = [{"name": name, **msgspec.to_builtins(preset)} for name, preset in presets().items()]
        answer: dict[str, Any] = {"schema": "envcheck/mirrors/1", "chosen": chosen_name, "mirrors": rows}
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        return
    for name, text in _OWN.items():
        click.echo(f"{name:<11} {text}")
    click.echo()
    click.echo(f"{'name':<11} {'seen':<11} {'for':<46} region")
    for name, preset in presets().items():
        kinds = ", ".join(dict.fromkeys(entry.kind for entry in preset.entries))
        click.echo(f"{name:<11} {_seen(preset):<11} {kinds:<46} {preset.region}")
    click.echo("\n`envcheck mirror show NAME` says what each sets, lacks and cannot do.")
    if chosen_name:
        click.echo(f"chosen with `envcheck mirror use`: {chosen_name}")


_OWN = {
    "none": "every client's own default",
    "host": "this machine's own pip, uv, apt and CA configuration",
    "user": "what was chosen with `envcheck mirror use`; none where nothing was",
}


def _seen(preset: Preset) -> str:
    days = [entry.last_verified for entry in preset.entries]
    return str(min(day for day in days if day)) if all(days) else "never"
