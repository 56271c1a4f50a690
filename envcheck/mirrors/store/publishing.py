"""Publishing of a tree as the next version: what is new is hashed, linked and on the disk before it has its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import msgspec

from envcheck.counting import counted
from envcheck.errors import PromiseError, UnavailableError
from envcheck.mirrors.store import manifest as store_manifest
from envcheck.mirrors.store import versions
from envcheck.mirrors.store.filesystem import READ_ONLY, make_readable, sync_folder
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree_files import tree_files


class PublishedVersion(NamedTuple):
    """The version that is served; `new` is False if it was served already with the same files."""

    number: int
    new: bool


def publish(
    store: Store,
    contents: Contents,
    *,
    keep: int,
    merge: bool = True,
    checked: Collection[str] = (),
    progress: versions.Progress = lambda _there, _all: None,
) -> PublishedVersion:
    """Publish these contents as a new version and serve it; with `merge`, add them to those served now.

    Objects that are in no version yet and not in `checked` (digests that the caller has hashed) are hashed first,
    without the lock: the caller must hold them with `Store.held`. Keeps the version served before, and `keep` versions
    in all. Makes no version if the one served has the same contents.
    Raises PromiseError for a damaged object, UnavailableError for a missing one.
    """
    _hash_new(store, contents, {*checked, *versions.pinned_digests(store)}, progress)
    with store.locked():
        served = versions.current(store)
        served_manifest = versions.read_manifest(store, served) if served is not None else None
        contents = store_manifest.merge(served_manifest.contents if served_manifest and merge else Contents(), contents)
        if (
            served is not None
            and served_manifest
            and _is_unchanged(versions.folder(store) / str(served), served_manifest, contents)
        ):
            return PublishedVersion(served, new=False)
        _require_objects(store, contents)
        number = max(versions.numbers(store), default=0) + 1
        draft = versions.folder(store) / f".{number}.new"
        versions.remove_version(draft)
        try:
            _write_tree(store, contents, draft)
        except BaseException:
            versions.remove_version(draft)  # a full disk gets its room back
            raise
        draft.rename(versions.folder(store) / str(number))
        sync_folder(versions.folder(store))
        versions.make_current(store, number)
        for old in [n for n in versions.numbers(store)[:-keep] if n != served]:
            versions.remove_version(versions.folder(store) / str(old))
        return PublishedVersion(number, new=True)


def _is_unchanged(root: Path, manifest: versions.Manifest, contents: Contents) -> bool:
    """Tell whether publishing these contents would give this version again; compares sizes of its files, no hashes."""
    planned = tree_files(contents)
    pages = {path: hashlib.sha256(page).hexdigest() for path, page in planned.pages.items()}
    if manifest.contents != contents or {file.path: file.sha256 for file in manifest.files} != {
        **planned.objects,
        **pages,
    }:
        return False
    return not any(versions.difference(root / file.path, file, None) for file in manifest.files)


def _hash_new(store: Store, contents: Contents, hashed: Collection[str], progress: versions.Progress) -> None:
    """Hash the objects that are in no version yet. Raises PromiseError for one that has another hash."""
    sizes = store_manifest.object_sizes(contents)
    unhashed = {digest: size or 0 for digest, size in sizes.items() if digest not in hashed}
    done, total = 0, sum(unhashed.values())
    for digest, size in unhashed.items():
        progress(done, total)
        if not store.sound(digest) and store.has(digest):
            message = f"{store.name(digest) or digest} is damaged in {store.root}: it has another hash"
            raise PromiseError(message, fix="run `envcheck store verify`, then release again")
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
    make_readable(draft.parent)
    draft.mkdir()
    for path, digest in paths.items():
        store.view(digest, draft / path)
    wheels = {wheel.sha256: wheel for wheel in contents.wheels}
    files = []
    for path, digest in sorted(paths.items()):
        wheel = wheels.get(digest)
        licence, free = (wheel.licence, wheel.redistributable) if wheel else (None, None)
        size = (draft / path).stat().st_size
        files.append(versions.TreeFile(path=path, size=size, sha256=digest, licence=licence, redistributable=free))
    manifest = versions.Manifest(contents=contents, files=files)
    (draft / versions.MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    _sync_tree(draft)


def _sync_tree(draft: Path) -> None:
    """Write the manifest and every directory entry to the disk before the version gets its name.

    The server may run as another user, so all may read the tree, whatever the umask. Only the owner decides who may
    enter the store's own directory.
    """
    with (draft / versions.MANIFEST).open("rb") as file:
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), READ_ONLY)
    for folder in [path for path in draft.rglob("*") if path.is_dir()]:
        folder.chmod(0o755)
        sync_folder(folder)
    draft.chmod(0o755)
    sync_folder(draft)
