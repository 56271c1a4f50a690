"""Choose the mirrors of a command, print why, and print the ranking of a probe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

import click
from click.core import ParameterSource

from envcheck.cli import Settings
from envcheck.cli.sources.fetch_request import CellLocks, FetchRequest, locked_packages, parse_request, profile_client
from envcheck.errors import ConfigError
from envcheck.images.lockfile import Lock
from envcheck.mirrors.hub.api import trusted_endpoint
from envcheck.mirrors.hub.download import read_revision
from envcheck.mirrors.hub.revision import Reference, Revision
from envcheck.mirrors.probe import choose
from envcheck.mirrors.probe.choose import Target, choose_for_locks, hub_target, lock_targets, resolved
from envcheck.mirrors.probe.measure import Mirror
from envcheck.mirrors.probe.ranking import Criterion, RankedMirror
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.load import load
from envcheck.mirrors.profiles.model import Profile

AUTO: Final = "auto"
_WIDTH: Final = 80
_NAME: Final = 22


def probe_targets(
    settings: Settings, request: FetchRequest, mirrors: Sequence[Mirror], *, verify: bool
) -> list[Target]:
    """Return what to probe for: the files of the request."""
    requested = parse_request(settings, request, one_cell=True)
    if isinstance(requested, list):
        packages = [package for cell in requested for package in locked_packages(cell.locks)]
        return lock_targets(packages, verify=verify)
    return [hub_target(_resolved(requested, mirrors), verify=verify)]


def _resolved(requested: Revision | Reference, mirrors: Sequence[Mirror]) -> Revision:
    """Return the revision with hashes from a lock, or from the trusted endpoint."""
    return resolved(requested, mirrors) if isinstance(requested, Reference) else requested


def profile_for(settings: Settings, mirror: str, locks: Iterable[Lock]) -> Profile:
    """Return the profile of this name; for "auto", a profile of the mirrors that were probed for the locks.

    Print the choice if the command line does not name it, with the reasons of a probe.
    """
    if mirror != AUTO:
        profile = load(mirror)
        _print_mirror(settings, _implicit_choice(mirror), [])
        return profile
    choice = choose_for_locks(locked_packages(locks))
    _print_mirror(settings, *_split_reasons(choice.reasons))
    return choice.profile


def profile_to_fetch(
    settings: Settings, mirror: str, request: FetchRequest
) -> tuple[Profile, Revision | list[CellLocks]]:
    """Return the profile for a fetch, and the revision of the requested model or dataset, or the requested locks.

    Print the mirror only after the request is known to be right, so that an error is the only line.
    """
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


def _auto_profile(settings: Settings, request: FetchRequest) -> tuple[Profile, Revision | list[CellLocks]]:
    model = request.model is not None or request.dataset is not None
    if request.url is not None or (model and request.trust_mirror):
        message = "--mirror auto does not apply to a URL" if request.url else "--trust-mirror needs a named mirror"
        raise ConfigError(message, fix="pass --mirror NAME" if model else "leave --mirror out")
    requested = parse_request(settings, request, one_cell=True)
    if isinstance(requested, list):
        return profile_for(settings, AUTO, [lock for cell in requested for lock in cell.locks]), requested
    mirrors = choose.default_mirrors()
    revision = _resolved(requested, mirrors)
    choice = choose.choose_for_model(revision, mirrors)
    _print_mirror(settings, *_split_reasons(choice.reasons))
    return choice.profile, revision


def _implicit_choice(mirror: str) -> str | None:
    """Return the mirror and where it was chosen, if the command line does not name it; else None."""
    context = click.get_current_context(silent=True)
    if mirror == "user":
        name = model.read_choice()
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
    rate, latency = ranked.measured.rate, ranked.measured.latency
    speed = f"{rate.speed / 1e6:.1f} MB/s" if rate is not None else "no rate"
    delay = f"{latency * 1e3:.1f} ms" if latency is not None else "no latency"
    return f"{place:>3}  {name} {speed:>12}   {delay:>10}"


def _format_reasons(ranked: RankedMirror) -> list[str]:
    """Return the criteria, the failed ones first, and the measurements of a mirror that passed."""
    order = sorted(ranked.criteria, key=lambda gate: gate.passed is not False)
    lines = [f"{gate.name} {_word(gate)}: {gate.why}" for gate in order]
    rate = ranked.measured.rate
    if ranked.passed and rate is not None:
        interrupted = f", then {rate.why}" if rate.why else ""
        size = f"{rate.bytes / 1e6:.2f} MB from the middle of a file in {rate.seconds:.2f} s"
        lines.append(f"rate: {size}{interrupted}")
    elif ranked.passed:
        lines.append(f"rate {ranked.measured.rate_why}")
    else:
        lines = lines[: max(1, len(ranked.failed_criteria))]
    return [*lines, *(f"note: {note}" for note in ranked.notes)]


def _word(gate: Criterion) -> str:
    if gate.passed is None:
        return "not verified"
    return "passed" if gate.passed else "failed" if gate.hard else "noted"
