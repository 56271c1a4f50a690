"""Export and import a bundle: all objects of a published tree, as one deterministic tar in parts, without a network.

    bundle.tar.000 …       the tar, cut at the part size: `cat bundle.tar.* | tar -x` reads it too
    bundle.sha256          the hash of each part, as sha256sum writes it; its own sha256 is the bundle's digest
    bundle.sha256.sig      with a key: the signature of bundle.sha256 (signing.py)

The tar holds contents.json and the objects it names, sorted by hash. It holds no index pages: the importing side
generates them, so that it never serves pages that somebody else wrote.
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
from envcheck.mirrors.store import manifest as store_manifest
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
# Bytes of contents.json: 100 000 files have 30 MB.
_LARGEST: Final = 256 << 20
_NOT_OURS: Final = "do not use this bundle: `envcheck store export` did not write it"


def export(
    store: Store, contents: Contents, to: Path, *, part_size: int, progress: Progress, key: Path | None = None
) -> list[Path]:
    """Write the bundle of these contents into `to` and return its parts. Equal contents give equal bytes.

    `part_size` in bytes; `key` is the private key that signs the bundle.
    Every object is hashed while it is written. Raises PromiseError for a damaged one, UnavailableError for a missing
    one; then no bundle is left in `to`.
    """
    sizes = store_manifest.object_sizes(contents)
    signer(key)(b"")  # fail before anything is written if the key cannot sign
    with writer(to, part_size) as parts:
        missing = [digest for digest in sizes if not store.has(digest)]
        if missing:
            message = f"{store.root}: missing: {counted(len(missing), 'file')}, for example {missing[0]}"
            raise UnavailableError(message, fix="fetch them with --mirror PROFILE")
        _write(store, contents, list(sizes), parts, progress)
        return parts.finish(signer(key))


def import_bundle(store: Store, source: Path, progress: Progress) -> Contents:
    """Hash every part of a bundle, import its objects into the store and return its contents."""
    return import_parts(store, verified_parts(source, progress), progress)


def import_parts(
    store: Store, parts: list[BundlePart], progress: Progress, accept: Callable[[Contents], None] = lambda _: None
) -> Contents:
    """Import the objects of a bundle into the store and return its contents. `parts` comes from `verified_parts`.

    The parts are hashed again while they are read, because the medium may have changed. `accept` raises an error if
    it refuses the contents, before any object is written.

    All objects are unpacked into a staging directory and hashed before the first one enters the store. An interrupted
    import leaves this directory; the next import empties it.
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
            for digest in store_manifest.object_sizes(contents):
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
    """Write every object below `staging` and return the contents; the objects are exactly those that it names."""
    where = parts[0].path.parent
    try:
        members = bundle_tar.read(PartReader(parts, progress))
        contents = _read_contents(next(members, None), where)
        accept(contents)
        expected = store_manifest.object_sizes(contents)
        for member in members:
            _unpack_object(member, expected, staging)
    except bundle_tar.InvalidTarError as error:
        message = f"{where}: {error}"
        raise PromiseError(message, fix=_NOT_OURS) from error
    if expected:
        message = f"{where}: the bundle lacks {len(expected)} of its files"
        raise PromiseError(message, fix="export it again")
    return contents


def _read_contents(first: Member | None, where: Path) -> Contents:
    if first is None or first.name != CONTENTS or first.size > _LARGEST:
        message = f"it begins with {first.name if first else 'nothing'!r}, not with {CONTENTS}"
        raise bundle_tar.InvalidTarError(message)
    return store_manifest.parse_contents(first.body.read(), f"{where}: {CONTENTS}")


def _unpack_object(member: Member, expected: dict[str, int | None], staging: Path) -> None:
    """Write one object and remove it from `expected`, which must have its digest and size."""
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
