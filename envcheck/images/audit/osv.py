"""An OSV database as a directory: records as JSON files, loose or in zip files as osv.dev exports them."""

from __future__ import annotations

import datetime as dt
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from envcheck.errors import UnavailableError
from envcheck.images.audit.ranges import OsvRange

ECOSYSTEM: Final = "PyPI"
# The longest records list some thousand versions; what is longer is no record.
_LARGEST: Final = 32_000_000
_FIX: Final = "bring an OSV export of PyPI (its all.zip, or the records in it) and give it with --osv"


class OsvPackage(msgspec.Struct, frozen=True, kw_only=True):
    """The package that a record speaks of."""

    ecosystem: str
    name: str


class OsvAffected(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says of one package. A record of commits alone names none."""

    package: OsvPackage | None = None
    versions: list[str] = []
    ranges: list[OsvRange] = []

    @property
    def of_pypi(self) -> bool:
        """True if the package is one of the Python index."""
        return self.package is not None and self.package.ecosystem.partition(":")[0] == ECOSYSTEM


class OsvRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One vulnerability."""

    id: str
    modified: dt.datetime
    withdrawn: dt.datetime | None = None
    aliases: list[str] = []
    summary: str = ""
    details: str = ""
    affected: list[OsvAffected] = []


class OsvDatabase(NamedTuple):
    """The records of the Python index, and each file that could not be read, with why."""

    records: list[OsvRecord]
    unreadable: list[str]


def load(path: Path) -> OsvDatabase:
    """Return all records of PyPI below a directory, or in a zip file. UnavailableError where there is no database."""
    if not path.exists():
        message = f"{path}: no OSV database is there"
        raise UnavailableError(message, fix=_FIX)
    decode = msgspec.json.Decoder(OsvRecord).decode
    records: list[OsvRecord] = []
    unreadable: list[str] = []
    for where, content in _files(path):
        try:
            record = decode(content if isinstance(content, bytes) else _raised(content))
        except (msgspec.DecodeError, OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            unreadable.append(f"{where}: {_reason(error)}")
            continue
        if any(affected.of_pypi for affected in record.affected):
            records.append(record)
    if not records and not unreadable:
        message = f"{path}: no record of {ECOSYSTEM} is there"
        raise UnavailableError(message, fix=_FIX)
    return OsvDatabase(records, unreadable)


def _raised(error: Exception) -> bytes:
    raise error


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _files(path: Path) -> Iterator[tuple[str, bytes | Exception]]:
    """Yield each record's name and bytes, or what kept them from being read."""
    if path.is_file():
        yield from _zipped(path)
        return
    for file in sorted(path.rglob("*")):
        if file.suffix == ".zip" and file.is_file():
            yield from _zipped(file)
        elif file.suffix == ".json" and file.is_file():
            try:
                yield str(file), file.read_bytes()
            except OSError as error:
                yield str(file), error


def _zipped(path: Path) -> Iterator[tuple[str, bytes | Exception]]:
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.filename.endswith(".json"):
                    continue
                where = f"{path}!{info.filename}"
                if info.file_size > _LARGEST:
                    yield where, OSError(f"{info.file_size} bytes are no record")
                    continue
                try:
                    yield where, archive.read(info)
                except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError) as error:
                    yield where, error
    except (zipfile.BadZipFile, OSError) as error:
        yield str(path), error
