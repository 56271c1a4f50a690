"""`envcheck mirror doctor`: find settings that no program reads, or that are dangerous."""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.options import EXISTING_FILE, Argument, Option, command_with
from envcheck.cli.shared.process import say
from envcheck.errors import ConfigError
from envcheck.mirrors.doctor.this_machine import DoctorFinding, examine, has_faults, read_files, read_machine

_COLOURS: Final = {"danger": "red", "unreal": "yellow", "outdated": "cyan"}


@dataclass(frozen=True, kw_only=True)
class MirrorDoctorOptions:
    files: Annotated[tuple[Path, ...], Argument(type=EXISTING_FILE)] = ()
    here: Annotated[
        bool | None, Option("--here/--no-here", "Examine this machine too  [default: only without FILES]")
    ] = None
    as_json: Annotated[bool, Option("--json", "Print envcheck/mirror-doctor/1.")] = False


@command_with(
    MirrorDoctorOptions,
    epilog="Exit 0: no findings, or only outdated ones; 1: danger or unreal; 2: a file is not text (the others are "
    "examined), or no file is named.",
)
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

    machine_too = this_machine or (this_machine is None and not files)
    documents, errors = read_files(files)
    for error in errors:
        say(str(error))
    texts = [*(read_machine() if machine_too else []), *documents]
    if errors and not texts:
        return ConfigError.exit_code
    findings = examine(texts)
    if options.as_json:
        examined = [{"name": text.name, "kind": text.kind} for text in texts]
        report = {"schema": "envcheck/mirror-doctor/1", "looked_at": examined, "findings": findings}
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _print_findings(findings, len(texts), quiet=settings.quiet)
    if errors:
        return ConfigError.exit_code
    return 1 if has_faults(findings) else 0


def _print_findings(findings: list[DoctorFinding], looked_at: int, *, quiet: bool) -> None:
    wrap = textwrap.TextWrapper(80, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    wrap.break_long_words = False
    for finding in findings:
        place = finding.where if finding.where == "environment" else f"{finding.where}:{finding.line}"
        click.echo(f"{place}: {_styled(finding.level)} {finding.id}")
        if not quiet:
            for text in (finding.what, f"fix: {finding.fix}"):
                click.echo(wrap.fill(text))
    levels = {level: sum(finding.level == level for finding in findings) for level in _COLOURS}
    counted = ", ".join(f"{number} {level}" for level, number in levels.items() if number)
    click.echo(f"{looked_at} examined: {counted or 'no findings'}")


def _styled(level: str) -> str:
    return level if os.environ.get("NO_COLOR") else click.style(level, fg=_COLOURS[level], bold=True)
