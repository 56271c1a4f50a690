"""What `envcheck mirror probe` and `--mirror auto` have in common: what a lock asks for, and what is said of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.cli._asked import Asked as What
    from envcheck.images.pins import Lock
    from envcheck.mirrors.profile import Profile
    from envcheck.mirrors.score import Ranked
    from envcheck.mirrors.sights import Asked

AUTO: Final = "auto"
_WIDTH: Final = 80


def locks_of(settings: Settings, selector: str) -> list[Lock]:
    """Return the locks of the one cell that a selector names."""
    from envcheck.data import data_path
    from envcheck.images.lock import read_locks
    from envcheck.images.spec import select
    from envcheck.matrix.load import load

    cells = select(load(settings.matrix), (selector,))
    if len(cells) != 1:
        message = f"{selector!r} names {len(cells)} cells"
        raise ConfigError(message, fix=f"probe for one at a time, e.g. {cells[0]}")
    locks = read_locks(data_path("images") / str(cells[0]))
    if not locks:
        message = f"{cells[0]} has no lock"
        raise ConfigError(message, fix=f"run `envcheck lock {cells[0]}` where its index can be reached")
    return locks


def lock_at(path: Path) -> Lock:
    """Return the lock in a file."""
    from envcheck.images.lock import parse_lock

    return parse_lock(path.read_text(encoding="utf-8", errors="replace"), "base", str(path))


def asked_of(locks: Iterable[Lock]) -> list[Asked]:
    """Return what locks ask a mirror for."""
    from envcheck.mirrors.sights import Asked

    return [Asked(pin.name, pin.version, tuple(pin.sha256), lock.index) for lock in locks for pin in lock.pins]


def profile_for(settings: Settings, mirror: str, locks: Iterable[Lock]) -> Profile:
    """Return the profile of a name; of "auto", the mirrors that were probed for the locks, and say which and why."""
    from envcheck.mirrors import load

    if mirror != AUTO:
        return load(mirror)
    from envcheck.mirrors.choose import choose

    choice = choose(asked_of(locks))
    if not settings.quiet:
        for line in choice.why:
            click.echo(textwrap.fill(line, _WIDTH, initial_indent="  ", subsequent_indent="    "), err=True)
    return choice.profile


def profile_to_fetch(settings: Settings, mirror: str, what: What) -> Profile:
    """Return the profile that a fetch uses; "auto" is for the wheels of a cell or of a lock."""
    if mirror != AUTO:
        return profile_for(settings, mirror, [])
    if what.cell is not None:
        return profile_for(settings, mirror, locks_of(settings, what.cell))
    if what.lock is not None and b"# index:" in what.lock.read_bytes():
        return profile_for(settings, mirror, [lock_at(what.lock)])
    message = "--mirror auto for what is no wheel of a lock"
    raise ConfigError(message, fix="give --cell or the --lock of a cell, or name a mirror")


def show(ranked: list[Ranked], title: str, *, quiet: bool) -> None:
    """Print a part's mirrors in their order, 80 columns wide, each with what it was judged by."""
    click.echo(title)
    place = 0
    for one in ranked:
        place += one.passed
        click.echo(_line(one, place))
        for text in [] if quiet else _why(one):
            click.echo(textwrap.fill(text, _WIDTH, initial_indent="      ", subsequent_indent="        "))


def _line(one: Ranked, place: int) -> str:
    if not one.passed:
        state = "not passed" if one.measured.answered else "not reached"
        return f"  -  {one.mirror:<22} {state}: {', '.join(sorted(one.only))}"
    rate, latency = one.measured.rate, one.measured.latency
    speed = f"{rate.speed / 1e6:.1f} MB/s" if rate is not None else "no rate"
    delay = f"{latency.total * 1e3:.1f} ms" if latency is not None else "no latency"
    return f"{place:>3}  {one.mirror:<22} {one.score:>5.1f} of 100   {speed:>12}   {delay:>10}"


def _why(one: Ranked) -> list[str]:
    """Return the gates, the failed ones first, and of who passed them the points."""
    order = sorted(one.gates, key=lambda gate: gate.passed is not False)
    words = {True: "passed", False: "failed", None: "not told"}
    said = [f"{gate.name} {_word(gate.hard, words[gate.passed])}: {gate.why}" for gate in order]
    points = [f"{mark.name} {mark.points:g} of {mark.of:g}: {mark.why}" for mark in one.marks]
    shown = [*said, *points] if one.passed else said[: max(1, len(one.only))]
    return [*shown, *(f"note: {note}" for note in one.notes), *(["as stored"] if one.measured.stored else [])]


def _word(hard: bool, word: str) -> str:  # noqa: FBT001 (two words, private)
    return "told" if not hard and word == "failed" else word
