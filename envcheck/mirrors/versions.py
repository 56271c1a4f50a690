"""Versions of a published tree: each a directory of hard links with a manifest, one of them current.

versions/N/            what a server serves, and manifest.json: every path with its size and hash
current                a symlink to the version that is served, changed by one rename(2)
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final, Literal

import msgspec

from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.mirrors import contents as known
from envcheck.mirrors.contents import Contents
from envcheck.mirrors.publish import tree
from envcheck.mirrors.store import Store, sync

MANIFEST: Final = "manifest.json"


class File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a tree. `size` in bytes; licence and whether it may be passed on, where that is known."""

    path: str
    size: int
    sha256: str
    licence: str | None = None
    redistributable: bool | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a version holds: its contents, and every file of the tree that they are published as."""

    schema: Literal["envcheck/tree/1"] = "envcheck/tree/1"
    contents: Contents
    files: list[File]


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version as it is listed; `bytes` counts each object once."""

    number: int
    current: bool
    files: int
    wheels: int
    models: int
    bytes: int


def publish(store: Store, contents: Contents, *, keep: int, merge: bool = True) -> int:
    """Make a version of these contents, and with `merge` of what is served now, current; return its number.

    What a version needs is held while it is made. The version before it is kept, and `keep` of them in all.
    """
    with store.locked():
        served = current(store)
        if merge and served is not None:
            contents = known.merged(manifest(store, served).contents, contents)
        number = max(numbers(store), default=0) + 1
        draft = _folder(store) / f".{number}.new"
        _discard(draft)
        _fill(store, contents, draft)
        draft.rename(_folder(store) / str(number))
        sync(_folder(store))
        _point(store, number)
        for old in [n for n in numbers(store)[:-keep] if n != served]:
            _discard(_folder(store) / str(old))
        return number


def switch(store: Store, number: int) -> None:
    """Serve another version."""
    with store.locked():
        if number not in numbers(store):
            there = ", ".join(map(str, numbers(store))) or "none"
            message = f"{store.root}: no version {number}"
            raise ConfigError(message, fix=f"there are: {there}")
        _point(store, number)


def rollback(store: Store) -> int:
    """Serve the version before the one that is served, and return its number."""
    served = current(store)
    older = [number for number in numbers(store) if served is not None and number < served]
    if not older:
        message = f"{store.root}: there is no version before {'the first' if served is None else served}"
        raise ConfigError(message, fix="see `envcheck store versions`")
    switch(store, older[-1])
    return older[-1]


def current(store: Store) -> int | None:
    """Return the number of the version that is served, or None."""
    try:
        name = (store.root / "current").readlink().name
    except FileNotFoundError:
        return None
    return int(name) if name.isdecimal() and int(name) in numbers(store) else None


def numbers(store: Store) -> list[int]:
    """Return the versions there are, oldest first."""
    folder = _folder(store)
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def manifest(store: Store, number: int) -> Manifest:
    """Return what a version holds. Raise PromiseError for a manifest that cannot be read: it pins objects."""
    path = _folder(store) / str(number) / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        message = f"{path}: not to be read: {error}"
        raise PromiseError(message, fix=f"remove {path.parent}, and publish it again") from error


def listed(store: Store) -> list[Version]:
    """Return every version, oldest first."""
    return [_version(store, number) for number in numbers(store)]


def pinned(store: Store) -> set[str]:
    """Return the hashes of all objects that some version holds."""
    held = [manifest(store, number) for number in numbers(store)]
    files = {file.sha256 for one in held for file in one.files}
    return files | {digest for one in held for digest in known.objects(one.contents)}


def _version(store: Store, number: int) -> Version:
    held = manifest(store, number)
    sizes = {file.sha256: file.size for file in held.files}
    return Version(
        number=number,
        current=number == current(store),
        files=len(held.files),
        wheels=len(held.contents.wheels),
        models=len(held.contents.models),
        bytes=sum(sizes.values()),
    )


def _folder(store: Store) -> Path:
    return store.root / "versions"


def _fill(store: Store, contents: Contents, draft: Path) -> None:
    missing = [digest for digest in known.objects(contents) if not store.has(digest)]
    if missing:
        message = f"{store.root}: {len(missing)} of the files to publish are not there, {missing[0]} for one"
        raise UnavailableError(message, fix="fetch them again: `envcheck store publish --cell CELL --mirror PROFILE`")
    planned = tree(contents)
    written = {path: store.add(page, Path(path).name) for path, page in planned.pages.items()}
    paths = {**planned.objects, **written}
    draft.mkdir(parents=True)
    for path, digest in paths.items():
        store.view(digest, draft / path)
    wheels = {wheel.sha256: wheel for wheel in contents.wheels}
    files = []
    for path, digest in sorted(paths.items()):
        wheel = wheels.get(digest)
        licence, free = (wheel.licence, wheel.redistributable) if wheel else (None, None)
        size = (draft / path).stat().st_size
        files.append(File(path=path, size=size, sha256=digest, licence=licence, redistributable=free))
    told = Manifest(contents=contents, files=files)
    (draft / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")
    _settle(draft)


def _settle(draft: Path) -> None:
    """Have the manifest and every directory entry on the disk before the version gets its name."""
    file = os.open(draft / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
    for folder in [path for path in draft.rglob("*") if path.is_dir()]:
        sync(folder)
    sync(draft)


def _point(store: Store, number: int) -> None:
    fresh = store.root / ".current.new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(Path("versions") / str(number))
    fresh.replace(store.root / "current")
    sync(store.root)


def _discard(folder: Path) -> None:
    """Take a version away: its name first, so that no half of it is ever seen under it."""
    if folder.exists():
        gone = folder.with_name(f".gone-{folder.name}")
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(gone)
        folder.rename(gone)
        shutil.rmtree(gone)
