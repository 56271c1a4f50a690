"""`envcheck mirror probe`: which mirror has the very files that are needed, and how fast."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.probe import Mirror
    from envcheck.mirrors.score import Ranked
    from envcheck.mirrors.sights import Asked

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
@click.option("--must-stay", is_flag=True, help="A file that another host serves fails its mirror.")
@click.option("--region", metavar="REGION", help="Where this machine is, e.g. cn: a prior of 5 points.")
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
    must_stay: bool,
    region: str | None,
    limit: int,
    seconds: float,
    fresh: bool,
    offline: bool,
    as_json: bool,
) -> int:
    """Measure mirrors for the very files a lock needs, and rank them with reasons.

    Gates first: every file is there, down to the host that serves it; hash or size; certificates; ranges. A 404 is a
    failed gate and never a speed. Who passes gets points for protocol, rate, latency and freshness. Without PROFILE,
    this machine's configuration, your choice and every preset that has such an index are probed.

    \b
    envcheck mirror probe --for torch2.13.0-cpu-py311
    envcheck mirror probe tuna ustc site.yaml --for torch2.13.0-cpu-py311 --region cn
    """
    from envcheck.cli._probing import asked_of, lock_at, locks_of
    from envcheck.mirrors.choose import default_mirrors, mirror_of, parts

    if (cell is None) == (lock is None):
        message = "nothing says which files are needed" if cell is None else "--for and --lock at once"
        raise ConfigError(message, fix="give --for CELL or --lock FILE")
    if fresh and offline:
        message = "--fresh and --offline at once"
        raise ConfigError(message, fix="leave one out")
    asked = asked_of([lock_at(lock)] if lock is not None else locks_of(settings, cell or ""))
    mirrors = [mirror_of(name) for name in dict.fromkeys(names)] if names else default_mirrors()
    ranked = {
        part[0].part: _ranked(part, mirrors, _budget(limit, seconds), named=bool(names), must_stay=must_stay,
                              region=region, age=0.0 if fresh else None, offline=offline)
        for part in parts(asked)
    }  # fmt: skip
    _print(settings, ranked, as_json=as_json)
    return _status(ranked)


def _budget(limit: int, seconds: float) -> Any:
    from envcheck.mirrors.budget import Budget

    return Budget(limit, seconds)


def _ranked(
    asked: list[Asked],
    mirrors: list[Mirror],
    budget: Any,
    *,
    named: bool,
    must_stay: bool,
    region: str | None,
    age: float | None,
    offline: bool,
) -> list[Ranked]:
    from envcheck.mirrors import probe_cache
    from envcheck.mirrors.origins import sources
    from envcheck.mirrors.score import rank

    able = [mirror for mirror in mirrors if named or sources(mirror.profile, asked[0].part)]
    age = probe_cache.HOUR if age is None else -1.0
    measured = probe_cache.measured(able, asked, budget, age=age, offline=offline)
    return rank(measured, must_stay=must_stay, here=region)


def _print(settings: Settings, ranked: dict[str, list[Ranked]], *, as_json: bool) -> None:
    import msgspec

    from envcheck.cli._probing import show

    if as_json:
        answer = {"schema": "envcheck/ranking/1", "parts": ranked}
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        return
    for part, found in ranked.items():
        needs = max((one.measured.needs for one in found), default=0)
        show(found, f"{part}, {needs} package(s) of the lock" if found else f"{part}: nothing is stored of it",
             quiet=settings.quiet)  # fmt: skip


def _status(ranked: dict[str, list[Ranked]]) -> int:
    if all(any(one.passed for one in found) for found in ranked.values()):
        return 0
    return 1 if any(one.measured.answered for found in ranked.values() for one in found) else 3
