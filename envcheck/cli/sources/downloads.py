"""Which files a command asks for, with which hashes, through which mirror."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import click
from click.core import ParameterSource

from envcheck.cli import Settings
from envcheck.cli.options import architecture
from envcheck.data import data_path
from envcheck.errors import ConfigError
from envcheck.images.lockfile import Lock, parse_requirements, read_locks
from envcheck.images.spec import no_lock, select, select_one
from envcheck.images.targets import groups_of
from envcheck.matrix.file.load import load as load_matrix
from envcheck.mirrors import probe
from envcheck.mirrors.fetch.request import WantedFile
from envcheck.mirrors.hub import (
    SCHEMA,
    Reference,
    Revision,
    parse_lock,
    parse_reference,
    read_revision,
    trusted_endpoint,
)
from envcheck.mirrors.index import LockedPackage, locate
from envcheck.mirrors.net.client import Client, hub_client
from envcheck.mirrors.net.urls import split_sha256
from envcheck.mirrors.probe import Mirror, Target, hub_target, lock_targets
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.load import AUTO, BUILT_IN_NAMES, load, presets
from envcheck.mirrors.profiles.model import Profile, has_userinfo, network_indexes, redacted
from envcheck.safe_files import read_whole


class FetchRequest(NamedTuple):
    """The options that name what to fetch; exactly one of the five."""

    url: str | None
    cell: str | None
    lock: Path | None
    model: str | None
    dataset: str | None
    sha256: str | None
    trust_mirror: bool

    def check(self) -> None:
        """Raise ConfigError unless exactly one is given."""
        names = {"URL": self.url, "CELL": self.cell, "--lock": self.lock}
        names |= {"--model": self.model, "--dataset": self.dataset}
        options = [name for name, value in names.items() if value is not None]
        if len(options) != 1:
            message = f"{' and '.join(options)} exclude each other" if options else "nothing to fetch"
            fix = "give one of CELL, URL --sha256 HASH, --lock FILE, --model REPO@REV, --dataset REPO@REV"
            raise ConfigError(message, fix=fix)
        if self.cell is not None:
            refuse_mirror(self.cell, "CELL or a URL")
        if self.cell is not None and self.sha256 is not None:
            message = f"--sha256 is for a URL, and {self.cell!r} is none"
            raise ConfigError(message, fix="write https://HOST/PATH/FILE; for a cell, leave --sha256 out")
        if self.sha256 is not None and self.url is None:
            message = f"--sha256 is for a URL: the files of {options[0]} have their own hashes"
            raise ConfigError(message, fix="leave --sha256 out")


def refuse_mirror(name: str, argument: str) -> None:
    """Raise ConfigError if the argument is the name or file of a mirror profile, or a URL that an option takes."""
    if name in {AUTO, *BUILT_IN_NAMES, *presets()} or set(name) & set("/:") or name.endswith((".yaml", ".yml")):
        message = f"{redacted(name)!r} is a mirror, but the argument is a {argument}"
        raise ConfigError(message, fix=f"pass it as --mirror {redacted(name)}")


class CellLocks(NamedTuple):
    """Locks whose files are fetched together, and the Python that their wheels are for, where a cell names it."""

    locks: list[Lock]
    python: str | None


def parse_request(
    settings: Settings, request: FetchRequest, *, one_cell: bool = False
) -> Revision | Reference | list[CellLocks]:
    """Return the request's revision, reference or locks, without the network; a URL has none of them.

    Raise ConfigError for a request that is wrong by itself.
    """
    if request.url is not None:
        return []
    if request.cell is not None:
        return locked_cells(settings, request.cell, one=one_cell)
    if request.lock is not None:
        content, where = read_whole(request.lock), str(request.lock)
        if SCHEMA.encode() in content[:200]:
            return parse_lock(content, where)
        return [CellLocks([parse_requirements(content, "base", where)], None)]
    return parse_reference(request.model or request.dataset or "", "model" if request.model else "dataset")


def locked_cells(settings: Settings, selector: str, *, one: bool) -> list[CellLocks]:
    """Return the locks for this machine of each cell that the selector matches; `one` refuses several cells."""
    matrix = load_matrix(settings.matrix)
    cells = [select_one(matrix, selector, "probe for")] if one else select(matrix, [selector])
    arch, groups = architecture("auto"), groups_of("runtime")
    locked = [CellLocks(read_locks(data_path("images") / str(cell), groups, arch), cell.python) for cell in cells]
    for cell, (locks, _) in zip(cells, locked, strict=True):
        if not locks:
            raise no_lock(cell, arch)
    return locked


def locked_packages(locks: Iterable[Lock], python: str | None = None) -> list[LockedPackage]:
    """Return the packages of these locks; `python` is the one that their wheels are for."""
    return [
        LockedPackage(pin.name, tuple(pin.sha256), lock.index, pin.version, python)
        for lock in locks
        for pin in lock.pins
    ]


def model_endpoints(request: FetchRequest, profile: Profile) -> list[str]:
    """Return the endpoints for a model's files, in order: the profile's, or the one that is trusted for hashes."""
    if profile.hf.endpoints:
        return profile.hf.endpoints
    try:
        return [trusted_endpoint(profile, mirror=request.trust_mirror)]
    except ConfigError as error:
        message = f"the mirror profile {profile.name} has no hf.endpoint"
        raise ConfigError(
            message, fix="pass one that has it, e.g. --mirror hf-mirror; see `envcheck mirror list`"
        ) from error


def wanted_files(
    request: FetchRequest, requested: Sequence[CellLocks], profile: Profile, client: Client, to: Path
) -> list[WantedFile]:
    """Return the files of the request's URL or locks with their URLs and paths."""
    if request.url is not None:
        return [_wanted_url(request.url, request.sha256, to)]
    files = [file for cell in requested for file in _locked_files(*cell, profile, client, to)]
    return list({file.path: file for file in files}.values())


def _wanted_url(url: str, sha256: str | None, to: Path) -> WantedFile:
    shown_url = redacted(url)
    if has_userinfo(url):
        message = f"{shown_url} contains a user or password"
        raise ConfigError(message, fix="move it to a netrc file, and name that in a mirror profile")
    name = _file_name(url)
    if not url.startswith(("https://", "http://")) or name in {"", ".", ".."} or "/" in name:
        message = f"{shown_url!r} is not the URL of a file"
        raise ConfigError(message, fix="write https://HOST/PATH/FILE")
    url, in_url = split_sha256(url)
    hashes = ({_digest(sha256, name)} if sha256 else set()) | ({in_url} if in_url else set())
    if len(hashes) != 1:
        message = f"{name}: {'--sha256 and the hash after # differ' if hashes else 'no expected hash'}"
        raise ConfigError(message, fix="pass --sha256 HASH; take the hash from the file's origin, not from the mirror")
    return WantedFile((url,), hashes.pop(), None, to / name, other_fix="check the URL")


def _digest(text: str, name: str) -> str:
    digest = re.fullmatch(r"(?:sha256:)?([0-9a-fA-F]{64})", text)
    if digest is None:
        message = f"{name}: {text[:70]!r} is no sha256: it has {len(text)} characters, not 64 hexadecimal digits"
        raise ConfigError(message, fix="pass --sha256 HASH; take the hash from the file's origin, not from the mirror")
    return digest[1].lower()


def _file_name(url: str) -> str:
    try:
        name = unquote(urlsplit(url).path.rpartition("/")[2]) if urlsplit(url).hostname else ""
    except ValueError:
        return ""
    return name if name.isprintable() and len(name.encode()) <= 255 else ""  # noqa: PLR2004 (NAME_MAX, in bytes)


def _locked_files(
    locks: Sequence[Lock], python: str | None, profile: Profile, client: Client, to: Path
) -> list[WantedFile]:
    packages = locked_packages(locks, python)
    families = {"pypi": profile.pypi, "pytorch": profile.pytorch}
    local = {family: [index for index in indexes if index.local is not None] for family, indexes in families.items()}
    located = locate(
        packages,
        {
            family: [*local[family], *network_indexes(indexes, closed=profile.closed)]
            for family, indexes in families.items()
        },
        client,
    )
    return [WantedFile(file.urls, file.sha256, None, to / file.name, file.local, hint=file.size) for file in located]


def probe_targets(settings: Settings, request: FetchRequest, mirrors: Sequence[Mirror]) -> list[Target]:
    """Return what to probe for: the files of the request."""
    requested = parse_request(settings, request, one_cell=True)
    if isinstance(requested, list):
        return lock_targets(package for cell in requested for package in locked_packages(cell.locks))
    return [hub_target(_resolved(requested, mirrors))]


def _resolved(requested: Revision | Reference, mirrors: Sequence[Mirror]) -> Revision:
    """Return the revision with hashes from a lock, or from the trusted endpoint."""
    return probe.resolved(requested, mirrors) if isinstance(requested, Reference) else requested


def _chosen(settings: Settings, targets: Sequence[Target], mirrors: Sequence[Mirror]) -> Profile:
    """Return a profile of the mirrors that pass a probe, and print which comes first, and why not the others."""
    profile, reasons = probe.choose(targets, mirrors)
    first = {line.partition(": ")[0]: line for line in reversed(reasons)}
    _print_mirror(settings, f"auto: {'; '.join(first.values())}")
    for line in reasons if not settings.quiet else ():
        if line not in first.values():
            click.echo(textwrap.fill(line, 80, initial_indent="  ", subsequent_indent="    "), err=True)
    return profile


def profile_for(settings: Settings, mirror: str, locks: Iterable[Lock]) -> Profile:
    """Return the profile of this name; for "auto", a profile of the mirrors that were probed for the locks.

    Print the choice if the command line does not name it, with the reasons of a probe.
    """
    if mirror == AUTO:
        return _chosen(settings, lock_targets(locked_packages(locks)), probe.default_mirrors())
    profile = load(mirror)
    _print_mirror(settings, _implicit_choice(mirror))
    return profile


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
        _print_mirror(settings, _implicit_choice(mirror))
    if isinstance(requested, Reference):
        requested = read_revision(hub_client(profile, trusted, connections=8), trusted, requested)
    return profile, requested


def _auto_profile(settings: Settings, request: FetchRequest) -> tuple[Profile, Revision | list[CellLocks]]:
    model = request.model is not None or request.dataset is not None
    if request.url is not None or (model and request.trust_mirror):
        message = "--mirror auto does not apply to a URL" if request.url else "--trust-mirror needs a named mirror"
        raise ConfigError(message, fix="pass --mirror NAME" if model else "leave --mirror out")
    requested = parse_request(settings, request, one_cell=True)
    if isinstance(requested, list):
        return profile_for(settings, AUTO, [lock for cell in requested for lock in cell.locks]), requested
    mirrors = probe.default_mirrors()
    revision = _resolved(requested, mirrors)
    return _chosen(settings, [hub_target(revision)], mirrors), revision


def _implicit_choice(mirror: str) -> str | None:
    """Return the mirror and where it was chosen, if the command line does not name it; else None."""
    context = click.get_current_context(silent=True)
    if mirror == "user":
        name = model.read_choice()
        return f"{name}: `envcheck mirror use` chose it" if name else "none chosen: each client uses its own default"
    if context is not None and context.get_parameter_source("mirror") is ParameterSource.ENVIRONMENT:
        return f"{mirror}: the environment names it"
    return None


def _print_mirror(settings: Settings, mirror: str | None) -> None:
    if not settings.quiet and mirror is not None:
        click.echo(f"mirror  {mirror}", err=True)
