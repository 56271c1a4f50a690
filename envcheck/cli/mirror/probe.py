"""`envcheck mirror probe`: which mirror has the needed files, and how fast it serves them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from envcheck.cli.shared import completion
from envcheck.cli.shared.parameter_types import FiniteRange, Size
from envcheck.cli.shared.typed_options import takes
from envcheck.counting import counted
from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.probe.ranking import RankedMirror

HOUR: Final = 3600.0


class MirrorProbeOptions(NamedTuple):
    """The options of `envcheck mirror probe`."""

    cells: tuple[str, ...]
    mirrors: tuple[str, ...]
    lock: Path | None
    model: str | None
    dataset: str | None
    urls: tuple[str, ...]
    no_redirect_hosts: bool
    region: str | None
    max_bytes: int
    seconds: float
    fresh: bool
    offline: bool
    as_json: bool


@click.command(
    "probe",
    epilog="Exit 0: some mirror passes for every part; 1: none does; 2: wrong usage; 3: no mirror answers.",
)
@click.argument("cells", nargs=-1, metavar="[CELL]", shell_complete=completion.cells)
@click.option("--mirror", "mirrors", multiple=True, metavar="PROFILE", help="Probe this mirror. Repeatable.")
@click.option(
    "--lock", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Probe for every file of a lock."
)
@click.option(
    "--model", metavar="REPO@REV", help="Probe for every file of a model; its hashes come from the trusted endpoint."
)
@click.option("--dataset", metavar="REPO@REV", help="Probe for every file of a dataset.")
@click.option(
    "--need",
    "urls",
    multiple=True,
    metavar="URL",
    help="Probe for the file at a URL; append #sha256=HASH to verify it. Repeatable.",
)
@click.option("--no-redirect-hosts", is_flag=True, help="Reject mirrors that redirect to other hosts.")
@click.option(
    "--region",
    metavar="REGION",
    help="Region of this machine, e.g. cn: worth 5 points. `--mirror auto` takes it from ENVCHECK_MIRROR_PROBE_REGION.",
)
@click.option(
    "--max-bytes", type=Size(), default="128M", show_default=True, help="Byte budget for all mirrors together."
)
@click.option("--seconds", type=FiniteRange(1, 600), default=45.0, show_default=True, help="Time budget for each part.")
@click.option("--fresh", is_flag=True, help="Measure again, even if results of the last hour are stored.")
@click.option("--offline", is_flag=True, help="Rank stored results of any age; send no requests.")
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/ranking/1.")
@click.pass_obj
@takes(MirrorProbeOptions)
def command(options: MirrorProbeOptions, settings: Settings) -> int:
    """Measure which mirrors have the files that a lock needs, and rank them with reasons.

    A mirror must have every file, with the right hash or size, valid certificates and working range requests. A mirror
    that passes gets points for protocol, rate, latency and freshness. Mirrors that redirect to hosts that their profile
    does not name come last. Without --mirror, the command probes this machine's configuration, your choice and
    every preset that has an index for these files. With --need, it compares the URLs with each other and with the
    mirrors for the same wheel or file of a model; URLs use the CA and netrc file of the first mirror.

    \b
    envcheck mirror probe torch2.13.0-cpu-py311
    envcheck mirror probe --mirror hf-mirror --mirror site.yaml \\
        --model org/name@COMMIT
    envcheck mirror probe torch2.13.0-cpu-py311 --mirror tuna --region cn
    """
    from envcheck.cli.sources.mirror_selection import probed_sources
    from envcheck.mirrors.probe.budget import Budget
    from envcheck.mirrors.probe.effective_indexes import missing_index_reason
    from envcheck.mirrors.select.by_lock import default_mirrors, load_mirror

    if options.fresh and options.offline:
        message = "--fresh and --offline exclude each other"
        raise ConfigError(message, fix="pass only one of them")
    target = _probe_target(options)
    names = dict.fromkeys(options.mirrors)
    mirrors = [load_mirror(name) for name in names] if names else default_mirrors()

    def measured() -> dict[str, list[RankedMirror]]:
        parts = probed_sources(settings, target, mirrors, named=bool(names))
        if not any(part.able(mirrors) for part in parts):
            message = f"not applicable: {', '.join(names)}: {missing_index_reason(parts[0].name)}"
            raise ConfigError(message, fix="name a mirror that has one; `envcheck mirror list` shows what each is for")
        return {
            part.name: part.ranked(
                mirrors if names else part.able(mirrors),
                Budget(options.max_bytes, options.seconds),
                age=-1.0 if options.fresh else HOUR,
                offline=options.offline,
                no_redirects=options.no_redirect_hosts,
                own_region=options.region,
            )
            for part in parts
        }

    ranked = measured()
    _print(settings, ranked, as_json=options.as_json)
    return _exit_code(ranked)


def _probe_target(options: MirrorProbeOptions) -> dict[str, Any]:
    """Return the options that name the files to probe for, by name. Refuse a mirror in the place of a cell."""
    from envcheck.cli.sources.fetch_request import refuse_mirror
    from envcheck.mirrors.profiles.model import redacted

    for name in options.cells:
        if "://" in name:
            message = f"{redacted(name)!r} is a URL, but the argument is a CELL"
            raise ConfigError(message, fix=f"pass it as --need {redacted(name)}")
        refuse_mirror(name, "CELL")
    if len(options.cells) > 1:
        message = f"expected one cell, found {len(options.cells)}"
        raise ConfigError(message, fix=f"probe for one cell at a time, e.g. {options.cells[0]}")
    options_given = {"--lock": options.lock, "--model": options.model, "--dataset": options.dataset}
    return {"CELL": next(iter(options.cells), None), **options_given, "--need": options.urls or None}


def _print(settings: Settings, ranked: dict[str, list[RankedMirror]], *, as_json: bool) -> None:
    import msgspec

    from envcheck.cli.sources.mirror_selection import print_ranking

    if as_json:
        document = {"schema": "envcheck/ranking/1", "parts": ranked}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return
    for part, mirrors in ranked.items():
        needs = max((mirror.measured.needs for mirror in mirrors), default=0)
        title = (
            f"{part}, {counted(needs, 'file')} needed"
            if mirrors
            else f"{part}: no stored results; run it without --offline"
        )
        print_ranking(mirrors, title, quiet=settings.quiet)


def _exit_code(ranked: dict[str, list[RankedMirror]]) -> int:
    if all(any(mirror.passed for mirror in mirrors) for mirrors in ranked.values()):
        return 0
    return 1 if any(mirror.measured.answered for mirrors in ranked.values() for mirror in mirrors) else 3
