"""Find an sdist on the profile's indexes, pin it, and read what its build needs; nothing of it runs here."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envcheck import safe_files
from envcheck.data import state_path
from envcheck.errors import ConfigError, UnavailableError
from envcheck.images.lock_on_top import lock_build_requirements
from envcheck.images.lockfile import Lock, Pin, format_lock, parse_lock
from envcheck.images.source_builds.recipe import Sdist
from envcheck.images.spec import ImageSpec
from envcheck.images.wheels import sha256 as sha256_of
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.index import IndexFile, LockedPackage, local_files, locate, parse_file_name, read_project
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.profiles.model import Index, Profile
from envcheck.mirrors.store.objects import Store

_PYPROJECT: Final = "pyproject.toml"
# Bytes; the longest known ones have some tens of kB.
_LARGEST: Final = 1 << 20


class _BuildSystem(msgspec.Struct, frozen=True):
    requires: tuple[str, ...] = ("setuptools", "wheel")  # what pip assumes where a project says nothing (PEP 518)


class _Pyproject(msgspec.Struct, frozen=True):
    build_system: _BuildSystem = msgspec.field(default=_BuildSystem(), name="build-system")


def bring(
    store: Store, devel: ImageSpec, name: str, version: str, profile: Profile, means: Callable[[str], TransferOptions]
) -> Sdist:
    """Return a release's source, which is in the store then: as pinned by an earlier build, else as the index says.

    The index is trusted on first use: the sdist's hash and what builds it are kept for all later builds. Raise
    NotFoundError or UnavailableError if no index has it, PromiseError if its bytes have another hash.
    """
    known = pinned(devel, name, version)
    digest = known.sha256 if known else _listed(name, version, profile, means("asking the indexes").client)
    if not store.sound(digest):
        _fetch(store, name, version, digest, profile, means)
    if known is not None:
        return known
    source = store.path(digest)
    requires = lock_build_requirements(devel, build_requires(source, f"{name} {version}"), profile, f"{name} {version}")
    pins = [Pin(name=name, version=version, sha256=[digest]), *requires]
    path = _kept(devel, name, version)
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{name} {version}: its sdist, and what builds it on {devel.cell}"
    safe_files.replace(path, format_lock(Lock(group="devel", index="pypi", pins=pins), title).encode())
    return Sdist(name=name, version=version, sha256=digest, requires=requires)


def pinned(devel: ImageSpec, name: str, version: str) -> Sdist | None:
    """Return a release's source as an earlier build pinned it; None if there was none. Raises ConfigError."""
    path = _kept(devel, name, version)
    return _read(path, name, version) if path.is_file() else None


def _kept(devel: ImageSpec, name: str, version: str) -> Path:
    """Return where the pins of a source on a cell are kept."""
    return state_path("sdist-locks", f"{devel.cell}-{devel.arch}-{name}-{version}.lock")


def _read(path: Path, name: str, version: str) -> Sdist:
    fix = "delete it: the next build makes it anew"
    try:
        pins = parse_lock(path.read_text(encoding="utf-8"), "devel", str(path)).pins
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        reason = error.message if isinstance(error, ConfigError) else f"{path} cannot be read"
        raise ConfigError(reason, fix=fix) from error
    own = next((pin for pin in pins if pin.name == name and Version(pin.version) == Version(version)), None)
    if own is None or len(own.sha256) != 1:
        message = f"{path} pins no sdist of {name} {version}"
        raise ConfigError(message, fix=fix)
    return Sdist(name=name, version=version, sha256=own.sha256[0], requires=[pin for pin in pins if pin.name != name])


def _listed(name: str, version: str, profile: Profile, client: Client) -> str:
    """Return the hash of the sdist that a directory of this machine or the first index with a page has."""
    here = LockedPackage(name, (), version=version)
    local = [path for path in local_files(here, _indexes(profile)) if _is_sdist(path.name, name, version)]
    if local:
        return sha256_of(local[0])
    page = read_project(client, profile.pypi, profile, "pypi", "", name) or []
    file = sdist_of(page, name, version)
    if file is None or file.sha256 is None:
        lacking = "no sdist" if file is None else "no sha256 of the sdist"
        message = f"the index lists {lacking} of {name} {version}"
        raise UnavailableError(message, fix="pass --mirror with a profile whose index has it")
    return file.sha256


def sdist_of(files: Sequence[IndexFile], name: str, version: str) -> IndexFile | None:
    """Return the sdist (.tar.gz) of a release on a page; a withdrawn one only if it is the only one."""
    fitting = [file for file in files if _is_sdist(file.name, name, version)]
    return next((file for file in fitting if not file.yanked), next(iter(fitting), None))


def _is_sdist(file: str, name: str, version: str) -> bool:
    try:
        project, its_version, _ = parse_file_name(file)
    except ValueError:
        return False
    return file.endswith(".tar.gz") and canonicalize_name(project) == name and its_version == Version(version)


def _indexes(profile: Profile) -> Mapping[str, Sequence[Index]]:
    return {"pypi": profile.pypi}


def _fetch(
    store: Store, name: str, version: str, digest: str, profile: Profile, means: Callable[[str], TransferOptions]
) -> None:
    package = LockedPackage(name, (digest,), version=version)
    for path in local_files(package, _indexes(profile)):
        if sha256_of(path) == digest:
            store.adopt(path, digest)
            return
    for file in locate([package], _indexes(profile), means("asking the indexes").client):
        store.put(WantedFile(file.urls, digest, None, Path(file.name), hint=file.size), means(file.name))


def build_requires(sdist: Path, what: str) -> list[str]:
    """Return what pyproject.toml of an sdist requires to build it, without torch; ConfigError for a damaged sdist."""
    try:
        with tarfile.open(sdist, "r:gz") as archive:
            project = msgspec.toml.decode(_pyproject(archive), type=_Pyproject)
        requirements = [Requirement(line) for line in project.build_system.requires]
    except (tarfile.TarError, OSError, EOFError, msgspec.DecodeError, InvalidRequirement, ValueError) as error:
        message = f"the sdist of {what} is damaged: {' '.join(str(error).split())[:200] or type(error).__name__}"
        raise ConfigError(message, fix="take another version or another mirror") from error
    # The cell's torch is what it is built against, whichever one it would build against in isolation.
    return [str(each) for each in requirements if canonicalize_name(each.name) != "torch"]


def _pyproject(archive: tarfile.TarFile) -> bytes:
    for member in archive:
        _, _, rest = member.name.removeprefix("./").partition("/")
        if rest == _PYPROJECT and member.isfile():
            stream = archive.extractfile(member)
            return stream.read(_LARGEST) if stream else b""
    return b""
