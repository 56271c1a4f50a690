"""Hash a store again, and mend what is not what it must be from whatever else has the same bytes.

What mends: another copy of it in some version (where a file system gave copies for links), the contents for an index
page, the wheel for its METADATA, and a mirror where one is named. What nothing mends is taken out of the trees: a
client that holds no content against a hash gets no file rather than a wrong one.
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
from envcheck.mirrors.store import manifest as known
from envcheck.mirrors.store import versions
from envcheck.mirrors.store.filesystem import digest_or_none, ignore_read_only
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree_files import tree_files
from envcheck.mirrors.store.versions import Hashes, Manifest
from envcheck.mirrors.store.wheel_metadata import read_metadata

_LEFT: Final = {True: "left as it is: the store may not be written", False: "nothing here has it"}
OnObject = Callable[[str, int], None]
# Brings what it can of these hashes, which the contents name, into the store; returns why not, by hash.
Refetch = Callable[[set[str], Contents], dict[str, str]]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One file that was not what it must be: in the store, in the trees of some versions, or in both.

    `mended` says from what, or is None; `left` then says what was done with it.
    """

    file: str
    sha256: str
    what: str
    versions: list[int]
    mended: str | None
    left: str | None = None


@dataclasses.dataclass
class _DamagedObject:
    """What was seen of one hash: wrong, the places in trees where it is not, and an intact copy in a tree."""

    what: str
    wrong: bool = False
    places: list[tuple[int, Path]] = dataclasses.field(default_factory=list)
    copy: Path | None = None
    mended: str | None = None
    left: str | None = None
    gone: bool = False


def verify(store: Store, hear: OnObject = lambda _name, _size: None, bring: Refetch | None = None) -> list[Fault]:
    """Hash every object and every file of every version, and mend what can be. `hear` is told each object's name.

    A store that may not be written is only looked at.
    """
    told = {number: _read_manifest(store, number) for number in versions.numbers(store)}
    held = {number: one for number, one in told.items() if not isinstance(one, Fault)}
    hashes: Hashes = {}
    seen = _check_objects(store, hashes, hear)
    for number, one in held.items():
        _check_tree(store, number, one, hashes, seen)
    for number, one in held.items():
        _find_copies(store, number, one, hashes, seen)
    there = set(versions.numbers(store))
    seen = {digest: sight for digest, sight in seen.items() if _still_damaged(store, digest, sight, there)}
    contents = functools.reduce(known.merge, (one.contents for one in held.values()), Contents())
    with ignore_read_only():
        if seen:
            _repair(store, seen, contents, bring, [one.contents for one in held.values()])
    faults = [_fault(store, contents, digest, sight) for digest, sight in sorted(seen.items())]
    return [*(one for number, one in told.items() if isinstance(one, Fault) and number in there), *faults]


def _still_damaged(store: Store, digest: str, sight: _DamagedObject, there: set[int]) -> bool:
    """Tell whether a fault is one still: a version that was let go of meanwhile lacks nothing."""
    sight.places = [(number, path) for number, path in sight.places if number in there]
    lost = sight.copy is not None and not store.has(digest)
    return bool(sight.wrong or sight.places or lost)


def _read_manifest(store: Store, number: int) -> Manifest | Fault:
    try:
        return versions.read_manifest(store, number)
    except PromiseError as error:
        file = f"versions/{number}/{versions.MANIFEST}"
        left = f"remove versions/{number}, and publish it again: until then nothing can be evicted or published"
        what = error.message.partition(": ")[2]
        return Fault(file=file, sha256="", what=what, versions=[number], mended=None, left=left)


def _check_objects(store: Store, hashes: Hashes, hear: OnObject) -> dict[str, _DamagedObject]:
    seen = {}
    for one in store.objects():
        hear(store.name(one.sha256) or one.sha256, one.size)
        with contextlib.suppress(FileNotFoundError):
            found = _hash(store.path(one.sha256), hashes)
            if found != one.sha256:
                seen[one.sha256] = _DamagedObject(versions.wrong_hash_text(found), wrong=True)
    return seen


def _check_tree(store: Store, number: int, told: Manifest, hashes: Hashes, seen: dict[str, _DamagedObject]) -> None:
    root = store.root / "versions" / str(number)
    for file, what in versions.differences(root, told.files, hashes):
        seen.setdefault(file.sha256, _DamagedObject(what)).places.append((number, root / file.path))


def _find_copies(store: Store, number: int, told: Manifest, hashes: Hashes, seen: dict[str, _DamagedObject]) -> None:
    """Note which file of a tree is intact where the store's own is not, or not there."""
    for file in told.files:
        path = store.root / "versions" / str(number) / file.path
        if file.sha256 not in seen and store.has(file.sha256):
            continue
        with contextlib.suppress(FileNotFoundError):
            if _hash(path, hashes) == file.sha256:
                sight = seen.setdefault(file.sha256, _DamagedObject("it is not in the store"))
                sight.copy = path


def _hash(path: Path, hashes: Hashes) -> str | None:
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        inode = stat.st_dev, stat.st_ino
        if inode not in hashes:
            hashes[inode] = digest_or_none(file.fileno())
        return hashes[inode]


def _repair(
    store: Store, seen: dict[str, _DamagedObject], held: Contents, bring: Refetch | None, trees: list[Contents]
) -> None:
    with store.locked():
        for digest, sight in seen.items():
            _quarantine(store, digest, sight)
        _rebuild(store, seen, held, trees)
    lacking = {digest for digest in seen if not store.has(digest)}
    if lacking and bring is not None:
        for digest, why in bring(lacking, held).items():
            seen[digest].left = why
        for digest in lacking:
            if store.has(digest):
                seen[digest].mended = "what the profile names"
        _rebuild(store, seen, held, trees)
    with store.locked():
        for digest, sight in seen.items():
            _relink(store, digest, sight)


def _quarantine(store: Store, digest: str, sight: _DamagedObject) -> None:
    if sight.wrong and store.has(digest):
        found, inode = store.digest(digest)
        moved = store.quarantine(digest, inode) if found != digest else None
        sight.left = f"moved to {moved.relative_to(store.root)}" if moved else None


def _rebuild(store: Store, seen: dict[str, _DamagedObject], held: Contents, trees: list[Contents]) -> None:
    """Make what this machine can make again: from a copy in a tree, from the contents, out of a wheel."""
    lacking = {digest: sight for digest, sight in seen.items() if not store.has(digest)}
    pages = {_sha256(page): page for one in trees if lacking for page in tree_files(one).pages.values()}
    wheels = {wheel.metadata: wheel for wheel in held.wheels if wheel.metadata and store.has(wheel.sha256)}
    for digest, sight in lacking.items():
        if sight.copy is not None:
            store.adopt(sight.copy, digest, store.name(digest))
            sight.mended = str(sight.copy.relative_to(store.root))
        elif digest in pages:
            store.add(pages[digest], store.name(digest) or digest)
            sight.mended = "what the version holds"
        elif digest in wheels:
            content = read_metadata(store.path(wheels[digest].sha256), wheels[digest].name)
            if _sha256(content) == digest:
                store.add(content, f"{wheels[digest].name}.metadata")
                sight.mended = "its wheel"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _relink(store: Store, digest: str, sight: _DamagedObject) -> None:
    """Give the places in the trees a sound object again; without one, no file."""
    there = store.has(digest)
    for number, path in sight.places:
        if there and (store.root / "versions" / str(number)).is_dir():
            store.view(digest, path)
        elif not there and path.exists():
            path.unlink()
            sight.gone = True
    if there:
        sight.mended = sight.mended or "the store's own"


def _fault(store: Store, held: Contents, digest: str, sight: _DamagedObject) -> Fault:
    places = sorted({number for number, _ in sight.places})
    names = {wheel.sha256: wheel.name for wheel in held.wheels}
    name = ({str(wheel.metadata): f"{wheel.name}.metadata" for wheel in held.wheels} | names).get(digest)
    if name is None and sight.places:
        number, path = sight.places[0]
        name = str(path.relative_to(store.root / "versions" / str(number)))
    done = [sight.left] if sight.left else []
    done += [f"taken out of version {', '.join(map(str, places))}"] if sight.gone else []
    return Fault(
        file=name or store.name(digest) or digest,
        sha256=digest,
        what=sight.what,
        versions=places,
        mended=sight.mended,
        left=None if sight.mended else "; ".join(done) or _LEFT[store.has(digest)],
    )
