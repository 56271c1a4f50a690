"""`envcheck mirror probe`: which mirror has the very files that are needed, and how fast."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.score import Ranked

HOUR: Final = 3600.0
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


class _Bytes(click.ParamType[int]):
    """Bytes: 64M is 64 million."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"([0-9]+)([KMG]?)B?", str(value).upper())
        if found is None or int(found[1]) == 0:
            self.fail(f"{value!r} is no number of bytes; write 64M for 64 million", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


@click.command(
    "probe",
    epilog="Exit 0: for every part some mirror passes; 1: none does; 2: wrong usage; 3: nothing answered.",
)
@click.argument("names", nargs=-1, metavar="[PROFILE]...")
@click.option("--for", "cell", metavar="CELL", help="For every wheel of a published cell's locks.")
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
@click.option("--must-stay", is_flag=True, help="A file that another host serves fails its mirror.")
@click.option(
    "--region",
    metavar="REGION",
    help="Where this machine is, e.g. cn: a prior of 5 points. `--mirror auto` takes it from "
    "ENVCHECK_MIRROR_PROBE_REGION.",
)
@click.option("--limit", type=_Bytes(), default="128M", show_default=True, help="Bytes for all mirrors together.")
@click.option("--seconds", type=click.FloatRange(1, 600), default=45.0, show_default=True, help="For each part.")
@click.option("--fresh", is_flag=True, help="Measure, whatever is stored of the last hour.")
@click.option("--offline", is_flag=True, help="Judge what is stored, however old; ask nobody.")
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/ranking/1.")
@click.pass_obj
def command(  # noqa: PLR0913 (one argument an option)
    settings: Settings,
    *,
    names: tuple[str, ...],
    cell: str | None,
    lock: Path | None,
    model: str | None,
    dataset: str | None,
    urls: tuple[str, ...],
    must_stay: bool,
    region: str | None,
    limit: int,
    seconds: float,
    fresh: bool,
    offline: bool,
    as_json: bool,
) -> int:
    """Measure mirrors for the very files a lock needs, and rank them with reasons.

    Gates first: every file is there, down to the host that serves it, or in a directory here; hash or size;
    certificates; ranges. A 404 is a failed gate and never a speed. Who passes gets points for protocol, rate, latency
    and freshness; who sends clients to hosts that its profile does not name comes after all who do not. Without
    PROFILE, this machine's configuration, your choice and every preset that has such an index are probed. With --need
    the URLs are compared, and the PROFILEs with them for the same wheel or model's file; the first says by which CA
    and netrc file URLs are reached.

    \b
    envcheck mirror probe --for torch2.13.0-cpu-py311
    envcheck mirror probe hf-mirror site.yaml --model org/name@COMMIT
    envcheck mirror probe tuna site.yaml --for torch2.13.0-cpu-py311 --region cn
    """
    from envcheck.cli._probing import what_of
    from envcheck.mirrors.budget import Budget
    from envcheck.mirrors.choose import default_mirrors, mirror_of

    if fresh and offline:
        message = "--fresh and --offline at once"
        raise ConfigError(message, fix="leave one out")
    wanted = {"--for": cell, "--lock": lock, "--model": model, "--dataset": dataset, "--need": urls or None}
    mirrors = [mirror_of(name) for name in dict.fromkeys(names)] if names else default_mirrors()
    ranked = {
        part.name: part.ranked(
            mirrors if names else part.able(mirrors),
            Budget(limit, seconds),
            age=-1.0 if fresh else HOUR,
            offline=offline,
            must_stay=must_stay,
            here=region,
        )
        for part in what_of(settings, wanted, mirrors, named=bool(names))
    }
    _print(settings, ranked, as_json=as_json)
    return _status(ranked)


def _print(settings: Settings, ranked: dict[str, list[Ranked]], *, as_json: bool) -> None:
    import msgspec

    from envcheck.cli._probing import show

    if as_json:
        answer = {"schema": "envcheck/ranking/1", "parts": ranked}
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        return
    for part, found in ranked.items():
        needs = max((one.measured.needs for one in found), default=0)
        title = f"{part}, {needs} file(s) needed" if found else f"{part}: no mirror to ask, or nothing stored"
        show(found, title, quiet=settings.quiet)


def _status(ranked: dict[str, list[Ranked]]) -> int:
    if all(any(one.passed for one in found) for found in ranked.values()):
        return 0
    return 1 if any(one.measured.answered for found in ranked.values() for one in found) else 3
