"""Versions of the released tree: each a directory of hard links with a manifest, one of them current. And eviction.

versions/N/            the files that a server serves, and manifest.json with the size and hash of each
current                a symlink to the version that is served, replaced by one rename(2)
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from envcheck.counting import counted
from envcheck.errors import PromiseError, UnavailableError, refuse
from envcheck.mirrors.store import tree
from envcheck.mirrors.store.objects import READ_ONLY, Store, StoredObject, digest_or_none, sync_folder
from envcheck.mirrors.store.tree import Contents

MANIFEST: Final = "manifest.json"
# Shares of the room: eviction starts above the first and stops at the second.
_HIGH: Final = 0.85
_LOW: Final = 0.75
# For so many seconds, another process may continue what a killed process left.
_STALE: Final = 86400.0


class TreeFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a tree. `size` in bytes."""

    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A version: its contents, and every file of the tree that they are released as."""

    schema: Literal["envcheck/tree/1"] = "envcheck/tree/1"
    contents: Contents
    files: list[TreeFile]


class ReleasedVersion(NamedTuple):
    """The version that is served; `new` is False if it was served already with the same files."""

    number: int
    new: bool


class VersionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One version. `bytes` counts each object once; `problem` says why its manifest cannot be read."""

    number: int
    current: bool
    files: int = 0
    wheels: int = 0
    models: int = 0
    bytes: int = 0
    problem: str | None = None


def release(store: Store, contents: Contents, *, keep: int, merge: bool = True) -> ReleasedVersion:
    """Release these contents, whose objects the caller has hashed, as a new version, and serve it.

    With `merge`, add them to those served now. Keeps the version served before, and `keep` versions in all. Makes no
    version if the one served is the same. Raises UnavailableError for a missing object.
    """
    with store.locked():
        served = current(store)
        before = read_manifest(store, served).contents if served is not None and merge else Contents()
        contents = tree.merge(before, contents)
        missing = [digest for digest in tree.object_sizes(contents) if not store.has(digest)]
        if missing:
            message = f"{store.root}: missing: {counted(len(missing), 'file')} to release, for example {missing[0]}"
            raise UnavailableError(message, fix="fetch them again: `envcheck store release CELL --mirror PROFILE`")
        number = max(numbers(store), default=0) + 1
        draft = _folder(store) / f".{number}.new"
        _remove(draft)
        try:
            manifest = _write_tree(store, contents, draft)
            whole = _folder(store) / str(served)
            same = (whole / MANIFEST).is_file() and (whole / MANIFEST).read_bytes() == (draft / MANIFEST).read_bytes()
            # Compares sizes, no hashes.
            if served is not None and same and not any(_difference(whole / file.path, file) for file in manifest.files):
                return ReleasedVersion(served, new=False)
            draft.rename(_folder(store) / str(number))
        finally:
            _remove(draft)  # a full disk gets its room back
        sync_folder(_folder(store))
        make_current(store, number)
        for old in [n for n in numbers(store)[:-keep] if n != served]:
            _remove(_folder(store) / str(old))
        return ReleasedVersion(number, new=True)


def _write_tree(store: Store, contents: Contents, draft: Path) -> Manifest:
    planned = tree.tree_files(contents)
    paths = {**planned.objects, **{path: store.add(page, Path(path).name) for path, page in planned.pages.items()}}
    if not draft.parent.is_dir():
        draft.parent.mkdir(parents=True)
        draft.parent.chmod(0o755)  # for the server's user, whatever the umask
    draft.mkdir()
    for path, digest in paths.items():
        store.view(digest, draft / path)
    sizes = {path: (draft / path).stat().st_size for path in paths}
    files = [TreeFile(path=path, size=sizes[path], sha256=digest) for path, digest in sorted(paths.items())]
    manifest = Manifest(contents=contents, files=files)
    (draft / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    _sync_tree(draft)
    return manifest


def _sync_tree(draft: Path) -> None:
    """Write the manifest and every directory entry to the disk; another user may serve the tree, whatever the umask."""
    with (draft / MANIFEST).open("rb") as file:
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), READ_ONLY)
    for folder in [draft, *(path for path in draft.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)
        sync_folder(folder)


def rollback(store: Store) -> int:
    """Serve the version before the one that is served, and return its number.

    Hashes all its files first. Raises PromiseError if one is missing or damaged; the version served then stays.
    """
    served = current(store)
    older = [number for number in numbers(store) if served is not None and number < served]
    if not older:
        refuse(f"{store.root}: no version before {served or 'the first'}", "see `envcheck store versions`")
    for file in read_manifest(store, older[-1]).files:
        path = _folder(store) / str(older[-1]) / file.path
        problem = _difference(path, file)
        if problem is None and digest_or_none(path) != file.sha256:
            problem = "it has another hash, or the disk cannot read it"
        if problem:
            message = f"cannot serve version {older[-1]}: {file.path}: {problem}"
            fix = "release its cells again (`envcheck store release CELL --replace`), which fetches damaged files again"
            raise PromiseError(message, fix=fix)
    with store.locked():
        make_current(store, older[-1])
    return older[-1]


def _difference(path: Path, file: TreeFile) -> str | None:
    if not path.is_file():
        return "it is not there"
    size = path.stat().st_size
    return None if size == file.size else f"it has {size} bytes, not {file.size}"


def remove_damaged(store: Store, digests: Iterable[str]) -> list[str]:
    """Remove the damaged objects among these from the store and from every version; return their names.

    A client that compares no hashes then gets no file instead of a wrong one, and the caller fetches it again.
    """
    removed = []
    for digest in digests:
        if not store.has(digest) or store.sound(digest):
            continue
        removed.append(store.name(digest) or digest)
        with store.locked():
            for number, manifest in read_manifests(store).items():
                for path in [file.path for file in manifest.files if file.sha256 == digest]:
                    (_folder(store) / str(number) / path).unlink(missing_ok=True)
            store.evict(digest)
    return removed


def current(store: Store) -> int | None:
    """Return the number of the version that is served, or None."""
    try:
        name = (store.root / "current").readlink().name
    except FileNotFoundError:
        return None
    return int(name) if name.isdecimal() and int(name) in numbers(store) else None


def numbers(store: Store) -> list[int]:
    """Return the numbers of all versions, oldest first."""
    root = _folder(store)
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def read_manifest(store: Store, number: int) -> Manifest:
    """Return a version's manifest. Raises PromiseError if it cannot be read."""
    path = _folder(store) / str(number) / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        message = f"{path}: not a valid manifest: {error}"
        fix = f"remove {path.parent}, or serve other files: `envcheck store release CELL --replace`"
        raise PromiseError(message, fix=fix) from error


def read_manifests(store: Store) -> dict[int, Manifest]:
    """Return the manifests that can be read, oldest version first."""
    manifests = {}
    for number in numbers(store):
        with contextlib.suppress(PromiseError):
            manifests[number] = read_manifest(store, number)
    return manifests


def _folder(store: Store) -> Path:
    return store.root / "versions"


def make_current(store: Store, number: int) -> None:
    """Have a server serve this version, by one rename."""
    fresh = store.root / ".current.new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(Path("versions") / str(number))
    fresh.replace(store.root / "current")
    sync_folder(store.root)


def _remove(root: Path) -> None:
    """Remove a version. It is renamed first, so that nobody sees half of it under its number."""
    if root.exists():
        removed = root.with_name(f".gone-{root.name}")
        shutil.rmtree(removed, ignore_errors=True)
        root.rename(removed)
        shutil.rmtree(removed)


def list_versions(store: Store) -> list[VersionSummary]:
    """Return every version, oldest first."""
    return [_summary(store, number, current=number == current(store)) for number in numbers(store)]


def _summary(store: Store, number: int, *, current: bool) -> VersionSummary:
    try:
        manifest = read_manifest(store, number)
    except PromiseError as error:
        return VersionSummary(number=number, current=current, problem=str(error))
    size, contents = sum({file.sha256: file.size for file in manifest.files}.values()), manifest.contents
    files, wheels, models = len(manifest.files), len(contents.wheels), len(contents.models)
    return VersionSummary(number=number, current=current, files=files, wheels=wheels, models=models, bytes=size)


class Eviction(NamedTuple):
    """What was evicted, or would be; the bytes that are `left` over the limit; those `used` before, of the `room`."""

    evicted: list[StoredObject]
    left: int
    used: int
    room: int


def gc(store: Store, *, size: int | None = None, dry: bool) -> Eviction:
    """Evict the least recently used objects; with `dry`, only tell what would be evicted.

    The room is the file system, or `size` bytes for the objects of the store alone. Keeps what a version has, and
    objects with another name elsewhere: unlinking these would free no room. Raises UnavailableError if a process uses
    the store.
    """
    with store.locked(), store.locked("users", fcntl.LOCK_EX | fcntl.LOCK_NB):
        if not dry:
            _remove_leftovers(store)
        objects = store.objects()
        disk = shutil.disk_usage(store.root)
        # As df does, do not count blocks that are reserved for root.
        used, room = (disk.used, disk.used + disk.free) if size is None else (sum(o.size for o in objects), size)
        excess = used - int(room * _LOW) if used > room * _HIGH else 0
        released = {file.sha256 for manifest in read_manifests(store).values() for file in manifest.files}
        chosen: list[StoredObject] = []
        for stored in sorted(objects, key=lambda stored: (stored.used, stored.sha256)):
            if excess > 0 and stored.sha256 not in released and stored.links == 1:
                chosen.append(stored)
                excess -= stored.size
        for stored in chosen if not dry else []:
            store.evict(stored.sha256)
        return Eviction(chosen, max(0, excess), used, room)


def _remove_leftovers(store: Store) -> None:
    """Remove what killed processes left a day ago: parts of objects, and names of objects for a build or an import."""
    for path in [*store.root.glob("sha256/??/.*"), *store.root.glob(".view-*"), *store.root.glob("import")]:
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime < _STALE:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
