"""`envcheck mirror probe`: which mirror has the very files that are needed, and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from envcheck.cli.shared import completion
from envcheck.cli.shared.parameter_types import Size
from envcheck.cli.shared.typed_options import takes
from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.probe.ranking import Ranked

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
    epilog="Exit 0: for every part some mirror passes; 1: none does; 2: wrong usage; 3: nothing answered.",
)
@click.argument("cells", nargs=-1, metavar="[CELL]", shell_complete=completion.cells)
@click.option("--mirror", "mirrors", multiple=True, metavar="PROFILE", help="Probe this mirror. Repeatable.")
@click.option("--lock", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="For every file of a lock.")
@click.option("--model", metavar="REPO@REV", help="For every file of a model, its hashes from who is trusted.")
@click.option("--dataset", metavar="REPO@REV", help="The same of a dataset.")
@click.option(
    "--need",
    "urls",
    multiple=True,
    metavar="URL",
    help="For the file at a URL, or several; #sha256=HASH says what it is.",
)
@click.option("--no-redirect-hosts", is_flag=True, help="Reject mirrors that redirect to other hosts.")
@click.option(
    "--region",
    metavar="REGION",
    help="Where this machine is, e.g. cn: a prior of 5 points. `--mirror auto` takes it from "
    "ENVCHECK_MIRROR_PROBE_REGION.",
)
@click.option("--max-bytes", type=Size(), default="128M", show_default=True, help="Bytes for all mirrors together.")
@click.option("--seconds", type=click.FloatRange(1, 600), default=45.0, show_default=True, help="For each part.")
@click.option("--fresh", is_flag=True, help="Measure, whatever is stored of the last hour.")
@click.option("--offline", is_flag=True, help="Judge what is stored, however old; ask nobody.")
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/ranking/1.")
@click.pass_obj
@takes(MirrorProbeOptions)
def command(options: MirrorProbeOptions, settings: Settings) -> int:
    """Measure mirrors for the very files a lock needs, and rank them with reasons.

    Gates first: every file is there, down to the host that serves it, or in a directory here; hash or size;
    certificates; ranges. A 404 is a failed gate and never a speed. Who passes gets points for protocol, rate, latency
    and freshness; who sends clients to hosts that its profile does not name comes after all who do not. Without
    --mirror, this machine's configuration, your choice and every preset that has such an index are probed. With --need
    the URLs are compared, and the mirrors with them for the same wheel or model's file; the first says by which CA
    and netrc file URLs are reached.

    \b
    envcheck mirror probe torch2.13.0-cpu-py311
    envcheck mirror probe --mirror hf-mirror --mirror site.yaml --model org/name@COMMIT
    envcheck mirror probe torch2.13.0-cpu-py311 --mirror tuna --region cn
    """
    from envcheck.cli.shared.interruptible import ended_by_signal
    from envcheck.cli.sources.mirror_selection import probed_sources
    from envcheck.mirrors.probe.budget import Budget
    from envcheck.mirrors.select.by_lock import default_mirrors, mirror_of

    if options.fresh and options.offline:
        message = "--fresh and --offline at once"
        raise ConfigError(message, fix="leave one out")
    wanted = _wanted(options)
    names = dict.fromkeys(options.mirrors)
    mirrors = [mirror_of(name) for name in names] if names else default_mirrors()

    def measured() -> dict[str, list[Ranked]]:
        return {
            part.name: part.ranked(
                mirrors if names else part.able(mirrors),
                Budget(options.max_bytes, options.seconds),
                age=-1.0 if options.fresh else HOUR,
                offline=options.offline,
                must_stay=options.no_redirect_hosts,
                here=options.region,
            )
            for part in probed_sources(settings, wanted, mirrors, named=bool(names))
        }

    ranked = ended_by_signal(measured)
    if isinstance(ranked, int):
        return ranked
    _print(settings, ranked, as_json=options.as_json)
    return _status(ranked)


def _wanted(options: MirrorProbeOptions) -> dict[str, Any]:
    """Return what the mirrors are probed for, by how it is given. Refuse mirrors that stand where the cell does."""
    from envcheck.mirrors.profiles.load import BUILT_IN_NAMES, presets
    from envcheck.mirrors.profiles.model import redacted

    names = {*BUILT_IN_NAMES, *presets()}
    for name in options.cells:
        if name in names or set(name) & set("/:") or name.endswith((".yaml", ".yml")):
            message = f"{redacted(name)!r} is a mirror, and the argument is a CELL"
            raise ConfigError(message, fix=f"give it with --mirror {redacted(name)}")
    if len(options.cells) > 1:
        message = f"{len(options.cells)} cells at once"
        raise ConfigError(message, fix=f"probe for one at a time, e.g. {options.cells[0]}")
    wanted = {"--lock": options.lock, "--model": options.model, "--dataset": options.dataset}
    return {"CELL": next(iter(options.cells), None), **wanted, "--need": options.urls or None}


def _print(settings: Settings, ranked: dict[str, list[Ranked]], *, as_json: bool) -> None:
    import msgspec

    from envcheck.cli.sources.mirror_selection import print_ranking

    if as_json:
        answer = {"schema": "envcheck/ranking/1", "parts": ranked}
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        return
    for part, found in ranked.items():
        needs = max((one.measured.needs for one in found), default=0)
        title = f"{part}, {needs} file(s) needed" if found else f"{part}: no mirror to ask, or nothing stored"
        print_ranking(found, title, quiet=settings.quiet)


def _status(ranked: dict[str, list[Ranked]]) -> int:
    if all(any(one.passed for one in found) for found in ranked.values()):
        return 0
    return 1 if any(one.measured.answered for found in ranked.values() for one in found) else 3
