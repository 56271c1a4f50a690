"""What `envcheck mirror probe` and `--mirror auto` have in common: what a lock asks for, and what is said of it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from envcheck.errors import ConfigError
from envcheck.safe_files import read_whole

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.cli.sources.fetch_request import FetchRequest as What
    from envcheck.images.locks.model import Lock
    from envcheck.mirrors.hub.revision import Revision
    from envcheck.mirrors.probe.budget import Budget
    from envcheck.mirrors.probe.file_matches import WantedPackage
    from envcheck.mirrors.probe.hub import HubProbeRequest
    from envcheck.mirrors.probe.measurements import MirrorMeasurement
    from envcheck.mirrors.probe.probe import Mirror
    from envcheck.mirrors.probe.ranking import RankedMirror
    from envcheck.mirrors.profiles.model import Profile

    Measure = Callable[[Sequence[Mirror], Sequence[WantedPackage], Budget], list[MirrorMeasurement]]

AUTO: Final = "auto"
_WIDTH: Final = 80
_NAME: Final = 22


def cell_locks(settings: Settings, selector: str) -> list[Lock]:
    """Return the locks of the one cell that a selector names."""
    from envcheck.data import data_path
    from envcheck.images.locks.lockfile import read_locks
    from envcheck.images.spec import select
    from envcheck.matrix.file.load import load

    cells = select(load(settings.matrix), (selector,))
    if len(cells) != 1:
        message = f"{selector!r} names {len(cells)} cells"
        raise ConfigError(message, fix=f"probe for one at a time, e.g. {cells[0]}")
    locks = read_locks(data_path("images") / str(cells[0]))
    if not locks:
        message = f"{cells[0]} has no lock"
        raise ConfigError(message, fix=f"run `envcheck lock {cells[0]}` where its index can be reached")
    return locks


def read_lock(path: Path) -> Lock:
    """Return the lock in a file."""
    from envcheck.images.locks.lockfile import parse_requirements

    return parse_requirements(read_whole(path).decode(errors="replace"), "base", str(path))


def locked_files(locks: Iterable[Lock]) -> list[WantedPackage]:
    """Return what locks ask a mirror for."""
    from envcheck.mirrors.probe.file_matches import WantedPackage

    return [WantedPackage(pin.name, pin.version, tuple(pin.sha256), lock.index) for lock in locks for pin in lock.pins]


class ProbedSource:
    """What is needed of one kind of source: a lock's index, a model's endpoint, or URLs."""

    def __init__(self, asked: list[WantedPackage], measure: Measure, only: list[Mirror] | None = None) -> None:
        self.name = asked[0].part
        self._asked = asked
        self._measure = measure
        self._only = only

    def able(self, mirrors: list[Mirror]) -> list[Mirror]:
        """Return the mirrors that have such a source at all."""
        from envcheck.mirrors.probe import effective_indexes

        return [mirror for mirror in mirrors if effective_indexes.has_source(mirror.profile, self.name)]

    def ranked(
        self, mirrors: list[Mirror], budget: Budget, *, age: float, offline: bool, no_redirects: bool, here: str | None
    ) -> list[RankedMirror]:
        """Return the mirrors in their order, by what is stored or by what is measured now."""
        from envcheck.mirrors.probe.cache import cached_or_measured
        from envcheck.mirrors.probe.ranking import rank

        mirrors = self._only or mirrors
        found = cached_or_measured(mirrors, self._asked, budget, age=age, offline=offline, measure=self._measure)
        return rank(found, no_redirects=no_redirects, own_region=here)


def probed_sources(
    settings: Settings, wanted: dict[str, Any], mirrors: list[Mirror], *, named: bool
) -> list[ProbedSource]:
    """Return the parts of the one thing that is wanted: CELL, --lock, --model, --dataset or --need.

    `named` says that the mirrors are those of the command line: they are compared with URLs too.
    """
    from envcheck.mirrors.probe.hub import probe_hub
    from envcheck.mirrors.probe.hub import wanted_packages as files_of
    from envcheck.mirrors.probe.probe import probe
    from envcheck.mirrors.select.by_lock import split_by_part

    given = [name for name, value in wanted.items() if value is not None]
    if len(given) != 1:
        message = f"{' and '.join(given)} at once" if given else "nothing says which files are needed"
        raise ConfigError(message, fix="give one of CELL, --lock FILE, --model or --dataset REPO@REV, --need URL")
    if wanted["--need"]:
        return [_url_source(wanted["--need"], mirrors, named=named)]
    wish = _hub_request(wanted, mirrors)
    if wish is not None:
        return [ProbedSource(files_of(wish), lambda some, _asked, budget: probe_hub(some, wish, budget))]
    locks = [read_lock(wanted["--lock"])] if wanted["--lock"] is not None else cell_locks(settings, wanted["CELL"])
    return [ProbedSource(part, probe) for part in split_by_part(locked_files(locks))]


def _url_source(urls: tuple[str, ...], mirrors: list[Mirror], *, named: bool) -> ProbedSource:
    from envcheck.mirrors.probe import urls as probe_url

    need = probe_url.needed_file(urls)
    only = probe_url.url_mirrors(need, mirrors[0]) + (probe_url.named_mirrors(need, mirrors) if named else [])
    return ProbedSource(
        probe_url.wanted_packages(need), lambda some, _asked, budget: probe_url.probe_urls(some, need, budget), only
    )


def _hub_request(wanted: dict[str, Any], mirrors: list[Mirror]) -> HubProbeRequest | None:
    """Return the revision with its hashes: from a lock, or from who is trusted; None where wheels are wanted."""
    from envcheck.mirrors.hub.revision import SCHEMA, parse_lock, parse_reference
    from envcheck.mirrors.probe.hub import HubProbeRequest
    from envcheck.mirrors.select import by_model

    lock: Path | None = wanted["--lock"]
    if lock is not None:
        content = read_whole(lock)
        return HubProbeRequest(parse_lock(content, str(lock))) if SCHEMA.encode() in content[:200] else None
    named = wanted["--model"] or wanted["--dataset"]
    if named is None:
        return None
    return by_model.hub_request(parse_reference(named, "model" if wanted["--model"] else "dataset"), mirrors)


def profile_for(settings: Settings, mirror: str, locks: Iterable[Lock]) -> Profile:
    """Return the profile of a name; of "auto", the mirrors that were probed for the locks.

    Say which it is where the command line does not name it, and why it is those that were probed.
    """
    from envcheck.mirrors.profiles.load import load

    if mirror != AUTO:
        profile = load(mirror)
        _print_mirror(settings, _implicit_choice(mirror), [])
        return profile
    from envcheck.mirrors.select.by_lock import choose

    choice = choose(locked_files(locks))
    _print_mirror(settings, *_split_reasons(choice.reasons))
    return choice.profile


def profile_to_fetch(settings: Settings, mirror: str, what: What) -> tuple[Profile, Revision | None]:
    """Return the profile that a fetch uses, and the model's or dataset's revision where one is asked for."""
    from envcheck.cli.sources.fetch_request import requested_revision
    from envcheck.mirrors.profiles.load import load

    if mirror != AUTO:
        # A URL says itself where from.
        profile = load(mirror) if what.url is not None else profile_for(settings, mirror, [])
        return profile, requested_revision(what, profile)
    model = what.model is not None or what.dataset is not None
    if what.url is not None or (model and what.trust_mirror):
        message = "--mirror auto for a URL" if what.url else "--trust-mirror and no mirror that is named"
        raise ConfigError(message, fix="name a mirror" if model else "leave it out: the URL says where from")
    if what.cell is not None:
        return profile_for(settings, mirror, cell_locks(settings, what.cell)), None
    return _auto_profile(settings, what)


def _auto_profile(settings: Settings, what: What) -> tuple[Profile, Revision | None]:
    from envcheck.mirrors.select import by_lock, by_model

    mirrors = by_lock.default_mirrors()
    wish = _hub_request({"--lock": what.lock, "--model": what.model, "--dataset": what.dataset}, mirrors)
    if wish is None:
        return profile_for(settings, AUTO, [read_lock(what.lock)] if what.lock is not None else []), None
    choice = by_model.choose(wish, mirrors)
    _print_mirror(settings, *_split_reasons(choice.reasons))
    return choice.profile, wish.revision


def _implicit_choice(mirror: str) -> str | None:
    """Return what a mirror is that the command line does not name, and who chose it; None where it names one."""
    from envcheck.mirrors.profiles import user_choice

    context = click.get_current_context(silent=True)
    if mirror == "user":
        name = user_choice.read()
        return f"{name}: `envcheck mirror use` chose it" if name else "none was chosen: every client's own default"
    if context is not None and context.get_parameter_source("mirror") is ParameterSource.ENVIRONMENT:
        return f"{mirror}: the environment names it"
    return None


def _split_reasons(why: Sequence[str]) -> tuple[str, list[str]]:
    """Return the sentence of each part's first mirror as one line, and the other sentences."""
    first = {line.partition(": ")[0]: line for line in reversed(why)}
    return f"auto: {'; '.join(first.values())}", [line for line in why if line not in first.values()]


def _print_mirror(settings: Settings, mirror: str | None, why: Iterable[str]) -> None:
    if settings.quiet or mirror is None:
        return
    click.echo(f"mirror  {mirror}", err=True)
    for line in why:
        click.echo(textwrap.fill(line, _WIDTH, initial_indent="  ", subsequent_indent="    "), err=True)


def print_ranking(ranked: list[RankedMirror], title: str, *, quiet: bool) -> None:
    """Print a part's mirrors in their order, 80 columns wide, each with what it was judged by."""
    click.echo(title)
    place = 0
    for one in ranked:
        place += one.passed
        click.echo(_format_line(one, place))
        for text in [] if quiet else _format_reasons(one):
            click.echo(textwrap.fill(text, _WIDTH, initial_indent="      ", subsequent_indent="        "))


def _format_line(one: RankedMirror, place: int) -> str:
    name = f"{one.mirror:<{_NAME}}" if len(one.mirror) <= _NAME else f"{one.mirror}\n{'':<{_NAME + 5}}"
    if not one.passed:
        state = "not passed" if one.measured.answered else "not reached"
        return f"  -  {name} {state}: {', '.join(sorted(one.failed_criteria))}"
    if not one.measured.answered:
        return f"{place:>3}  {name} all of it in this machine's directories"
    rate, latency = one.measured.rate, one.measured.latency
    speed = f"{rate.speed / 1e6:.1f} MB/s" if rate is not None else "no rate"
    delay = f"{latency.total * 1e3:.1f} ms" if latency is not None else "no latency"
    return f"{place:>3}  {name} {one.score:>5.1f} of 100   {speed:>12}   {delay:>10}"


def _format_reasons(one: RankedMirror) -> list[str]:
    """Return the gates, the failed ones first, and of who passed them the points."""
    order = sorted(one.criteria, key=lambda gate: gate.passed is not False)
    words = {True: "passed", False: "failed", None: "not told"}
    said = [f"{gate.name} {_gate_word(gate.hard, words[gate.passed])}: {gate.why}" for gate in order]
    points = [f"{mark.name} {mark.points:g} of {mark.of:g}: {mark.why}" for mark in one.score_parts]
    shown = [*said, *points] if one.passed else said[: max(1, len(one.failed_criteria))]
    return [*shown, *(f"note: {note}" for note in one.notes), *(["as stored"] if one.measured.stored else [])]


def _gate_word(hard: bool, word: str) -> str:  # noqa: FBT001 (two words, private)
    return "told" if not hard and word == "failed" else word
