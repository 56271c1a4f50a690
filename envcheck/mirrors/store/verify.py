"""Hash a store again, and repair damaged files from another source of the same bytes.

Sources are another copy in some version (where the file system made copies instead of links), the contents for an
index page, the wheel for its METADATA, and a mirror if the user names one. A file that cannot be repaired is removed
from the trees: a client that compares no hashes then gets no file instead of a wrong one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from envcheck.errors import PromiseError
from envcheck.mirrors.store import manifest as store_manifest
from envcheck.mirrors.store import versions
from envcheck.mirrors.store.filesystem import digest_or_none, ignore_read_only
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree_files import tree_files
from envcheck.mirrors.store.versions import Hashes, Manifest
from envcheck.mirrors.store.wheel_metadata import read_metadata

_LEFT: Final = {True: "left unchanged: the store is read-only", False: "no other copy found"}
OnObject = Callable[[str, int], None]
# Fetches these digests, which the contents name, into the store; maps each that failed to the reason.
Refetch = Callable[[set[str], Contents], dict[str, str]]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One damaged or missing file in the store, in the trees of some versions, or in both.

    `mended` names the source it was repaired from; if it is None, `left` says what happened to the file.
    """

    file: str
    sha256: str
    what: str
    versions: list[int]
    mended: str | None
    left: str | None = None


@dataclasses.dataclass
class _DamagedObject:
    """One digest: whether the store's object is `wrong`, the `places` in trees that lack it, and an intact `copy`."""

    what: str
    wrong: bool = False
    places: list[tuple[int, Path]] = dataclasses.field(default_factory=list)
    copy: Path | None = None
    mended: str | None = None
    left: str | None = None
    gone: bool = False


def verify(
    store: Store, on_object: OnObject = lambda _name, _size: None, refetch: Refetch | None = None
) -> list[Fault]:
    """Hash every object and every file of every version, and repair the damaged ones; return all faults.

    Calls `on_object` with the name and size in bytes of each object before it is hashed. A read-only store is not
    changed.
    """
    manifests = {number: _read_manifest(store, number) for number in versions.numbers(store)}
    readable = {number: manifest for number, manifest in manifests.items() if not isinstance(manifest, Fault)}
    hashes: Hashes = {}
    damaged = _check_objects(store, hashes, on_object)
    for number, manifest in readable.items():
        _check_tree(store, number, manifest, hashes, damaged)
    for number, manifest in readable.items():
        _find_copies(store, number, manifest, hashes, damaged)
    existing = set(versions.numbers(store))
    damaged = {digest: damage for digest, damage in damaged.items() if _still_damaged(store, digest, damage, existing)}
    contents = functools.reduce(store_manifest.merge, (manifest.contents for manifest in readable.values()), Contents())
    with ignore_read_only():
        if damaged:
            _repair(store, damaged, contents, refetch, [manifest.contents for manifest in readable.values()])
    faults = [_fault(store, contents, digest, damage) for digest, damage in sorted(damaged.items())]
    return [
        *(manifest for number, manifest in manifests.items() if isinstance(manifest, Fault) and number in existing),
        *faults,
    ]


def _still_damaged(store: Store, digest: str, damage: _DamagedObject, existing: set[int]) -> bool:
    """Tell whether the damage is still there: its version may have been removed meanwhile."""
    damage.places = [(number, path) for number, path in damage.places if number in existing]
    lost = damage.copy is not None and not store.has(digest)
    return bool(damage.wrong or damage.places or lost)


def _read_manifest(store: Store, number: int) -> Manifest | Fault:
    try:
        return versions.read_manifest(store, number)
    except PromiseError as error:
        file = f"versions/{number}/{versions.MANIFEST}"
        left = f"remove versions/{number}, and publish it again: until then nothing can be evicted or published"
        problem = error.message.partition(": ")[2]
        return Fault(file=file, sha256="", what=problem, versions=[number], mended=None, left=left)


def _check_objects(store: Store, hashes: Hashes, on_object: OnObject) -> dict[str, _DamagedObject]:
    damaged = {}
    for stored in store.objects():
        on_object(store.name(stored.sha256) or stored.sha256, stored.size)
        with contextlib.suppress(FileNotFoundError):
            digest = _hash(store.path(stored.sha256), hashes)
            if digest != stored.sha256:
                damaged[stored.sha256] = _DamagedObject(versions.wrong_hash_text(digest), wrong=True)
    return damaged


def _check_tree(
    store: Store, number: int, manifest: Manifest, hashes: Hashes, damaged: dict[str, _DamagedObject]
) -> None:
    root = store.root / "versions" / str(number)
    for file, problem in versions.differences(root, manifest.files, hashes):
        damaged.setdefault(file.sha256, _DamagedObject(problem)).places.append((number, root / file.path))


def _find_copies(
    store: Store, number: int, manifest: Manifest, hashes: Hashes, damaged: dict[str, _DamagedObject]
) -> None:
    """Find an intact file in a tree for each object that is damaged or missing in the store."""
    for file in manifest.files:
        path = store.root / "versions" / str(number) / file.path
        if file.sha256 not in damaged and store.has(file.sha256):
            continue
        with contextlib.suppress(FileNotFoundError):
            if _hash(path, hashes) == file.sha256:
                damage = damaged.setdefault(file.sha256, _DamagedObject("it is not in the store"))
                damage.copy = path


def _hash(path: Path, hashes: Hashes) -> str | None:
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        inode = stat.st_dev, stat.st_ino
        if inode not in hashes:
            hashes[inode] = digest_or_none(file.fileno())
        return hashes[inode]


def _repair(
    store: Store, damaged: dict[str, _DamagedObject], contents: Contents, refetch: Refetch | None, trees: list[Contents]
) -> None:
    with store.locked():
        for digest, damage in damaged.items():
            _quarantine(store, digest, damage)
        _rebuild(store, damaged, contents, trees)
    lacking = {digest for digest in damaged if not store.has(digest)}
    if lacking and refetch is not None:
        for digest, why in refetch(lacking, contents).items():
            damaged[digest].left = why
        for digest in lacking:
            if store.has(digest):
                damaged[digest].mended = "what the profile names"
        _rebuild(store, damaged, contents, trees)
    with store.locked():
        for digest, damage in damaged.items():
            _relink(store, digest, damage)


def _quarantine(store: Store, digest: str, damage: _DamagedObject) -> None:
    if damage.wrong and store.has(digest):
        actual, inode = store.digest(digest)
        moved = store.quarantine(digest, inode) if actual != digest else None
        damage.left = f"moved to {moved.relative_to(store.root)}" if moved else None


def _rebuild(store: Store, damaged: dict[str, _DamagedObject], contents: Contents, trees: list[Contents]) -> None:
    """Restore objects without a network: from a copy in a tree, from the contents, or out of a wheel."""
    lacking = {digest: damage for digest, damage in damaged.items() if not store.has(digest)}
    pages = {_sha256(page): page for tree in trees if lacking for page in tree_files(tree).pages.values()}
    wheels = {wheel.metadata: wheel for wheel in contents.wheels if wheel.metadata and store.has(wheel.sha256)}
    for digest, damage in lacking.items():
        if damage.copy is not None:
            store.adopt(damage.copy, digest, store.name(digest))
            damage.mended = str(damage.copy.relative_to(store.root))
        elif digest in pages:
            store.add(pages[digest], store.name(digest) or digest)
            damage.mended = "what the version holds"
        elif digest in wheels:
            content = read_metadata(store.path(wheels[digest].sha256), wheels[digest].name)
            if _sha256(content) == digest:
                store.add(content, f"{wheels[digest].name}.metadata")
                damage.mended = "its wheel"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _relink(store: Store, digest: str, damage: _DamagedObject) -> None:
    """Link the repaired object into the trees again; if it could not be repaired, remove it from them."""
    present = store.has(digest)
    for number, path in damage.places:
        if present and (store.root / "versions" / str(number)).is_dir():
            store.view(digest, path)
        elif not present and path.exists():
            path.unlink()
            damage.gone = True
    if present:
        damage.mended = damage.mended or "the store's own"


def _fault(store: Store, contents: Contents, digest: str, damage: _DamagedObject) -> Fault:
    places = sorted({number for number, _ in damage.places})
    names = {wheel.sha256: wheel.name for wheel in contents.wheels}
    name = ({str(wheel.metadata): f"{wheel.name}.metadata" for wheel in contents.wheels} | names).get(digest)
    if name is None and damage.places:
        number, path = damage.places[0]
        name = str(path.relative_to(store.root / "versions" / str(number)))
    actions = [damage.left] if damage.left else []
    actions += [f"removed from version {', '.join(map(str, places))}"] if damage.gone else []
    return Fault(
        file=name or store.name(digest) or digest,
        sha256=digest,
        what=damage.what,
        versions=places,
        mended=damage.mended,
        left=None if damage.mended else "; ".join(actions) or _LEFT[store.has(digest)],
    )
