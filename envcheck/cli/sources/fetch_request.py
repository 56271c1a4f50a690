"""The request of `envcheck fetch` and `envcheck lock`: which files, with which hashes, from where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from envcheck.cli import Settings
from envcheck.cli.shared.parameter_types import architecture
from envcheck.data import data_path
from envcheck.errors import ConfigError
from envcheck.images.lockfile import Lock, parse_requirements, read_locks
from envcheck.images.spec import no_lock, select, select_one
from envcheck.images.targets import groups_of
from envcheck.matrix.file.load import load
from envcheck.mirrors.fetch.request import WantedFile
from envcheck.mirrors.hub.api import hub_client, trusted_endpoint
from envcheck.mirrors.hub.revision import SCHEMA, Reference, Revision, parse_lock, parse_reference
from envcheck.mirrors.index.locate import LockedPackage, locate
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.urls import split_sha256
from envcheck.mirrors.profiles.load import AUTO, BUILT_IN_NAMES, presets
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
    matrix = load(settings.matrix)
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


def profile_client(profile: Profile, connections: int, *request: str) -> Client:
    """Return a client with the profile's CA and credentials, for its own endpoints and the given ones."""
    return hub_client(profile, *request, connections=connections)


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
