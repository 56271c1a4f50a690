"""A bundle: what a published tree needs, as one deterministic tar in parts, for where no network goes.

    bundle.tar.000 …       the tar, cut at the part size: `cat bundle.tar.* | tar -x` reads it too
    bundle.sha256          the hash of each part, as sha256sum writes it

In the tar stand contents.json and the objects it names, in order of their hashes. Its index pages are not in it:
who imports it makes them anew, so that no page of another's making is ever served.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.mirrors import contents as known
from envcheck.mirrors.contents import Contents
from envcheck.mirrors.store import Store

SUMS: Final = "bundle.sha256"
# Their names have three digits, so that `cat bundle.tar.*` has them in order.
_MOST_PARTS: Final = 1000
CONTENTS: Final = "contents.json"
_PART: Final = re.compile(r"([0-9a-f]{64})  (bundle\.tar\.[0-9]{3,6})")
_OBJECT: Final = re.compile(r"sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})")
# The list of what is in it: 100 000 files have 30 MB.
_LARGEST: Final = 256 << 20
_AT_ONCE: Final = 1 << 20
Progress = Callable[[int, int], None]


def export(store: Store, contents: Contents, to: Path, *, part_size: int, progress: Progress) -> list[Path]:
    """Write the bundle of these contents into `to`; return its parts. Two of the same contents are equal to the bit.

    Every object is hashed on its way: a store that has rotted is a PromiseError, and no bundle.
    """
    to.mkdir(parents=True, exist_ok=True)
    if any(to.glob("bundle.*")):
        message = f"{to}: there is a bundle already"
        raise ConfigError(message, fix="give -o another directory, or remove it")
    wanted = known.objects(contents)
    missing = [digest for digest in wanted if not store.has(digest)]
    if missing:
        message = f"{store.root}: {len(missing)} of the files are not there, {missing[0]} for one"
        raise UnavailableError(message, fix="fetch them: give --mirror PROFILE")
    parts = _Parts(to, part_size)
    try:
        _write(store, contents, list(wanted), parts, progress)
        return parts.finish()
    except BaseException:
        parts.discard()
        raise


def read(store: Store, source: Path, progress: Progress) -> Contents:
    """Take a bundle's objects into the store and return its contents.

    Every part and every object is held against its hash before the first one gets its name in the store: until then
    all is in a directory of its own, which the next import empties when this one is interrupted.
    """
    parts = _verified(source, progress)
    with store.locked("import.lock"):
        staging = store.root / "import"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        size, free = sum(part.stat().st_size for part in parts), shutil.disk_usage(staging).free
        if size > free:
            message = f"{store.root}: {size} bytes are needed and {free} are free"
            raise UnavailableError(message, fix="make room: `envcheck store gc`, or give --store another place")
        try:
            contents = _unpack(parts, staging, progress)
            for digest in known.objects(contents):
                name = next((wheel.name for wheel in contents.wheels if wheel.sha256 == digest), digest)
                store.take(staging / digest, digest, name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return contents


def _write(store: Store, contents: Contents, digests: list[str], parts: _Parts, progress: Progress) -> None:
    listed = msgspec.json.format(msgspec.json.encode(contents), indent=1) + b"\n"
    total = len(listed) + sum(store.path(digest).stat().st_size for digest in digests)
    done = 0
    with tarfile.open(fileobj=parts, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_AT_ONCE) as tar:
        tar.addfile(_member(CONTENTS, len(listed)), io.BytesIO(listed))
        for digest in digests:
            with store.path(digest).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                hashed = _Hashed(file)
                tar.addfile(_member(f"sha256/{digest[:2]}/{digest}", size), hashed)
            if hashed.hexdigest() != digest:
                message = f"{store.path(digest)}: it has another hash than its name"
                raise PromiseError(message, fix="run `envcheck store verify`, and fetch it again")
            done += size
            progress(done, total)


def _member(name: str, size: int) -> tarfile.TarInfo:
    """Return a tar header that says nothing of when, where and by whom."""
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o444, 0
    return member


class _Hashed(io.RawIOBase):
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hasher = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        block = self._file.read(size)
        self._hasher.update(block)
        return block

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


class _Parts(io.RawIOBase):
    """A stream that is cut into files of `size` bytes, which get their names when all of them are there."""

    def __init__(self, to: Path, size: int) -> None:
        self._to, self._size = to, size
        self._sums: list[str] = []
        self._file: IO[bytes] | None = None
        self._left = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # tarfile gives bytes
        view = memoryview(data)
        while view:
            if self._left == 0:
                self._next()
            taken = view[: self._left]
            self._file.write(taken)  # type: ignore[union-attr]  # _next opened it
            self._hasher.update(taken)
            self._left -= len(taken)
            view = view[len(taken) :]
        return len(data)

    def finish(self) -> list[Path]:
        self._end()
        names = [f"bundle.tar.{number:03}" for number in range(len(self._sums))]
        for name in names:
            self._draft(name).replace(self._to / name)
        rows = [f"{digest}  {name}\n" for digest, name in zip(self._sums, names, strict=True)]
        (self._to / SUMS).write_text("".join(rows), encoding="ascii")
        return [self._to / name for name in names]

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
        for draft in self._to.glob(".bundle.tar.*"):
            draft.unlink()

    def _next(self) -> None:
        self._end()
        if len(self._sums) >= _MOST_PARTS:
            message = f"more than {_MOST_PARTS} parts of {self._size} bytes"
            raise ConfigError(message, fix="allow larger parts (--part-size)")
        self._file = self._draft(f"bundle.tar.{len(self._sums):03}").open("wb")
        self._hasher = hashlib.sha256()
        self._left = self._size

    def _end(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            self._sums.append(self._hasher.hexdigest())

    def _draft(self, name: str) -> Path:
        return self._to / f".{name}"


def _verified(source: Path, progress: Progress) -> list[Path]:
    """Return a bundle's parts in order, each of its hash."""
    rows = _sums(source)
    parts = [source / name for _, name in rows]
    lacking = next((part.name for part in parts if part.is_symlink() or not part.is_file()), None)
    if lacking is not None:
        message = f"{source}: {lacking} is not there"
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
    return parts


def _sums(source: Path) -> list[tuple[str, str]]:
    try:
        lines = (source / SUMS).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{source}: no {SUMS} can be read there"
        raise ConfigError(message, fix="name the directory that `envcheck store export` wrote") from error
    rows = [(match[1], match[2]) for line in lines if (match := _PART.fullmatch(line))]
    if not rows or len(rows) != len(lines) or [n for _, n in rows] != [f"bundle.tar.{i:03}" for i in range(len(rows))]:
        message = f"{source / SUMS}: it does not list the parts of a bundle in order, each once"
        raise ConfigError(message, fix="copy the bundle again")
    return rows


class _Joined(io.RawIOBase):
    """Files read as one."""

    def __init__(self, paths: list[Path], progress: Progress) -> None:
        self._blocks = self._read_all(paths)
        self._rest = memoryview(b"")
        self._progress = progress
        self._total = 2 * sum(path.stat().st_size for path in paths)
        self._done = self._total // 2

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        taken, self._rest = self._rest[:size], self._rest[size:]
        self._done += len(taken)
        self._progress(self._done, self._total)
        return bytes(taken)

    def _read_all(self, paths: list[Path]) -> Iterator[bytes]:
        for path in paths:
            with path.open("rb") as file:
                while block := file.read(_AT_ONCE):
                    yield block


def _unpack(parts: list[Path], staging: Path, progress: Progress) -> Contents:
    """Write every object below `staging`, each of its hash, and return the contents that name exactly these."""
    contents: Contents | None = None
    wanted: dict[str, int | None] = {}
    where = parts[0].parent
    try:
        with tarfile.open(fileobj=_Joined(parts, progress), mode="r|", bufsize=_AT_ONCE) as tar:
            for member in tar:
                file = _regular(tar, member, where)
                if contents is None:
                    contents = _listed(file, member, where)
                    wanted = known.objects(contents)
                else:
                    _object(file, member, wanted, staging)
    except (tarfile.TarError, EOFError) as error:
        message = f"{where}: no bundle: {error}"
        raise ConfigError(message, fix="export it anew") from error
    if contents is None or wanted:
        message = f"{where}: the bundle lacks {len(wanted) or 'all'} of its files"
        raise PromiseError(message, fix="export it anew")
    return contents


def _regular(tar: tarfile.TarFile, member: tarfile.TarInfo, where: Path) -> IO[bytes]:
    file = tar.extractfile(member) if member.type in {tarfile.REGTYPE, tarfile.AREGTYPE} else None
    if file is None:
        message = f"{where}: {member.name!r} in it is no regular file"
        raise PromiseError(message, fix="do not use this bundle: `envcheck store export` made no such one")
    return file


def _listed(file: IO[bytes], member: tarfile.TarInfo, where: Path) -> Contents:
    if member.name != CONTENTS or member.size > _LARGEST:
        message = f"{where}: it begins with {member.name!r}, not with {CONTENTS}"
        raise PromiseError(message, fix="do not use this bundle: `envcheck store export` made no such one")
    return known.parse(file.read(), f"{where}: {CONTENTS}")


def _object(file: IO[bytes], member: tarfile.TarInfo, wanted: dict[str, int | None], staging: Path) -> None:
    """Write one object; its name must be one that the contents still wait for, in the one form it may have."""
    match = _OBJECT.fullmatch(member.name)
    digest = match[2] if match else ""
    if digest not in wanted or wanted[digest] not in {None, member.size}:
        message = f"{member.name!r} has no place in the bundle, or is there twice, or of another size"
        raise PromiseError(message, fix="do not use this bundle: `envcheck store export` made no such one")
    hashed = _Hashed(file)
    with (staging / digest).open("xb") as target:
        shutil.copyfileobj(hashed, target, _AT_ONCE)
        target.flush()
        os.fsync(target.fileno())
    if hashed.hexdigest() != digest:
        message = f"{member.name}: its bytes have another hash"
        raise PromiseError(message, fix="export the bundle anew")
    del wanted[digest]
