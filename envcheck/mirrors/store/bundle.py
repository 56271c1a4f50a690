"""Export and import a bundle: all objects of a released tree, as one deterministic tar, without a network.

    bundle.tar             contents.json, then the objects that it names, sorted by hash
    bundle.sha256          the tar's hash, as sha256sum writes it, which is the bundle's digest; written last
    bundle.sha256.sig      with a key: the ed25519 signature of bundle.sha256

The tar holds no index pages: the importing side generates them, so that it never serves pages that somebody else wrote.
"""

import contextlib
import fcntl
import hashlib
import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from envcheck import safe_files, signing
from envcheck.counting import counted
from envcheck.errors import PromiseError, UnavailableError, refuse
from envcheck.mirrors.store import tree
from envcheck.mirrors.store.objects import Store, digest_or_none, sync_folder
from envcheck.mirrors.store.tree import Contents

TAR: Final = "bundle.tar"
SUMS: Final = "bundle.sha256"
SIGNATURE: Final = "bundle.sha256.sig"
CONTENTS: Final = "contents.json"
# A signature is valid for no other purpose.
_PURPOSE: Final = b"envcheck bundle 1\n"
_SIGNATURE_BYTES: Final = 128
_OBJECT: Final = re.compile(r"sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})")
_SUMS: Final = re.compile(rb"([0-9a-f]{64})  bundle\.tar\n")
# Bytes: the contents of 100 000 files have 30 MB.
_LONGEST_CONTENTS: Final = 256 << 20


def export(store: Store, contents: Contents, to: Path, key: Path | None = None) -> str:
    """Write the bundle of these contents into `to` and return its digest. Equal contents give equal bytes.

    `key` is the private key that signs the bundle. Every object is hashed while it is written. Raises PromiseError for
    a damaged one, UnavailableError for a missing one; then no bundle is left in `to`.
    """
    signer = None if key is None else signing.load_private(key, signing.password())
    digests = list(tree.object_sizes(contents))
    missing = [digest for digest in digests if not store.has(digest)]
    if missing:
        message = f"{store.root}: missing: {counted(len(missing), 'file')}, for example {missing[0]}"
        raise UnavailableError(message, fix="fetch them again with `envcheck store release`")
    with _draft(to) as (file, draft):
        tar = _HashedFile(file)
        _write(store, contents, digests, tar)
        file.flush()
        os.fsync(file.fileno())
        sums = f"{tar.hexdigest()}  {TAR}\n".encode()
        (to / SIGNATURE).unlink(missing_ok=True)
        draft.replace(to / TAR)
        if signer is not None:
            safe_files.put(to / SIGNATURE, signer.sign(_PURPOSE + sums))
        safe_files.put(to / SUMS, sums)
        sync_folder(to)
    return tar.hexdigest()


@contextlib.contextmanager
def _draft(to: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Yield an empty file in `to`, which a killed export may have left; remove it unless it has another name then.

    Raises ConfigError if `to` holds a bundle already or another export is writing there.
    """
    to.mkdir(parents=True, exist_ok=True)
    if (to / SUMS).exists():
        refuse(f"{to}: a bundle exists already", "give -o another directory, or remove it")
    draft = to / f".{TAR}"
    with os.fdopen(safe_files.create_or_reopen(draft), "r+b") as file:
        try:
            safe_files.lock_open(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, draft)
        except BlockingIOError:
            refuse(f"{to}: another export is writing there", "wait for it, or choose another -o directory")
        try:
            file.truncate()
            yield file, draft
        finally:
            draft.unlink(missing_ok=True)


def _write(store: Store, contents: Contents, digests: list[str], tar: "_HashedFile") -> None:
    encoded = msgspec.json.format(msgspec.json.encode(contents), indent=1) + b"\n"
    # Not as a context manager, which would write on after an interrupt.
    archive = tarfile.open(fileobj=tar, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115
    archive.addfile(_member(CONTENTS, len(encoded)), io.BytesIO(encoded))
    for digest in digests:
        with store.path(digest).open("rb") as file:
            hashed = _HashedFile(file)
            archive.addfile(_member(f"sha256/{digest[:2]}/{digest}", os.fstat(file.fileno()).st_size), hashed)
        if hashed.hexdigest() != digest:
            refuse(f"{store.path(digest)}: it has another hash than its name", "release it again", PromiseError)
    archive.close()


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o444
    return member


class _HashedFile(io.RawIOBase):
    """A file that is hashed while it is read or written, from its beginning to its end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hasher = file, hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        content = self._file.read(size)
        self._hasher.update(content)
        return content

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # ours are bytes
        self._hasher.update(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


class VerifiedBundle(NamedTuple):
    """The tar of a bundle, and its sha256."""

    tar: Path
    sha256: str


def verified(source: Path, *, sha256: str | None = None, key: Path | None = None) -> VerifiedBundle:
    """Authenticate and hash a bundle: `sha256` is the digest that it must have, `key` the public key that signed it.

    Raises PromiseError if anything does not match, UnavailableError without the tar, ConfigError for what is no bundle.
    """
    try:
        sums = safe_files.read_regular(source / SUMS, 1000)
    except OSError:
        refuse(f"{source}: cannot read {SUMS}", "name the directory that `envcheck store export` wrote")
    match = _SUMS.fullmatch(sums)
    if match is None:
        refuse(f"{source / SUMS}: it is not the line that `envcheck store export` writes", "copy the bundle again")
    digest, tar = match[1].decode(), source / TAR
    if sha256 not in (None, digest):
        refuse(f"{source}: it has another digest than {sha256}", "do not use it: ask who exported it", PromiseError)
    if key is not None:
        _check_signature(source, sums, key)
    if tar.is_symlink() or not tar.is_file():
        refuse(f"{source}: missing: {TAR}", "copy all files of the bundle there", UnavailableError)
    if digest_or_none(tar) != digest:
        refuse(f"{tar}: it has another sha256 than {SUMS} says", "copy it again", PromiseError)
    return VerifiedBundle(tar, digest)


def _check_signature(source: Path, sums: bytes, key: Path) -> None:
    try:
        signed = safe_files.read_regular(source / SIGNATURE, _SIGNATURE_BYTES + 1)
    except OSError as error:
        message = f"{source}: cannot read {SIGNATURE}: the bundle is not signed"
        raise PromiseError(message, fix="export it with --key, or compare its digest (--sha256)") from error
    if not signing.load_public(key).verifies(_PURPOSE + sums, signed):
        refuse(f"{source}: it is not signed by the key in {key}", "do not use it: ask who exported it", PromiseError)


def import_bundle(
    store: Store, bundle: VerifiedBundle, accept: Callable[[Contents], None] = lambda _: None
) -> Contents:
    """Import the objects of a bundle into the store and return its contents.

    `accept` raises an error if it refuses the contents. All objects are unpacked into a staging directory and hashed
    before the first one enters the store. An interrupted import leaves this directory; the next import empties it.
    """
    with store.locked():
        staging = store.root / "import"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            size, free = bundle.tar.stat().st_size, shutil.disk_usage(staging).free
            if size > free:
                message = f"{store.root}: {size} bytes are needed and {free} are free"
                fix = "free some space with `envcheck store gc`, or choose another --store"
                raise UnavailableError(message, fix=fix)
            contents = _unpack(bundle, staging, accept)
            names = {wheel.sha256: wheel.name for wheel in contents.wheels}
            for name in tree.object_sizes(contents):
                store.take(staging / name, name, names.get(name, name))
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return contents


def _unpack(bundle: VerifiedBundle, staging: Path, accept: Callable[[Contents], None]) -> Contents:
    """Write every object below `staging` and return the contents; the objects are exactly those that it names."""
    tar = bundle.tar
    with tar.open("rb") as file:
        stream = _HashedFile(file)
        try:
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_PlainFile) as archive:
                contents = _read_contents(archive, tar)
                accept(contents)
                expected = tree.object_sizes(contents)
                while (member := archive.next()) is not None:
                    _unpack_object(archive, member, expected, staging)
        except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
            message = f"{tar}: {error or 'not a tar file'}"
            raise PromiseError(
                message, fix="do not use this bundle: `envcheck store export` did not write it"
            ) from error
        while stream.read(1 << 20):  # to the end, so that all of it is compared with its hash
            pass
    if stream.hexdigest() != bundle.sha256:
        refuse(f"{tar}: it changed while it was read", "copy the bundle to this machine first", PromiseError)
    if expected:
        refuse(f"{tar}: the bundle lacks {len(expected)} of its files", "export it again", PromiseError)
    return contents


class _PlainFile(tarfile.TarInfo):
    """A member that is a plain file: the headers of others (long names, pax, links) are not even read into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type != tarfile.REGTYPE:
            message = f"{self.name!r} is not a plain file"
            raise ValueError(message)
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]  # the documented place to override
        return member


def _read_contents(archive: tarfile.TarFile, where: Path) -> Contents:
    first = archive.next()
    body = archive.extractfile(first) if first is not None else None
    if first is None or body is None or first.name != CONTENTS or first.size > _LONGEST_CONTENTS:
        message = f"it begins with {first.name if first else 'nothing'!r}, not with {CONTENTS}"
        raise ValueError(message)
    return tree.parse_contents(body.read(), f"{where}: {CONTENTS}")


def _unpack_object(
    archive: tarfile.TarFile, member: tarfile.TarInfo, expected: dict[str, int | None], staging: Path
) -> None:
    match, body = _OBJECT.fullmatch(member.name), archive.extractfile(member)
    digest = match[2] if match else ""
    if body is None or digest not in expected or expected[digest] not in {None, member.size}:
        message = f"{member.name!r} is unexpected, a duplicate, or has another size"
        raise ValueError(message)
    hashed = _HashedFile(body)
    with (staging / digest).open("xb") as target:
        shutil.copyfileobj(hashed, target, 1 << 20)
        target.flush()
        os.fsync(target.fileno())
    if hashed.hexdigest() != digest:
        message = f"the bytes of {member.name} have another hash"
        raise ValueError(message)
    del expected[digest]
