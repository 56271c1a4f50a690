"""Versions of a published tree: each a directory of hard links with a manifest, one of them current.

versions/N/            the files that a server serves, and manifest.json with the size and hash of each
current                a symlink to the version that is served, replaced by one rename(2)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from envcheck.counting import counted
from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.mirrors.store import manifest as store_manifest
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import READ_ONLY, Store, digest_or_none, sync_folder
from envcheck.mirrors.store.tree_files import tree_files

MANIFEST: Final = "manifest.json"
Progress = Callable[[int, int], None]
# (device, inode) -> sha256 of that file's bytes, None if the disk cannot read them.
Hashes = dict[tuple[int, int], str | None]


class TreeFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a tree. `size` in bytes."""

    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A version: its contents, and every file of the tree that they are published as."""

    schema: Literal["envcheck/tree/1"] = "envcheck/tree/1"
    contents: Contents
    files: list[TreeFile]


class PublishedVersion(NamedTuple):
    """The version that is served; `new` is False if it was served already with the same files."""

    number: int
    new: bool


class VersionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One version. `bytes` counts each object once."""

    number: int
    current: bool
    files: int
    wheels: int
    models: int
    bytes: int


def publish(
    store: Store,
    contents: Contents,
    *,
    keep: int,
    merge: bool = True,
    checked: Collection[str] = (),
    progress: Progress = lambda _there, _all: None,
) -> PublishedVersion:
    """Publish these contents as a new version and serve it; with `merge`, add them to those served now.

    Objects that are in no version yet and not in `checked` (digests that the caller has hashed) are hashed first,
    without the lock: the caller must hold them with `Store.held`. Keeps the version served before, and `keep` versions
    in all. Makes no version if the one served has the same contents.
    Raises PromiseError for a damaged object, UnavailableError for a missing one.
    """
    _hash_new(store, contents, {*checked, *pinned_digests(store)}, progress)
    with store.locked():
        served = current(store)
        served_manifest = read_manifest(store, served) if served is not None else None
        contents = store_manifest.merge(served_manifest.contents if served_manifest and merge else Contents(), contents)
        if (
            served is not None
            and served_manifest
            and _is_unchanged(folder(store) / str(served), served_manifest, contents)
        ):
            return PublishedVersion(served, new=False)
        _require_objects(store, contents)
        number = max(numbers(store), default=0) + 1
        draft = folder(store) / f".{number}.new"
        remove_version(draft)
        try:
            _write_tree(store, contents, draft)
        except BaseException:
            remove_version(draft)  # a full disk gets its room back
            raise
        draft.rename(folder(store) / str(number))
        sync_folder(folder(store))
        make_current(store, number)
        for old in [n for n in numbers(store)[:-keep] if n != served]:
            remove_version(folder(store) / str(old))
        return PublishedVersion(number, new=True)


def _is_unchanged(root: Path, manifest: Manifest, contents: Contents) -> bool:
    """Tell whether publishing these contents would give this version again; compares sizes of its files, no hashes."""
    planned = tree_files(contents)
    pages = {path: hashlib.sha256(page).hexdigest() for path, page in planned.pages.items()}
    if manifest.contents != contents or {file.path: file.sha256 for file in manifest.files} != {
        **planned.objects,
        **pages,
    }:
        return False
    return not any(_difference(root / file.path, file, None) for file in manifest.files)


def _hash_new(store: Store, contents: Contents, hashed: Collection[str], progress: Progress) -> None:
    """Hash the objects that are in no version yet. Raises PromiseError for one that has another hash."""
    sizes = store_manifest.object_sizes(contents)
    unhashed = {digest: size or 0 for digest, size in sizes.items() if digest not in hashed}
    done, total = 0, sum(unhashed.values())
    for digest, size in unhashed.items():
        progress(done, total)
        if not store.sound(digest) and store.has(digest):
            message = f"{store.name(digest) or digest} is damaged in {store.root}: it has another hash"
            raise PromiseError(message, fix="release again: that fetches it again")
        done += size


def _require_objects(store: Store, contents: Contents) -> None:
    missing = [digest for digest in store_manifest.object_sizes(contents) if not store.has(digest)]
    if missing:
        message = f"{store.root}: missing: {counted(len(missing), 'file')} to publish, for example {missing[0]}"
        raise UnavailableError(message, fix="fetch them again: `envcheck store release CELL --mirror PROFILE`")


def _write_tree(store: Store, contents: Contents, draft: Path) -> None:
    planned = tree_files(contents)
    written = {path: store.add(page, Path(path).name) for path, page in planned.pages.items()}
    paths = {**planned.objects, **written}
    if not draft.parent.is_dir():
        draft.parent.mkdir(parents=True)
        draft.parent.chmod(0o755)  # for the server's user, whatever the umask
    draft.mkdir()
    for path, digest in paths.items():
        store.view(digest, draft / path)
    files = [
        TreeFile(path=path, size=(draft / path).stat().st_size, sha256=digest) for path, digest in sorted(paths.items())
    ]
    manifest = Manifest(contents=contents, files=files)
    (draft / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    _sync_tree(draft)


def _sync_tree(draft: Path) -> None:
    """Write the manifest and every directory entry to the disk before the version gets its name.

    The server may run as another user, so all may read the tree, whatever the umask. Only the owner decides who may
    enter the store's own directory.
    """
    with (draft / MANIFEST).open("rb") as file:
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), READ_ONLY)
    for folder in [path for path in draft.rglob("*") if path.is_dir()]:
        folder.chmod(0o755)
        sync_folder(folder)
    draft.chmod(0o755)
    sync_folder(draft)


def rollback(store: Store, progress: Progress = lambda _there, _all: None) -> int:
    """Serve the version before the one that is served, and return its number.

    Hashes all its files first. Raises PromiseError if one is missing or damaged; the version served then stays.
    """
    served = current(store)
    older = [number for number in numbers(store) if served is not None and number < served]
    if not older:
        message = f"{store.root}: there is no version before {'the first' if served is None else served}"
        raise ConfigError(message, fix="see `envcheck store versions`")
    number = older[-1]
    wrong = _differences(folder(store) / str(number), read_manifest(store, number).files, progress)
    if wrong:
        more = f", and {len(wrong) - 1} more" if wrong[1:] else ""
        message = f"cannot serve version {number}: {wrong[0]}{more}"
        fix = "release its cells again (`envcheck store release CELL --replace`), which fetches damaged files again"
        raise PromiseError(message, fix=fix)
    with store.locked():
        make_current(store, number)
    return number


def _differences(root: Path, files: list[TreeFile], progress: Progress) -> list[str]:
    hashes: Hashes = {}
    done, total, wrong = 0, sum(file.size for file in files), []
    for file in files:
        progress(done, total)
        problem = _difference(root / file.path, file, hashes)
        wrong += [f"{file.path}: {problem}"] if problem else []
        done += file.size
    return wrong


def remove_damaged(store: Store, digests: Iterable[str], progress: Progress = lambda _there, _all: None) -> list[str]:
    """Remove the damaged objects among these from the store and from every version; return their names.

    A client that compares no hashes then gets no file instead of a wrong one, and the caller fetches it again.
    """
    present, removed = [digest for digest in digests if store.has(digest)], []
    for done, digest in enumerate(present):
        progress(done, len(present))
        if store.sound(digest):
            continue
        removed.append(store.name(digest) or digest)
        with store.locked():
            for number, manifest in read_manifests(store).items():
                for path in [file.path for file in manifest.files if file.sha256 == digest]:
                    (folder(store) / str(number) / path).unlink(missing_ok=True)
            store.evict(digest)
    return removed


def _difference(path: Path, file: TreeFile, known_hashes: Hashes | None) -> str | None:
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
            return None if known_hashes[inode] == file.sha256 else _wrong_hash(known_hashes[inode])
    except FileNotFoundError:
        return "it is not there"


def _wrong_hash(digest: str | None) -> str:
    return "the disk cannot read it" if digest is None else "it has another hash"


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
    manifests = {}
    for number in numbers(store):
        try:
            manifests[number] = read_manifest(store, number)
        except PromiseError:  # noqa: PERF203 (versions are few)
            if (folder(store) / str(number)).is_dir():  # else another process has removed it meanwhile
                raise
    return manifests


def pinned_digests(store: Store) -> set[str]:
    """Return the digests of all objects that some version holds. Raises PromiseError if a manifest is unreadable."""
    manifests = read_manifests(store).values()
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


def list_versions(store: Store) -> list[VersionSummary]:
    """Return every version, oldest first. Raises PromiseError if a manifest cannot be read."""
    served = current(store)
    return [_summary(number, manifest, current=number == served) for number, manifest in read_manifests(store).items()]


def _summary(number: int, manifest: Manifest, *, current: bool) -> VersionSummary:
    sizes = {file.sha256: file.size for file in manifest.files}
    return VersionSummary(
        number=number,
        current=current,
        files=len(manifest.files),
        wheels=len(manifest.contents.wheels),
        models=len(manifest.contents.models),
        bytes=sum(sizes.values()),
    )
