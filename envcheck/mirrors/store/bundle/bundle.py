"""A bundle: what a published tree needs, as one deterministic tar in parts, for where no network goes.

    bundle.tar.000 …       the tar, cut at the part size: `cat bundle.tar.* | tar -x` reads it too
    bundle.sha256          the hash of each part, as sha256sum writes it; its own sha256 is the bundle's digest
    bundle.sha256.sig      where a key was given: the signature of bundle.sha256 (signing.py)

In the tar stand contents.json and the objects it names, in order of their hashes. Its index pages are not in it:
who imports it makes them anew, so that no page of another's making is ever served.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from envcheck.counting import counted
from envcheck.errors import PromiseError, UnavailableError
from envcheck.mirrors.store import manifest as known
from envcheck.mirrors.store.bundle import tar as bundle_tar
from envcheck.mirrors.store.bundle.parts import (
    SUMS,
    BundlePart,
    PartReader,
    PartWriter,
    Progress,
    bundle_digest,
    signer,
    verified_parts,
    writer,
)
from envcheck.mirrors.store.bundle.tar import HashingReader, Member
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import Store

__all__ = [
    "CONTENTS",
    "SUMS",
    "BundlePart",
    "bundle_digest",
    "export",
    "import_bundle",
    "import_parts",
    "verified_parts",
]

CONTENTS: Final = "contents.json"
_OBJECT: Final = re.compile(r"sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})")
# The list of what is in it: 100 000 files have 30 MB.
_LARGEST: Final = 256 << 20
_NOT_OURS: Final = "do not use this bundle: `envcheck store export` did not write it"


def export(
    store: Store, contents: Contents, to: Path, *, part_size: int, progress: Progress, key: Path | None = None
) -> list[Path]:
    """Write the bundle of these contents into `to`; return its parts. Two of the same contents are equal to the bit.

    `key` is the private key that signs it.

    Every object is hashed on its way: a store that has rotted is a PromiseError, and no bundle.
    """
    sizes = known.object_sizes(contents)
    signer(key)(b"")  # a key that cannot sign is said before anything is written
    with writer(to, part_size) as parts:
        missing = [digest for digest in sizes if not store.has(digest)]
        if missing:
            message = f"{store.root}: missing: {counted(len(missing), 'file')}, for example {missing[0]}"
            raise UnavailableError(message, fix="fetch them with --mirror PROFILE")
        _write(store, contents, list(sizes), parts, progress)
        return parts.finish(signer(key))


def import_bundle(store: Store, source: Path, progress: Progress) -> Contents:
    """Take a bundle's objects into the store and return its contents; every part is hashed first."""
    return import_parts(store, verified_parts(source, progress), progress)


def import_parts(
    store: Store, parts: list[BundlePart], progress: Progress, accept: Callable[[Contents], None] = lambda _: None
) -> Contents:
    """Take the objects of a bundle, whose parts are verified, into the store and return its contents.

    The parts are hashed once more as they are read: a stick may be changed meanwhile. `accept` raises what there is
    against the contents, before an object is written.

    Every object is held against its hash before the first one gets its name in the store: until then all is in a
    directory of its own, which the next import empties when this one is interrupted.
    """
    with store.locked("import.lock"):
        staging = store.root / "import"
        if staging.is_symlink() or staging.is_file():
            staging.unlink()
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        size, free = sum(part.path.stat().st_size for part in parts), shutil.disk_usage(staging).free
        try:
            if size > free:
                message = f"{store.root}: {size} bytes are needed and {free} are free"
                raise UnavailableError(
                    message, fix="free some space with `envcheck store gc`, or choose another --store"
                )
            contents = _unpack(parts, staging, progress, accept)
            for digest in known.object_sizes(contents):
                name = next((wheel.name for wheel in contents.wheels if wheel.sha256 == digest), digest)
                store.take(staging / digest, digest, name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return contents


def _write(store: Store, contents: Contents, digests: list[str], parts: PartWriter, progress: Progress) -> None:
    encoded = msgspec.json.format(msgspec.json.encode(contents), indent=1) + b"\n"
    total = len(encoded) + sum(store.path(digest).stat().st_size for digest in digests)
    bundle_tar.write(parts, CONTENTS, io.BytesIO(encoded), len(encoded))
    done = 0
    for digest in digests:
        with store.path(digest).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest_written = bundle_tar.write(parts, f"sha256/{digest[:2]}/{digest}", file, size)
        if digest_written != digest:
            message = f"{store.path(digest)}: it has another hash than its name"
            raise PromiseError(message, fix="run `envcheck store verify`, and fetch it again")
        done += size
        progress(done, total)
    bundle_tar.end(parts, parts.written)


def _unpack(parts: list[BundlePart], staging: Path, progress: Progress, accept: Callable[[Contents], None]) -> Contents:
    """Write every object below `staging`, each of its hash, and return the contents that name exactly these."""
    where = parts[0].path.parent
    try:
        members = bundle_tar.read(PartReader(parts, progress))
        contents = _read_contents(next(members, None), where)
        accept(contents)
        expected = known.object_sizes(contents)
        for member in members:
            _unpack_object(member, expected, staging)
    except bundle_tar.InvalidTarError as error:
        message = f"{where}: {error}"
        raise PromiseError(message, fix=_NOT_OURS) from error
    if expected:
        message = f"{where}: the bundle lacks {len(expected)} of its files"
        raise PromiseError(message, fix="export it anew")
    return contents


def _read_contents(first: Member | None, where: Path) -> Contents:
    if first is None or first.name != CONTENTS or first.size > _LARGEST:
        message = f"it begins with {first.name if first else 'nothing'!r}, not with {CONTENTS}"
        raise bundle_tar.InvalidTarError(message)
    return known.parse_contents(first.body.read(), f"{where}: {CONTENTS}")


def _unpack_object(member: Member, expected: dict[str, int | None], staging: Path) -> None:
    """Write one object; its name must be one that the contents still wait for, in the one form it may have."""
    match = _OBJECT.fullmatch(member.name)
    digest = match[2] if match else ""
    if digest not in expected or expected[digest] not in {None, member.size}:
        message = f"{member.name!r} is unexpected, a duplicate, or has another size"
        raise bundle_tar.InvalidTarError(message)
    hashed = HashingReader(member.body)
    with (staging / digest).open("xb") as target:
        shutil.copyfileobj(hashed, target, bundle_tar.AT_ONCE)
        target.flush()
        os.fsync(target.fileno())
    if hashed.hexdigest() != digest:
        message = f"the bytes of {member.name} have another hash"
        raise bundle_tar.InvalidTarError(message)
    del expected[digest]
