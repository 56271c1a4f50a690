"""Export and import a bundle: all objects of a published tree, as one deterministic tar in parts, without a network.

    bundle.tar.000 …       the tar, cut at the part size: `cat bundle.tar.* | tar -x` reads it too
    bundle.sha256          the hash of each part, as sha256sum writes it; its own sha256 is the bundle's digest
    bundle.sha256.sig      with a key: the ed25519 signature of bundle.sha256

The tar holds contents.json and the objects it names, sorted by hash. It holds no index pages: the importing side
generates them, so that it never serves pages that somebody else wrote. Parts are in a directory .bundle until all are
complete; then they are renamed, and last of all the list of hashes.
"""

from __future__ import annotations

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
from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.mirrors.fetch.disk import digest_of
from envcheck.mirrors.store import manifest as store_manifest
from envcheck.mirrors.store.manifest import Contents
from envcheck.mirrors.store.objects import Store, sync_folder

SUMS: Final = "bundle.sha256"
SIGNATURE: Final = "bundle.sha256.sig"
CONTENTS: Final = "contents.json"
# A signature is valid for no other purpose.
_PURPOSE: Final = b"envcheck bundle 1\n"
_KINDS: Final[tuple[signing.Kind, ...]] = ("ed25519",)
_SIGNATURE_BYTES: Final = 64
_OBJECT: Final = re.compile(r"sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})")
_PART: Final = re.compile(r"([0-9a-f]{64})  (bundle\.tar\.[0-9]{3,6})")
# Their names have three digits, so that `cat bundle.tar.*` reads them in order.
_MOST_PARTS: Final = 1000
_AT_ONCE: Final = 1 << 20
# Bytes: a list of a thousand parts has 80 KB, the contents of 100 000 files 30 MB.
_LONGEST_SUMS: Final = 1 << 20
_LONGEST_CONTENTS: Final = 256 << 20
Progress = Callable[[int, int], None]


class BundlePart(NamedTuple):
    """One file of a bundle and its sha256."""

    path: Path
    sha256: str


def export(
    store: Store, contents: Contents, to: Path, *, part_size: int, progress: Progress, key: Path | None = None
) -> list[Path]:
    """Write the bundle of these contents into `to` and return its parts. Equal contents give equal bytes.

    `part_size` in bytes; `key` is the private key that signs the bundle. Every object is hashed while it is written.
    Raises PromiseError for a damaged one, UnavailableError for a missing one; then no bundle is left in `to`.
    """
    sizes = store_manifest.object_sizes(contents)
    _signature(b"", key)  # fail before anything is written if the key cannot sign
    with _writer(to, part_size) as parts:
        missing = [digest for digest in sizes if not store.has(digest)]
        if missing:
            message = f"{store.root}: missing: {counted(len(missing), 'file')}, for example {missing[0]}"
            raise UnavailableError(message, fix="fetch them with --mirror PROFILE")
        _write(store, contents, list(sizes), parts, progress)
        return parts.finish(key)


def _signature(content: bytes, key: Path | None) -> bytes:
    return b"" if key is None else signing.load_private(key, signing.password(), _KINDS).sign(_PURPOSE + content)


def _write(store: Store, contents: Contents, digests: list[str], parts: _PartWriter, progress: Progress) -> None:
    encoded = msgspec.json.format(msgspec.json.encode(contents), indent=1) + b"\n"
    total = len(encoded) + sum(store.path(digest).stat().st_size for digest in digests)
    done = 0
    # Not as a context manager, which would write on after an interrupt.
    archive = tarfile.open(fileobj=parts, mode="w|", format=tarfile.GNU_FORMAT)  # noqa: SIM115
    archive.addfile(_member(CONTENTS, len(encoded)), io.BytesIO(encoded))
    for digest in digests:
        with store.path(digest).open("rb") as file:
            hashing, size = _HashingReader(file), os.fstat(file.fileno()).st_size
            archive.addfile(_member(f"sha256/{digest[:2]}/{digest}", size), hashing)
        if hashing.hexdigest() != digest:
            message = f"{store.path(digest)}: it has another hash than its name"
            raise PromiseError(message, fix="release it again, which fetches it again")
        done += size
        progress(done, total)
    archive.close()


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o444
    return member


class _HashingReader(io.RawIOBase):
    """A file that is hashed while it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hasher = file, hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        content = self._file.read(size)
        self._hasher.update(content)
        return content

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


@contextlib.contextmanager
def _writer(to: Path, size: int) -> Iterator[_PartWriter]:
    """Yield the writer of a bundle with parts of `size` bytes; remove what is not finished.

    Raises ConfigError if `to` holds a bundle already or another export is writing there.
    """
    to.mkdir(parents=True, exist_ok=True)
    draft = to / ".bundle"
    with _directory_lock(to):
        if any(to.glob("bundle.*")):
            message = f"{to}: a bundle exists already"
            raise ConfigError(message, fix="give -o another directory, or remove it")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        parts = _PartWriter(draft, to, size)
        try:
            yield parts
        finally:
            parts.close()
            shutil.rmtree(draft, ignore_errors=True)


class _PartWriter(io.RawIOBase):
    """A stream that is cut into files of `size` bytes, which get their final names in `finish`."""

    def __init__(self, draft: Path, to: Path, size: int) -> None:
        self._draft, self._to, self._size = draft, to, size
        self._sums: list[str] = []
        self._hasher = hashlib.sha256()
        self._file: IO[bytes] | None = None
        self._left = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # ours are bytes
        """Write all bytes and return their number. Raises ConfigError if there are too many parts."""
        if self.closed:  # an archive that was given up writes its rest when it is collected
            return len(data)
        view = memoryview(data)
        while view:
            file = self._next() if self._file is None or self._left == 0 else self._file
            chunk = view[: self._left]
            file.write(chunk)
            self._hasher.update(chunk)
            self._left -= len(chunk)
            view = view[len(chunk) :]
        return len(data)

    def finish(self, key: Path | None) -> list[Path]:
        """Rename the parts to their final names, then the list of their hashes, which `key` signs; return the parts.

        So a directory that has the list holds a complete bundle.
        """
        self._end()
        names = [f"bundle.tar.{number:03}" for number in range(len(self._sums))]
        content = "".join(f"{digest}  {name}\n" for digest, name in zip(self._sums, names, strict=True)).encode()
        safe_files.put(self._draft / SUMS, content)
        if key is not None:
            safe_files.put(self._draft / SIGNATURE, _signature(content, key))
            names.append(SIGNATURE)
        for name in [*names, SUMS]:
            (self._draft / name).replace(self._to / name)
        sync_folder(self._to)
        return [self._to / name for name in names if name != SIGNATURE]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()

    def _next(self) -> IO[bytes]:
        self._end()
        if len(self._sums) >= _MOST_PARTS:
            message = f"more than {_MOST_PARTS} parts of {self._size} bytes"
            raise ConfigError(message, fix="allow larger parts (--part-size)")
        self._file = (self._draft / f"bundle.tar.{len(self._sums):03}").open("xb")
        self._hasher = hashlib.sha256()
        self._left = self._size
        return self._file

    def _end(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            self._sums.append(self._hasher.hexdigest())


@contextlib.contextmanager
def _directory_lock(to: Path) -> Iterator[None]:
    """Lock a directory, so that no other export removes unfinished parts from it."""
    file = os.open(to, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"{to}: another export is writing there"
            raise ConfigError(message, fix="wait for it, or choose another -o directory") from error
        yield
    finally:
        os.close(file)


def bundle_digest(source: Path) -> str:
    """Return a bundle's digest: the sha256 of its list of hashes, as hex. Raises ConfigError if it has no list."""
    return hashlib.sha256(_read_sums(source)).hexdigest()


def verified_parts(
    source: Path, progress: Progress, *, sha256: str | None = None, key: Path | None = None
) -> list[BundlePart]:
    """Authenticate a bundle, hash its parts, and return them in order.

    `sha256` is the digest that it must have, `key` the public key that must have signed it; None skips that test.
    Raises PromiseError if anything does not match, UnavailableError if a part is missing, ConfigError if `source` is
    not a bundle.
    """
    content = _read_sums(source)
    _authenticate(source, content, sha256, key)
    parts = _parse_sums(source, content)
    missing = [part.path.name for part in parts if part.path.is_symlink() or not part.path.is_file()]
    if missing:
        message = f"{source}: missing: {missing[0]}{f' and {len(missing) - 1} more' if missing[1:] else ''}"
        raise UnavailableError(message, fix="copy all parts of the bundle there")
    total, done = 2 * sum(part.path.stat().st_size for part in parts), 0
    for part in parts:
        with part.path.open("rb") as file:
            digest = digest_of(file.fileno(), os.fstat(file.fileno()).st_size)
        done += part.path.stat().st_size
        progress(done, total)
        if digest != part.sha256:
            message = f"{part.path}: it has another sha256 than {SUMS} says"
            raise PromiseError(message, fix="copy this part again")
    return parts


def _authenticate(source: Path, sums: bytes, sha256: str | None, key: Path | None) -> None:
    """Raise PromiseError if the list of hashes does not have this digest or this public key did not sign it."""
    if sha256 is not None and hashlib.sha256(sums).hexdigest() != sha256:
        message = f"{source}: the bundle has another digest than {sha256}"
        raise PromiseError(message, fix="do not use it: compare with what `envcheck store export` printed")
    if key is None:
        return
    try:
        signed = safe_files.read_regular(source / SIGNATURE, _SIGNATURE_BYTES + 1)
    except OSError as error:
        message = f"{source}: cannot read {SIGNATURE}: the bundle is not signed"
        raise PromiseError(message, fix="export it with --key, or compare its digest (--sha256)") from error
    if not signing.load_public(key, _KINDS).verifies(_PURPOSE + sums, signed):
        message = f"{source}: it is not signed by the key in {key}"
        raise PromiseError(message, fix="do not use it: ask the person who exported it for its digest and key")


def _read_sums(source: Path) -> bytes:
    try:
        content = safe_files.read_regular(source / SUMS, _LONGEST_SUMS)
        content.decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{source}: cannot read {SUMS}"
        raise ConfigError(message, fix="name the directory that `envcheck store export` wrote") from error
    return content


def _parse_sums(source: Path, content: bytes) -> list[BundlePart]:
    lines = content.decode("ascii").splitlines()
    rows = [(match[1], match[2]) for line in lines if (match := _PART.fullmatch(line))]
    if not rows or len(rows) != len(lines) or [n for _, n in rows] != [f"bundle.tar.{i:03}" for i in range(len(rows))]:
        message = f"{source / SUMS}: it does not list the parts of a bundle in order, each once"
        raise ConfigError(message, fix="copy the bundle again")
    return [BundlePart(source / name, digest) for digest, name in rows]


def import_bundle(
    store: Store, parts: list[BundlePart], progress: Progress, accept: Callable[[Contents], None] = lambda _: None
) -> Contents:
    """Import the objects of a bundle into the store and return its contents. `parts` comes from `verified_parts`.

    `accept` raises an error if it refuses the contents, before any object is written. All objects are unpacked into a
    staging directory and hashed before the first one enters the store. An interrupted import leaves this directory; the
    next import empties it.
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
                fix = "free some space with `envcheck store gc`, or choose another --store"
                raise UnavailableError(message, fix=fix)
            contents = _unpack(parts, staging, progress, accept)
            names = {wheel.sha256: wheel.name for wheel in contents.wheels}
            for digest in store_manifest.object_sizes(contents):
                store.take(staging / digest, digest, names.get(digest, digest))
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return contents


def _unpack(parts: list[BundlePart], staging: Path, progress: Progress, accept: Callable[[Contents], None]) -> Contents:
    """Write every object below `staging` and return the contents; the objects are exactly those that it names."""
    where, stream = parts[0].path.parent, _PartReader(parts, progress)
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_PlainFile) as archive:
            contents = _read_contents(archive, where)
            accept(contents)
            expected = store_manifest.object_sizes(contents)
            while (member := archive.next()) is not None:
                _unpack_object(archive, member, expected, staging)
        while stream.read(_AT_ONCE):  # to the end, so that every part is compared with its hash
            pass
    except (tarfile.TarError, _InvalidBundleError, EOFError, ValueError, OverflowError) as error:
        message = f"{where}: {error or 'not a tar file'}"
        raise PromiseError(message, fix="do not use this bundle: `envcheck store export` did not write it") from error
    if expected:
        message = f"{where}: the bundle lacks {len(expected)} of its files"
        raise PromiseError(message, fix="export it again")
    return contents


class _InvalidBundleError(Exception):
    """A tar that `envcheck store export` did not write."""


class _PlainFile(tarfile.TarInfo):
    """A member that is a plain file: the headers of others (long names, pax, links) are not even read into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type != tarfile.REGTYPE:
            message = f"{self.name!r} is not a plain file"
            raise _InvalidBundleError(message)
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]  # the documented place to override
        return member


def _read_contents(archive: tarfile.TarFile, where: Path) -> Contents:
    first = archive.next()
    body = archive.extractfile(first) if first is not None else None
    if first is None or body is None or first.name != CONTENTS or first.size > _LONGEST_CONTENTS:
        message = f"it begins with {first.name if first else 'nothing'!r}, not with {CONTENTS}"
        raise _InvalidBundleError(message)
    return store_manifest.parse_contents(body.read(), f"{where}: {CONTENTS}")


def _unpack_object(
    archive: tarfile.TarFile, member: tarfile.TarInfo, expected: dict[str, int | None], staging: Path
) -> None:
    match, body = _OBJECT.fullmatch(member.name), archive.extractfile(member)
    digest = match[2] if match else ""
    if body is None or digest not in expected or expected[digest] not in {None, member.size}:
        message = f"{member.name!r} is unexpected, a duplicate, or has another size"
        raise _InvalidBundleError(message)
    hashing = _HashingReader(body)
    with (staging / digest).open("xb") as target:
        shutil.copyfileobj(hashing, target, _AT_ONCE)
        target.flush()
        os.fsync(target.fileno())
    if hashing.hexdigest() != digest:
        message = f"the bytes of {member.name} have another hash"
        raise _InvalidBundleError(message)
    del expected[digest]


class _PartReader(io.RawIOBase):
    """The parts as one stream. Raises PromiseError at the end of a part that changed since it was verified."""

    def __init__(self, parts: list[BundlePart], progress: Progress) -> None:
        self._blocks = self._read_all(parts)
        self._rest = memoryview(b"")
        self._progress = progress
        self._total = 2 * sum(part.path.stat().st_size for part in parts)
        self._done = self._total // 2

    def read(self, size: int = -1, /) -> bytes:
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        block, self._rest = self._rest[:size], self._rest[size:]
        self._done += len(block)
        self._progress(self._done, self._total)
        return bytes(block)

    def _read_all(self, parts: list[BundlePart]) -> Iterator[bytes]:
        for part in parts:
            hasher = hashlib.sha256()
            with part.path.open("rb") as file:
                while block := file.read(_AT_ONCE):
                    hasher.update(block)
                    yield block
            if hasher.hexdigest() != part.sha256:
                message = f"{part.path}: it changed while it was read"
                raise PromiseError(message, fix="copy the bundle to a disk of this machine, and import that")
