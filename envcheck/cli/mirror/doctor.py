"""`envcheck mirror doctor`: settings that nothing reads, or that are dangerous."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from envcheck.cli.shared import messages
from envcheck.cli.shared.typed_options import takes
from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.doctor.doctor import Finding

_COLOURS: Final = {"danger": "red", "unreal": "yellow", "outdated": "cyan"}


class MirrorDoctorOptions(NamedTuple):
    """The options of `envcheck mirror doctor`."""

    files: tuple[Path, ...]
    here: bool | None
    as_json: bool


@click.command(
    "doctor",
    epilog="Exit 0: nothing, or only what is outdated; 1: dangerous or unreal; 2: a file is no text (the others "
    "are looked at), or none is named.",
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--here/--no-here", default=None, help="Look at this machine too; without files it is what is looked at.")
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/mirror-doctor/1.")
@click.pass_obj
@takes(MirrorDoctorOptions)
def command(options: MirrorDoctorOptions, settings: Settings) -> int:
    """Find settings of mirrors and downloads that nothing reads, or that are dangerous, each with what to do.

    FILES are Dockerfiles, scripts, requirements, Python, pip.conf and the like. Without any: this environment's
    variables, and the settings of pip, uv, npm, conda, docker, podman and the shells on this machine. No value is
    printed: it may be a secret.

    \b
    envcheck mirror doctor
    envcheck mirror doctor Dockerfile train.py ~/.bashrc
    """
    files, here = options.files, options.here
    if not files and here is False:
        message = "there is nothing to look at"
        raise ConfigError(message, fix="name files, or leave --no-here out")
    from envcheck.mirrors.doctor import doctor
    from envcheck.mirrors.doctor.this_machine import files as read
    from envcheck.mirrors.doctor.this_machine import machine, unread

    ours = here or (here is None and not files)
    named, errors = read(files)
    for error in errors:
        messages.say(str(error))
    texts = [*(machine() if ours else []), *named]
    if errors and not texts:
        return ConfigError.exit_code
    found = [*(unread() if ours else []), *doctor.examine(texts)]
    if options.as_json:
        import msgspec

        looked = [{"name": text.name, "kind": text.kind} for text in texts]
        answer = {"schema": "envcheck/mirror-doctor/1", "looked_at": looked, "findings": found}
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    else:
        _tell(found, len(texts), quiet=settings.quiet)
    if errors:
        return ConfigError.exit_code
    return 1 if doctor.wrong(found) else 0


def _tell(found: list[Finding], looked_at: int, *, quiet: bool) -> None:
    wrap = textwrap.TextWrapper(80, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    wrap.break_long_words = False
    for one in found:
        place = one.where if one.where == "environment" or not one.line else f"{one.where}:{one.line}"
        click.echo(f"{place}: {_styled(one.level)} {one.id}")
        if not quiet:
            for text in (one.what, f"fix: {one.fix}"):
                click.echo(wrap.fill(text))
    levels = {level: sum(one.level == level for one in found) for level in _COLOURS}
    counted = ", ".join(f"{number} {level}" for level, number in levels.items() if number)
    click.echo(f"{looked_at} looked at: {counted or 'nothing found'}")


def _styled(level: str) -> str:
    return level if os.environ.get("NO_COLOR") else click.style(level, fg=_COLOURS[level], bold=True)
