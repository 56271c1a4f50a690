"""What `envcheck fetch` and `envcheck lock` are asked for: which files, by which hashes, from where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from envcheck.errors import ConfigError
from envcheck.safe_files import read_whole

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.fetch.request import WantedFile
    from envcheck.mirrors.hub.revision import Revision
    from envcheck.mirrors.net.client import Client
    from envcheck.mirrors.profiles.model import Profile


class FetchRequest(NamedTuple):
    """The options of a fetch that say what; one of the five."""

    url: str | None
    cell: str | None
    lock: Path | None
    model: str | None
    dataset: str | None
    sha256: str | None
    trust_mirror: bool

    def check(self) -> None:
        """Refuse none of them, and two of them."""
        names = {"URL": self.url, "CELL": self.cell, "--lock": self.lock}
        names |= {"--model": self.model, "--dataset": self.dataset}
        given = [name for name, value in names.items() if value is not None]
        if len(given) != 1:
            message = f"{' and '.join(given)} at once" if given else "nothing to fetch"
            fix = "give one of CELL, URL --sha256 HASH, --lock FILE, --model REPO@REV, --dataset REPO@REV"
            raise ConfigError(message, fix=fix)
        if self.sha256 is not None and self.url is None:
            message = f"--sha256 beside {given[0]}, whose files have their own"
            raise ConfigError(message, fix="leave it out")


def profile_client(profile: Profile, connections: int, *asked: str) -> Client:
    """Return a client with the profile's trust and credentials, for its own endpoints and those `asked`."""
    from envcheck.mirrors.hub.api import hub_client

    return hub_client(profile, *asked, connections=connections)


def requested_revision(asked: FetchRequest, profile: Profile) -> Revision | None:
    """Return the revision that is asked for, with its hashes from a lock or from who is trusted; None for no model."""
    from envcheck.mirrors.hub.api import trusted_endpoint
    from envcheck.mirrors.hub.download import read_revision
    from envcheck.mirrors.hub.revision import SCHEMA, parse_lock, parse_reference

    if asked.lock is not None:
        content = read_whole(asked.lock)
        return parse_lock(content, str(asked.lock)) if SCHEMA.encode() in content[:200] else None
    if asked.model is None and asked.dataset is None:
        return None
    ref = (
        parse_reference(asked.model, "model")
        if asked.model is not None
        else parse_reference(asked.dataset or "", "dataset")
    )
    endpoint = trusted_endpoint(profile, mirror=asked.trust_mirror)
    return read_revision(profile_client(profile, 8, endpoint), endpoint, ref)


def model_endpoints(asked: FetchRequest, profile: Profile) -> list[str]:
    """Return where a model's bytes come from, in order: the profile's endpoints, or who is trusted for the hashes."""
    from envcheck.mirrors.hub.api import trusted_endpoint

    if profile.hf.endpoints:
        return profile.hf.endpoints
    try:
        return [trusted_endpoint(profile, mirror=asked.trust_mirror)]
    except ConfigError as error:
        message = f"the mirror profile {profile.name} names no hf.endpoint: nothing says where the files come from"
        raise ConfigError(message, fix="name one that does, e.g. --mirror hf-mirror; `envcheck mirror list`") from error


def wanted_files(
    settings: Settings, asked: FetchRequest, profile: Profile, client: Client, to: Path
) -> list[WantedFile]:
    """Return the files that are asked for, where they may be had, and where they go."""
    if asked.url is not None:
        return [_wanted_url(asked.url, asked.sha256, to)]
    from envcheck.images.locks.lockfile import parse_requirements

    if asked.lock is not None:
        text = read_whole(asked.lock).decode(errors="replace")
        return _locked_files([parse_requirements(text, "base", str(asked.lock))], None, profile, client, to)
    from envcheck.data import data_path
    from envcheck.images.locks.lockfile import read_locks
    from envcheck.images.spec import select
    from envcheck.matrix.file.load import load

    cells = select(load(settings.matrix), (asked.cell or "",))
    found = []
    for cell in cells:
        locks = read_locks(data_path("images") / str(cell))
        if not locks:
            message = f"{cell} has no lock"
            raise ConfigError(message, fix=f"run `envcheck lock {cell}`")
        found += _locked_files(locks, cell.python, profile, client, to)
    return list({want.path: want for want in found}.values())


def _wanted_url(url: str, sha256: str | None, to: Path) -> WantedFile:
    from envcheck.mirrors.fetch.request import WantedFile
    from envcheck.mirrors.profiles.model import has_userinfo, redacted

    shown = redacted(url)
    if has_userinfo(url):
        message = f"a user or password in {shown}"
        raise ConfigError(message, fix="move it to a netrc file, and name that in a mirror profile")
    name = _file_name(url)
    if not url.startswith(("https://", "http://")) or name in {"", ".", ".."} or "/" in name:
        message = f"{shown!r} is no URL of a file"
        raise ConfigError(message, fix="write https://HOST/PATH/FILE")
    digest = re.fullmatch(r"(?:sha256:)?([0-9a-fA-F]{64})", sha256 or "")
    if digest is None:
        message = "no sha256 of 64 hexadecimal digits" if sha256 else f"{name}: nothing says what it must be"
        raise ConfigError(message, fix="give --sha256 HASH, from where the file is from and not from the mirror")
    return WantedFile((url,), digest[1].lower(), None, to / name)


def _file_name(url: str) -> str:
    try:
        name = unquote(urlsplit(url).path.rpartition("/")[2]) if urlsplit(url).hostname else ""
    except ValueError:
        return ""
    return name if name.isprintable() and len(name.encode()) <= 255 else ""  # noqa: PLR2004 (NAME_MAX, in bytes)


def _locked_files(
    locks: Sequence[Any], python: str | None, profile: Profile, client: Client, to: Path
) -> list[WantedFile]:
    from envcheck.mirrors.fetch.request import WantedFile
    from envcheck.mirrors.index.locate import LockedPackage, locate
    from envcheck.mirrors.profiles.model import network_indexes

    needs = [
        LockedPackage(pin.name, tuple(pin.sha256), lock.index, pin.version, python)
        for lock in locks
        for pin in lock.pins
    ]
    families = {"pypi": profile.pypi, "pytorch": profile.pytorch}
    local = {family: [index for index in known if index.local is not None] for family, known in families.items()}
    found = locate(
        needs,
        {
            family: [*local[family], *network_indexes(known, closed=profile.closed)]
            for family, known in families.items()
        },
        client,
    )
    return [WantedFile(file.urls, file.sha256, None, to / file.name, file.local, hint=file.size) for file in found]
