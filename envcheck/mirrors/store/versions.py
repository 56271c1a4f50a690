"""Versions of a published tree: each a directory of hard links with a manifest, one of them current.

versions/N/            the files that a server serves, and manifest.json with the size and hash of each
current                a symlink to the version that is served, replaced by one rename(2)
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec

from envcheck.errors import ConfigError, PromiseError
from envcheck.mirrors.store import manifest as store_manifest
from envcheck.mirrors.store.filesystem import digest_or_none, sync_folder
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import Store

MANIFEST: Final = "manifest.json"
Progress = Callable[[int, int], None]
# (device, inode) -> sha256 of that file's bytes, None if the disk cannot read them.
Hashes = dict[tuple[int, int], str | None]


class TreeFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a tree. `size` in bytes; `licence` and `redistributable` are None if unknown."""

    path: str
    size: int
    sha256: str
    licence: str | None = None
    redistributable: bool | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A version: its contents, and every file of the tree that they are published as."""

    schema: Literal["envcheck/tree/1"] = "envcheck/tree/1"
    contents: Contents
    files: list[TreeFile]


def switch(store: Store, number: int, *, hashed: bool = True, progress: Progress = lambda _there, _all: None) -> None:
    """Serve another version, after checking that it has all its files and, if `hashed`, their hashes.

    Raises PromiseError if a file is missing or damaged; the version served then does not change.
    """
    _check_version(store, number, {} if hashed else None, progress)
    with store.locked():
        _check_version(store, number, None)
        make_current(store, number)


def _check_version(
    store: Store, number: int, hashes: Hashes | None, progress: Progress = lambda _there, _all: None
) -> None:
    if number not in numbers(store):
        existing = ", ".join(map(str, numbers(store))) or "none"
        message = f"{store.root}: no version {number}"
        raise ConfigError(message, fix=f"existing versions: {existing}")
    wrong = differences(folder(store) / str(number), read_manifest(store, number).files, hashes, progress)
    if wrong:
        path, problem = next((file.path, problem) for file, problem in wrong)
        more = f", and {len(wrong) - 1} more" if wrong[1:] else ""
        message = f"cannot serve version {number}: {path}: {problem}{more}"
        raise PromiseError(message, fix="repair it with `envcheck store verify --mirror PROFILE`, or choose another")


def rollback(store: Store, *, hashed: bool = True, progress: Progress = lambda _there, _all: None) -> int:
    """Switch to the version before the one that is served, and return its number."""
    served = current(store)
    older = [number for number in numbers(store) if served is not None and number < served]
    if not older:
        message = f"{store.root}: there is no version before {'the first' if served is None else served}"
        raise ConfigError(message, fix="see `envcheck store versions`")
    switch(store, older[-1], hashed=hashed, progress=progress)
    return older[-1]


def differences(
    root: Path,
    files: list[TreeFile],
    known_hashes: Hashes | None,
    progress: Progress = lambda _there, _all: None,
) -> list[tuple[TreeFile, str]]:
    """Return the missing or damaged files of the version below `root`, each with what is wrong.

    Adds the hashes it computes to `known_hashes`; with None, it compares sizes only.
    """
    done, total, wrong = 0, sum(file.size for file in files), []
    for file in files:
        progress(done, total)
        problem = difference(root / file.path, file, known_hashes)
        wrong += [(file, problem)] if problem else []
        done += file.size
    return wrong


def wrong_hash_text(digest: str | None) -> str:
    """Return the reason text for a file whose hash does not match; `digest` is None if it could not be read."""
    return "the disk cannot read it" if digest is None else "it has another hash"


def difference(path: Path, file: TreeFile, known_hashes: Hashes | None) -> str | None:
    """Return how a file is not what it must be, or None."""
    try:
        with path.open("rb") as stream:
            stat = os.fstat(stream.fileno())
            if stat.st_size != file.size:
                return f"it has {stat.st_size} bytes, not {file.size}"
            if known_hashes is None:
                return None
            inode = stat.st_dev, stat.st_ino
            if inode not in known_hashes:
                known_hashes[inode] = digest_or_none(stream.fileno())
            return None if known_hashes[inode] == file.sha256 else wrong_hash_text(known_hashes[inode])
    except FileNotFoundError:
        return "it is not there"


def current(store: Store) -> int | None:
    """Return the number of the version that is served, or None."""
    try:
        name = (store.root / "current").readlink().name
    except FileNotFoundError:
        return None
    return int(name) if name.isdecimal() and int(name) in numbers(store) else None


def numbers(store: Store) -> list[int]:
    """Return the numbers of all versions, oldest first."""
    root = folder(store)
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def read_manifest(store: Store, number: int) -> Manifest:
    """Return a version's manifest. Raises PromiseError if it cannot be read."""
    path = folder(store) / str(number) / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        message = f"{path}: not a valid manifest: {error}"
        raise PromiseError(message, fix=f"remove {path.parent}, and publish it again") from error


def read_manifests(store: Store) -> dict[int, Manifest]:
    """Return the manifest of every version, oldest first. Raises PromiseError if one cannot be read."""
    readable, errors = readable_manifests(store)
    for error in errors.values():
        raise error
    return readable


def readable_manifests(store: Store) -> tuple[dict[int, Manifest], dict[int, PromiseError]]:
    """Return the readable manifests, oldest first, and the errors of the others, without versions removed meanwhile."""
    readable, errors = dict[int, Manifest](), dict[int, PromiseError]()
    for number in numbers(store):
        try:
            readable[number] = read_manifest(store, number)
        except PromiseError as error:  # noqa: PERF203 (versions are few)
            if (folder(store) / str(number)).is_dir():
                errors[number] = error
    return readable, errors


def pinned_digests(store: Store) -> set[str]:
    """Return the digests of all objects that some version holds. Raises PromiseError if a manifest is unreadable."""
    return pinned_by(read_manifests(store).values())


def pinned_by(manifests: Iterable[Manifest]) -> set[str]:
    """Return the digests of all objects that these versions hold."""
    manifests = list(manifests)
    files = {file.sha256 for manifest in manifests for file in manifest.files}
    return files | {digest for manifest in manifests for digest in store_manifest.object_sizes(manifest.contents)}


def folder(store: Store) -> Path:
    """Return the directory of the versions."""
    return store.root / "versions"


def make_current(store: Store, number: int) -> None:
    """Have a server serve this version, by one rename."""
    fresh = store.root / ".current.new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(Path("versions") / str(number))
    fresh.replace(store.root / "current")
    sync_folder(store.root)


def remove_version(root: Path) -> None:
    """Remove a version. It is renamed first, so that nobody sees half of it under its number."""
    if root.exists():
        removed = root.with_name(f".gone-{root.name}")
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(removed)
        root.rename(removed)
        shutil.rmtree(removed)
