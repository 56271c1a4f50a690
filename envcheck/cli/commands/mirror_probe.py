"""`envcheck mirror probe`: which mirror has the needed files, whether they are right, and how fast it serves them."""

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import click

from envcheck.cli import Settings
from envcheck.cli.options import EXISTING_FILE, Argument, FiniteRange, Option, command_with, complete_cells
from envcheck.cli.shared.process import print_json
from envcheck.cli.sources import locked_cells
from envcheck.counting import counted
from envcheck.errors import refuse
from envcheck.images.lockfile import parse_requirements
from envcheck.images.wheels import locked_packages
from envcheck.mirrors import probe
from envcheck.mirrors.probe import SECONDS, Criterion, RankedMirror
from envcheck.safe_files import read_whole

_NAME: Final = 22


@dataclass(frozen=True, kw_only=True)
class MirrorProbeOptions:
    cells: Annotated[tuple[str, ...], Argument(metavar="[CELL]", shell_complete=complete_cells)] = ()
    mirrors: Annotated[tuple[str, ...], Option("--mirror", "Probe this mirror. Repeatable.", metavar="PROFILE")] = ()
    lock: Annotated[Path | None, Option("Probe for every file of a lock.", type=EXISTING_FILE)] = None
    seconds: Annotated[float, Option("Time budget for each part.", type=FiniteRange(1, 86_400))] = SECONDS
    as_json: Annotated[bool, Option("--json", "Print envcheck/ranking/2.")] = False

    def targets(self, settings: Settings) -> list[probe.Target]:
        """Return what to probe for. Raise ConfigError unless one cell or a lock is named."""
        if len(self.cells) + (self.lock is not None) != 1:
            refuse(
                f"expected one cell or --lock, found {', '.join(self.cells) or 'none'}",
                "give CELL or --lock FILE, and each mirror as --mirror NAME",
            )
        if self.lock is None:
            cells = locked_cells(settings, self.cells[0], one=True)
            return probe.lock_targets(locked_packages(cells[0].locks))
        return probe.lock_targets(locked_packages([parse_requirements(read_whole(self.lock), "base", str(self.lock))]))


@command_with(
    MirrorProbeOptions,
    name="probe",
    epilog="Exit 0: some mirror passes for every part; 1: none does; 2: wrong usage; 3: no mirror answers.",
)
def command(options: MirrorProbeOptions, settings: Settings) -> int:
    """Measure which mirrors have the files that a lock needs, and rank them with reasons.

    A mirror must have every file, with the right hash or size, valid certificates and working range requests. Of the
    mirrors that pass, the fastest comes first. Without --mirror, this machine's configuration, your choice and every
    preset that has an index for these files are probed.

    \b
    envcheck mirror probe torch2.13.0-cpu-py311
    envcheck mirror probe --lock my.lock --mirror tuna --mirror site.yaml
    """
    targets, names = options.targets(settings), dict.fromkeys(options.mirrors)
    mirrors = [probe.load_mirror(name) for name in names] if names else probe.default_mirrors()
    if not any(target.able(mirrors) for target in targets):
        refuse(
            f"not applicable: {', '.join(names)}: {targets[0].missing_reason()}",
            "name a mirror that has one; `envcheck mirror list` shows what each is for",
        )
    ranked = {
        target.part: probe.ranked_mirrors(target, mirrors if names else target.able(mirrors), options.seconds)
        for target in targets
    }
    if options.as_json:
        print_json({"schema": "envcheck/ranking/2", "parts": ranked})
    else:
        for part, of_part in ranked.items():
            _print_ranking(part, of_part, quiet=settings.quiet)
    if all(any(mirror.passed for mirror in of_part) for of_part in ranked.values()):
        return 0
    return 1 if any(mirror.measured.answered for of_part in ranked.values() for mirror in of_part) else 3


def _print_ranking(part: str, ranked: list[RankedMirror], *, quiet: bool) -> None:
    needs = max((one.measured.needs for one in ranked), default=0)
    click.echo(f"{part}, {counted(needs, 'file')} needed")
    for place, one in enumerate(ranked, 1):
        name = f"{one.mirror:<{_NAME}}" if len(one.mirror) <= _NAME else f"{one.mirror}\n{'':<{_NAME + 5}}"
        click.echo(f"{place if one.passed else '-':>3}  {name} {_result(one)}")
        for text in [] if quiet else _reasons(one):
            click.echo(textwrap.fill(text, 80, initial_indent="      ", subsequent_indent="        "))


def _result(one: RankedMirror) -> str:
    if one.passed:
        return f"{probe.speed_of(one):>12}   {(one.measured.latency or 0) * 1e3:>7.1f} ms"
    silent = "not reached" if one.measured.missing is None else "not applicable"
    state = "not passed" if one.measured.answered else silent
    return f"{state}: {', '.join(sorted(criterion.name for criterion in one.failed))}"


def _reasons(one: RankedMirror) -> list[str]:
    """Return the failed criteria; of a mirror that passed, all of them and the rate."""
    lines = [f"{gate.name} {_word(gate)}: {gate.why}" for gate in (one.criteria if one.passed else one.failed)]
    rate = one.measured.rate
    if rate is not None:
        ended = f", then {rate.why}" if rate.why else ""
        lines.append(f"rate: {rate.bytes / 1e6:.2f} MB from the middle of a file in {rate.seconds:.2f} s{ended}")
    return lines


def _word(gate: Criterion) -> str:
    if gate.passed is None:
        return "not verified"
    return "passed" if gate.passed else "failed" if gate.hard else "noted"
