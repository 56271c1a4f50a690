"""`envcheck mirror probe`: which mirror has the needed files, whether they are right, and how fast it serves them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.options import EXISTING_FILE, Argument, Option, command_with
from envcheck.cli.shared.parameter_types import FiniteRange, Size, complete_cells
from envcheck.cli.sources.downloads import FetchRequest, print_ranking, probe_targets, refuse_mirror
from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.mirrors.probe import choose
from envcheck.mirrors.probe.choose import load_mirror
from envcheck.mirrors.probe.measure import Budget, missing_reason
from envcheck.mirrors.probe.ranking import RankedMirror

# The budget of a probe, and of one that downloads every file.
_USUAL: Final = (128_000_000, 45.0)
_WHOLE: Final = (10**15, 86_400.0)


@dataclass(frozen=True, kw_only=True)
class MirrorProbeOptions:
    cells: Annotated[tuple[str, ...], Argument(metavar="[CELL]", shell_complete=complete_cells)] = ()
    mirrors: Annotated[tuple[str, ...], Option("--mirror", "Probe this mirror. Repeatable.", metavar="PROFILE")] = ()
    lock: Annotated[Path | None, Option("Probe for every file of a lock.", type=EXISTING_FILE)] = None
    model: Annotated[
        str | None,
        Option("Probe for every file of a model; its hashes come from the trusted endpoint.", metavar="REPO@REV"),
    ] = None
    dataset: Annotated[str | None, Option("Probe for every file of a dataset.", metavar="REPO@REV")] = None
    verify: Annotated[bool, Option("Download every file and compare its sha256.")] = False
    no_redirect_hosts: Annotated[bool, Option("Reject mirrors that redirect to other hosts.")] = False
    max_bytes: Annotated[
        int | None, Option("Byte budget for all mirrors together.  [default: 128M, none with --verify]", type=Size())
    ] = None
    seconds: Annotated[
        float | None, Option("Time budget for each part.  [default: 45, or a day]", type=FiniteRange(1, 86_400))
    ] = None
    as_json: Annotated[bool, Option("--json", "Print envcheck/ranking/2.")] = False

    def request(self) -> FetchRequest:
        """Return the files to probe for. Raise ConfigError unless one kind is named, and for a mirror as a cell."""
        for name in self.cells:
            refuse_mirror(name, "CELL")
        if len(self.cells) > 1:
            message = f"expected one cell, found {len(self.cells)}"
            raise ConfigError(message, fix=f"probe for one cell at a time, e.g. {self.cells[0]}")
        named = {"CELL": self.cells, "--lock": self.lock, "--model": self.model, "--dataset": self.dataset}
        options = [name for name, value in named.items() if value]
        if len(options) != 1:
            message = f"{' and '.join(options)} exclude each other" if options else "no files are named"
            raise ConfigError(message, fix="give one of CELL, --lock FILE, --model or --dataset REPO@REV")
        return FetchRequest(None, next(iter(self.cells), None), self.lock, self.model, self.dataset, None, False)  # noqa: FBT003 (no option)


@command_with(
    MirrorProbeOptions,
    name="probe",
    epilog="Exit 0: some mirror passes for every part; 1: none does; 2: wrong usage; 3: no mirror answers.",
)
def command(options: MirrorProbeOptions, settings: Settings) -> int:
    """Measure which mirrors have the files that a lock needs, and rank them with reasons.

    A mirror must have every file, with the right hash or size, valid certificates and working range requests. Of the
    mirrors that pass, the fastest comes first. Mirrors that redirect to hosts that their profile does not name come
    last. Without --mirror, the command probes this machine's configuration, your choice and every preset that has an
    index for these files. With --verify, a mirror that serves a wrong file fails: run it against your own mirror from
    time to time.

    \b
    envcheck mirror probe torch2.13.0-cpu-py311
    envcheck mirror probe --mirror hf-mirror --mirror site.yaml \\
        --model org/name@COMMIT
    envcheck mirror probe torch2.13.0-cpu-py311 --mirror site.yaml --verify
    """
    request = options.request()
    names = dict.fromkeys(options.mirrors)
    mirrors = [load_mirror(name) for name in names] if names else choose.default_mirrors()
    targets = probe_targets(settings, request, mirrors, verify=options.verify)
    if not any(target.able(mirrors) for target in targets):
        message = f"not applicable: {', '.join(names)}: {missing_reason(targets[0].part)}"
        raise ConfigError(message, fix="name a mirror that has one; `envcheck mirror list` shows what each is for")
    size, seconds = _WHOLE if options.verify else _USUAL
    ranked = {
        target.part: target.ranked(
            mirrors if names else target.able(mirrors),
            Budget(options.max_bytes or size, options.seconds or seconds),
            no_redirects=options.no_redirect_hosts,
        )
        for target in targets
    }
    _print(settings, ranked, as_json=options.as_json)
    return _exit_code(ranked)


def _print(settings: Settings, ranked: dict[str, list[RankedMirror]], *, as_json: bool) -> None:
    if as_json:
        document = {"schema": "envcheck/ranking/2", "parts": ranked}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return
    for part, mirrors in ranked.items():
        needs = max((mirror.measured.needs for mirror in mirrors), default=0)
        print_ranking(mirrors, f"{part}, {counted(needs, 'file')} needed", quiet=settings.quiet)


def _exit_code(ranked: dict[str, list[RankedMirror]]) -> int:
    if all(any(mirror.passed for mirror in mirrors) for mirrors in ranked.values()):
        return 0
    return 1 if any(mirror.measured.answered for mirrors in ranked.values() for mirror in mirrors) else 3
