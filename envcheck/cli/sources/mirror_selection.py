"""What `envcheck mirror probe` and `--mirror auto` share: the files of a lock, and the printed ranking."""

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
    from envcheck.cli.sources.fetch_request import CellLocks
    from envcheck.cli.sources.fetch_request import FetchRequest as What
    from envcheck.images.lockfile import Lock
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


def read_lock(path: Path) -> Lock:
    """Return the lock in a file."""
    from envcheck.images.lockfile import parse_requirements

    return parse_requirements(read_whole(path), "base", str(path))


def locked_files(locks: Iterable[Lock]) -> list[WantedPackage]:
    """Return the files of these locks."""
    from envcheck.mirrors.probe.file_matches import WantedPackage

    return [WantedPackage(pin.name, pin.version, tuple(pin.sha256), lock.index) for lock in locks for pin in lock.pins]


class ProbedSource:
    """The files to probe from one kind of source: a lock's index, a model's endpoint, or URLs."""

    def __init__(self, files: list[WantedPackage], measure: Measure, only: list[Mirror] | None = None) -> None:
        self.name = files[0].part
        self._files = files
        self._measure = measure
        self._only = only

    def able(self, mirrors: list[Mirror]) -> list[Mirror]:
        """Return the mirrors that have this kind of source."""
        from envcheck.mirrors.probe import effective_indexes

        if self._only is not None:
            return self._only
        return [mirror for mirror in mirrors if effective_indexes.has_source(mirror.profile, self.name)]

    def ranked(
        self,
        mirrors: list[Mirror],
        budget: Budget,
        *,
        age: float,
        offline: bool,
        no_redirects: bool,
        own_region: str | None,
    ) -> list[RankedMirror]:
        """Return the ranked mirrors, from stored or new measurements."""
        from envcheck.mirrors.probe.cache import cached_or_measured
        from envcheck.mirrors.probe.ranking import rank

        mirrors = self._only or mirrors
        measurements = cached_or_measured(mirrors, self._files, budget, age=age, offline=offline, measure=self._measure)
        return rank(measurements, no_redirects=no_redirects, own_region=own_region)


def probed_sources(
    settings: Settings, requested: dict[str, Any], mirrors: list[Mirror], *, named: bool
) -> list[ProbedSource]:
    """Return the sources of the one request: CELL, --lock, --model, --dataset or --need.

    `named`: the mirrors come from the command line, so they are compared with URLs too.
    """
    from envcheck.cli.sources.fetch_request import locked_cells
    from envcheck.mirrors.probe.hub import probe_hub
    from envcheck.mirrors.probe.hub import wanted_packages as files_of
    from envcheck.mirrors.probe.probe import probe
    from envcheck.mirrors.select.by_lock import split_by_part

    options = [name for name, value in requested.items() if value is not None]
    if len(options) != 1:
        message = f"{' and '.join(options)} exclude each other" if options else "no files are named"
        raise ConfigError(message, fix="give one of CELL, --lock FILE, --model or --dataset REPO@REV, --need URL")
    if requested["--need"]:
        return [_url_source(requested["--need"], mirrors, named=named)]
    hub_request = _hub_request(requested, mirrors)
    if hub_request is not None:
        return [
            ProbedSource(
                files_of(hub_request), lambda mirrors, _packages, budget: probe_hub(mirrors, hub_request, budget)
            )
        ]
    locks = (
        [read_lock(requested["--lock"])]
        if requested["--lock"] is not None
        else locked_cells(settings, requested["CELL"], one=True)[0].locks
    )
    return [ProbedSource(part, probe) for part in split_by_part(locked_files(locks))]


def _url_source(urls: tuple[str, ...], mirrors: list[Mirror], *, named: bool) -> ProbedSource:
    from envcheck.mirrors.probe import urls as probe_url

    need = probe_url.needed_file(urls)
    only = probe_url.url_mirrors(need, mirrors[0]) + (probe_url.named_mirrors(need, mirrors) if named else [])
    return ProbedSource(
        probe_url.wanted_packages(need),
        lambda mirrors, _packages, budget: probe_url.probe_urls(mirrors, need, budget),
        only,
    )


def _hub_request(requested: dict[str, Any], mirrors: list[Mirror]) -> HubProbeRequest | None:
    """Return the revision with hashes from a lock or the trusted endpoint; None if wheels are requested."""
    from envcheck.mirrors.hub.revision import SCHEMA, parse_lock, parse_reference
    from envcheck.mirrors.probe.hub import HubProbeRequest
    from envcheck.mirrors.select import by_model

    lock: Path | None = requested["--lock"]
    if lock is not None:
        content = read_whole(lock)
        return HubProbeRequest(parse_lock(content, str(lock))) if SCHEMA.encode() in content[:200] else None
    reference = requested["--model"] or requested["--dataset"]
    if reference is None:
        return None
    return by_model.hub_request(parse_reference(reference, "model" if requested["--model"] else "dataset"), mirrors)


def profile_for(settings: Settings, mirror: str, locks: Iterable[Lock]) -> Profile:
    """Return the profile of this name; for "auto", a profile of the mirrors that were probed for the locks.

    Print the choice if the command line does not name it, with the reasons of a probe.
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


def profile_to_fetch(settings: Settings, mirror: str, request: What) -> tuple[Profile, Revision | list[CellLocks]]:
    """Return the profile for a fetch, and the revision of the requested model or dataset, or the requested locks.

    Print the mirror only after the request is known to be right, so that an error is the only line.
    """
    from envcheck.cli.sources.fetch_request import parse_request, profile_client
    from envcheck.mirrors.hub.api import trusted_endpoint
    from envcheck.mirrors.hub.download import read_revision
    from envcheck.mirrors.hub.revision import Reference
    from envcheck.mirrors.profiles.load import load

    if mirror == AUTO:
        return _auto_profile(settings, request)
    profile, requested = load(mirror), parse_request(settings, request)
    trusted = trusted_endpoint(profile, mirror=request.trust_mirror) if isinstance(requested, Reference) else ""
    # A URL says itself where from.
    if request.url is None:
        _print_mirror(settings, _implicit_choice(mirror), [])
    if isinstance(requested, Reference):
        requested = read_revision(profile_client(profile, 8, trusted), trusted, requested)
    return profile, requested


def _auto_profile(settings: Settings, request: What) -> tuple[Profile, Revision | list[CellLocks]]:
    from envcheck.cli.sources.fetch_request import parse_request
    from envcheck.mirrors.hub.revision import Reference
    from envcheck.mirrors.probe.hub import HubProbeRequest
    from envcheck.mirrors.select import by_lock, by_model

    model = request.model is not None or request.dataset is not None
    if request.url is not None or (model and request.trust_mirror):
        message = "--mirror auto does not apply to a URL" if request.url else "--trust-mirror needs a named mirror"
        raise ConfigError(message, fix="pass --mirror NAME" if model else "leave --mirror out")
    requested = parse_request(settings, request, one_cell=True)
    if isinstance(requested, list):
        return profile_for(settings, AUTO, [lock for cell in requested for lock in cell.locks]), requested
    mirrors = by_lock.default_mirrors()
    hub_request = (
        by_model.hub_request(requested, mirrors) if isinstance(requested, Reference) else HubProbeRequest(requested)
    )
    choice = by_model.choose(hub_request, mirrors)
    _print_mirror(settings, *_split_reasons(choice.reasons))
    return choice.profile, hub_request.revision


def _implicit_choice(mirror: str) -> str | None:
    """Return the mirror and where it was chosen, if the command line does not name it; else None."""
    from envcheck.mirrors.profiles import user_choice

    context = click.get_current_context(silent=True)
    if mirror == "user":
        name = user_choice.read()
        return f"{name}: `envcheck mirror use` chose it" if name else "none chosen: each client uses its own default"
    if context is not None and context.get_parameter_source("mirror") is ParameterSource.ENVIRONMENT:
        return f"{mirror}: the environment names it"
    return None


def _split_reasons(why: Sequence[str]) -> tuple[str, list[str]]:
    """Return the first reason of each part as one line, and the other reasons."""
    first = {line.partition(": ")[0]: line for line in reversed(why)}
    return f"auto: {'; '.join(first.values())}", [line for line in why if line not in first.values()]


def _print_mirror(settings: Settings, mirror: str | None, why: Iterable[str]) -> None:
    if settings.quiet or mirror is None:
        return
    click.echo(f"mirror  {mirror}", err=True)
    for line in why:
        click.echo(textwrap.fill(line, _WIDTH, initial_indent="  ", subsequent_indent="    "), err=True)


def print_ranking(ranked: list[RankedMirror], title: str, *, quiet: bool) -> None:
    """Print the ranked mirrors of a source, 80 columns wide, each with its criteria and points."""
    click.echo(title)
    place = 0
    for ranked_mirror in ranked:
        place += ranked_mirror.passed
        click.echo(_format_line(ranked_mirror, place))
        for text in [] if quiet else _format_reasons(ranked_mirror):
            click.echo(textwrap.fill(text, _WIDTH, initial_indent="      ", subsequent_indent="        "))


def _format_line(ranked: RankedMirror, place: int) -> str:
    name = f"{ranked.mirror:<{_NAME}}" if len(ranked.mirror) <= _NAME else f"{ranked.mirror}\n{'':<{_NAME + 5}}"
    if not ranked.passed:
        silent = "not reached" if ranked.measured.missing is None else "not applicable"
        state = "not passed" if ranked.measured.answered else silent
        return f"  -  {name} {state}: {', '.join(sorted(ranked.failed_criteria))}"
    if not ranked.measured.answered:
        return f"{place:>3}  {name} all files are in this machine's directories"
    rate, latency = ranked.measured.rate, ranked.measured.latency
    speed = f"{rate.speed / 1e6:.1f} MB/s" if rate is not None else "no rate"
    delay = f"{latency.total * 1e3:.1f} ms" if latency is not None else "no latency"
    return f"{place:>3}  {name} {ranked.score:>5.1f} of 100   {speed:>12}   {delay:>10}"


def _format_reasons(ranked: RankedMirror) -> list[str]:
    """Return the criteria, the failed ones first, and the points of a mirror that passed."""
    order = sorted(ranked.criteria, key=lambda gate: gate.passed is not False)
    words = {True: "passed", False: "failed", None: "not verified"}
    gate_lines = [f"{gate.name} {_gate_word(gate.hard, words[gate.passed])}: {gate.why}" for gate in order]
    points = [f"{mark.name} {mark.points:g} of {mark.of:g}: {mark.why}" for mark in ranked.score_parts]
    lines = [*gate_lines, *points] if ranked.passed else gate_lines[: max(1, len(ranked.failed_criteria))]
    return [*lines, *(f"note: {note}" for note in ranked.notes), *(["as stored"] if ranked.measured.stored else [])]


def _gate_word(hard: bool, word: str) -> str:  # noqa: FBT001 (two words, private)
    return "noted" if not hard and word == "failed" else word
