"""`envcheck mirror doctor`: find settings that no program reads, or that are dangerous."""

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
    from envcheck.mirrors.doctor.doctor import DoctorFinding

_COLOURS: Final = {"danger": "red", "unreal": "yellow", "outdated": "cyan"}


class MirrorDoctorOptions(NamedTuple):
    """The options of `envcheck mirror doctor`."""

    files: tuple[Path, ...]
    here: bool | None
    as_json: bool


@click.command(
    "doctor",
    epilog="Exit 0: no findings, or only outdated ones; 1: danger or unreal; 2: a file is not text (the others are "
    "examined), or no file is named.",
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--here/--no-here", default=None, help="Examine this machine too  [default: only without FILES]")
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/mirror-doctor/1.")
@click.pass_obj
@takes(MirrorDoctorOptions)
def command(options: MirrorDoctorOptions, settings: Settings) -> int:
    """Find settings of mirrors and downloads that no program reads, or that are dangerous, and suggest fixes.

    FILES are Dockerfiles, scripts, requirements, Python, pip.conf and similar files. Without FILES, the command
    examines this environment's variables, and the settings of pip, uv, npm, conda, docker, podman and the shells on
    this machine. It prints no values, because they may be secrets.

    \b
    envcheck mirror doctor
    envcheck mirror doctor Dockerfile train.py ~/.bashrc
    """
    files, this_machine = options.files, options.here
    if not files and this_machine is False:
        message = "nothing to examine"
        raise ConfigError(message, fix="name files, or remove --no-here")
    from envcheck.mirrors.doctor import doctor
    from envcheck.mirrors.doctor.this_machine import read_files as read
    from envcheck.mirrors.doctor.this_machine import read_machine, unreadable_settings

    machine_too = this_machine or (this_machine is None and not files)
    documents, errors = read(files)
    for error in errors:
        messages.say(str(error))
    texts = [*(read_machine() if machine_too else []), *documents]
    if errors and not texts:
        return ConfigError.exit_code
    findings = [*(unreadable_settings() if machine_too else []), *doctor.examine(texts)]
    if options.as_json:
        import msgspec

        examined = [{"name": text.name, "kind": text.kind} for text in texts]
        report = {"schema": "envcheck/mirror-doctor/1", "looked_at": examined, "findings": findings}
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _print_findings(findings, len(texts), quiet=settings.quiet)
    if errors:
        return ConfigError.exit_code
    return 1 if doctor.has_faults(findings) else 0


def _print_findings(findings: list[DoctorFinding], looked_at: int, *, quiet: bool) -> None:
    wrap = textwrap.TextWrapper(80, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    wrap.break_long_words = False
    for finding in findings:
        place = (
            finding.where if finding.where == "environment" or not finding.line else f"{finding.where}:{finding.line}"
        )
        click.echo(f"{place}: {_styled(finding.level)} {finding.id}")
        if not quiet:
            for text in (finding.what, f"fix: {finding.fix}"):
                click.echo(wrap.fill(text))
    levels = {level: sum(finding.level == level for finding in findings) for level in _COLOURS}
    counted = ", ".join(f"{number} {level}" for level, number in levels.items() if number)
    click.echo(f"{looked_at} examined: {counted or 'no findings'}")


def _styled(level: str) -> str:
    return level if os.environ.get("NO_COLOR") else click.style(level, fg=_COLOURS[level], bold=True)
