"""Cut a bundle's tar into files with a list of their hashes, and read them as one stream.

The parts have names that begin with a dot until all of them are complete; then they are renamed, and last of all the
list of hashes. A new export removes the unfinished files of a killed one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

from envcheck import safe_files
from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.mirrors.store.bundle import signing
from envcheck.mirrors.store.filesystem import sync_folder

SUMS: Final = "bundle.sha256"
SIGNATURE: Final = "bundle.sha256.sig"
_PURPOSE: Final = "envcheck bundle 1"
# Their names have three digits, so that `cat bundle.tar.*` reads them in order.
_MOST_PARTS: Final = 1000
_PART: Final = re.compile(r"([0-9a-f]{64})  (bundle\.tar\.[0-9]{3,6})")
_AT_ONCE: Final = 1 << 20
# Bytes. A list of a thousand parts has 80 KB.
_LONGEST: Final = 1 << 20
Progress = Callable[[int, int], None]


@contextlib.contextmanager
def writer(to: Path, size: int) -> Iterator[PartWriter]:
    """Yield the writer of a bundle with parts of `size` bytes; remove the parts if it did not finish.

    Raises ConfigError if `to` holds a bundle already or another export is writing there.
    """
    to.mkdir(parents=True, exist_ok=True)
    with _disk_full_errors(to), _directory_lock(to):
        _remove_drafts(to)
        if any(to.glob("bundle.*")):
            message = f"{to}: a bundle exists already"
            raise ConfigError(message, fix="give -o another directory, or remove it")
        parts = PartWriter(to, size)
        try:
            yield parts
        finally:
            parts.close()
            _remove_drafts(to)


class PartWriter(io.RawIOBase):
    """A stream that is cut into files of `size` bytes, which get their final names in `finish`."""

    def __init__(self, to: Path, size: int) -> None:
        self.written = 0
        self._to, self._size = to, size
        self._sums: list[str] = []
        self._hasher = hashlib.sha256()
        self._file: IO[bytes] | None = None
        self._left = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # ours are bytes
        """Write all bytes and return their number. Raises ConfigError if there are too many parts."""
        view = memoryview(data)
        while view:
            file = self._next() if self._file is None or self._left == 0 else self._file
            chunk = view[: self._left]
            file.write(chunk)
            self._hasher.update(chunk)
            self._left -= len(chunk)
            view = view[len(chunk) :]
        self.written += len(data)
        return len(data)

    def finish(self, sign: Callable[[bytes], bytes] = lambda _: b"") -> list[Path]:
        """Rename the parts to their final names, then the list of their hashes, which `sign` signs; return the parts.

        So a directory that has the list holds a complete bundle.
        """
        self._end()
        names = [f"bundle.tar.{number:03}" for number in range(len(self._sums))]
        rows = [f"{digest}  {name}\n" for digest, name in zip(self._sums, names, strict=True)]
        sums_draft = self._to / f".{SUMS}"
        content = "".join(rows).encode()
        signed = sign(content)
        with sums_draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if signed:
            safe_files.put(self._to / SIGNATURE, signed)
        for name in names:
            (self._to / f".{name}").replace(self._to / name)
        sums_draft.replace(self._to / SUMS)
        sync_folder(self._to)
        return [self._to / name for name in names]

    def close(self) -> None:
        """Close the part that is being written."""
        if self._file is not None:
            self._file.close()
        super().close()

    def _next(self) -> IO[bytes]:
        self._end()
        if len(self._sums) >= _MOST_PARTS:
            message = f"more than {_MOST_PARTS} parts of {self._size} bytes"
            raise ConfigError(message, fix="allow larger parts (--part-size)")
        self._file = (self._to / f".bundle.tar.{len(self._sums):03}").open("xb")
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
def _disk_full_errors(to: Path) -> Iterator[None]:
    """Raise UnavailableError naming this directory if its disk is full; an export only reads from the store."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        message = f"{to}: {error.strerror}"
        raise UnavailableError(message, fix="free some space, or choose another -o directory") from error


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


def _remove_drafts(to: Path) -> None:
    """Remove the files of an unfinished export, also the parts that it had renamed before the list of hashes."""
    sums_draft = to / f".{SUMS}"
    if sums_draft.is_file() and not sums_draft.is_symlink():
        for line in sums_draft.read_text(encoding="ascii", errors="replace").splitlines():
            if match := _PART.fullmatch(line):
                (to / match[2]).unlink(missing_ok=True)
        (to / SIGNATURE).unlink(missing_ok=True)
    sums_draft.unlink(missing_ok=True)
    for draft in to.glob(".bundle.tar.*"):
        draft.unlink()


class BundlePart(NamedTuple):
    """One file of a bundle and its sha256."""

    path: Path
    sha256: str


def signer(key: Path | None) -> Callable[[bytes], bytes]:
    """Return a function that signs a bundle's list of hashes with a private key; without a key, it returns b""."""

    def sign(content: bytes) -> bytes:
        return b"" if key is None else signing.sign(content, _PURPOSE, key)

    return sign


def bundle_digest(source: Path) -> str:
    """Return a bundle's digest: the sha256 of its list of hashes, as hex. Raises ConfigError if it has no list."""
    return hashlib.sha256(_read_sums(source)).hexdigest()


def authenticate(source: Path, sums: bytes, sha256: str | None, key: Path | None) -> None:
    """Raise PromiseError if the list of hashes does not have this digest or this public key did not sign it."""
    if sha256 is not None and hashlib.sha256(sums).hexdigest() != sha256:
        message = f"{source}: the bundle has another digest than {sha256}"
        raise PromiseError(message, fix="do not use it: compare with what `envcheck store export` printed")
    if key is None:
        return
    try:
        signed = safe_files.read_regular(source / SIGNATURE, signing.BYTES + 1)
    except OSError as error:
        message = f"{source}: cannot read {SIGNATURE}: the bundle is not signed"
        raise PromiseError(message, fix="export it with --key, or compare its digest (--sha256)") from error
    signing.verify(sums, signed, _PURPOSE, key, str(source))


def verified_parts(
    source: Path, progress: Progress, *, sha256: str | None = None, key: Path | None = None
) -> list[BundlePart]:
    """Authenticate a bundle, hash its parts, and return them in order.

    `sha256` is the digest that it must have, `key` the public key that must have signed it; None skips that test.
    Raises PromiseError if anything does not match, UnavailableError if a part is missing, ConfigError if `source` is
    not a bundle.
    """
    content = _read_sums(source)
    authenticate(source, content, sha256, key)
    rows = _parse_sums(source, content)
    parts = [source / name for _, name in rows]
    missing = [part.name for part in parts if part.is_symlink() or not part.is_file()]
    if missing:
        message = f"{source}: missing: {missing[0]}{f' and {len(missing) - 1} more' if missing[1:] else ''}"
        raise UnavailableError(message, fix="copy all parts of the bundle there")
    total, done = 2 * sum(part.stat().st_size for part in parts), 0
    for part, (digest, _) in zip(parts, rows, strict=True):
        hasher = hashlib.sha256()
        with part.open("rb") as file:
            while block := file.read(_AT_ONCE):
                hasher.update(block)
                done += len(block)
                progress(done, total)
        if hasher.hexdigest() != digest:
            message = f"{part}: it has another sha256 than {SUMS} says"
            raise PromiseError(message, fix="copy this part again")
    return [BundlePart(part, digest) for part, (digest, _) in zip(parts, rows, strict=True)]


def _read_sums(source: Path) -> bytes:
    try:
        content = safe_files.read_regular(source / SUMS, _LONGEST)
        content.decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{source}: cannot read {SUMS}"
        raise ConfigError(message, fix="name the directory that `envcheck store export` wrote") from error
    return content


def _parse_sums(source: Path, content: bytes) -> list[tuple[str, str]]:
    lines = content.decode("ascii").splitlines()
    rows = [(match[1], match[2]) for line in lines if (match := _PART.fullmatch(line))]
    if not rows or len(rows) != len(lines) or [n for _, n in rows] != [f"bundle.tar.{i:03}" for i in range(len(rows))]:
        message = f"{source / SUMS}: it does not list the parts of a bundle in order, each once"
        raise ConfigError(message, fix="copy the bundle again")
    return rows


class PartReader:
    """Files that are read as one stream. Raises PromiseError if a file's hash does not match when its end is read."""

    def __init__(self, parts: list[BundlePart], progress: Progress) -> None:
        self._blocks = self._read_all(parts)
        self._rest = memoryview(b"")
        self._progress = progress
        self._total = 2 * sum(part.path.stat().st_size for part in parts)
        self._done = self._total // 2

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes; b"" at the end."""
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
