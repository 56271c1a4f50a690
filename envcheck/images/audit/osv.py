"""An OSV database as a directory: records as JSON files, loose or in zip files as osv.dev exports them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from envcheck.errors import UnavailableError
from envcheck.images.audit.files import files
from envcheck.images.audit.ranges import OsvRange

ECOSYSTEM: Final = "PyPI"
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
        """True if the package is one of the Python index, however the record spells its name."""
        if self.package is None:
            return False
        return self.package.ecosystem.partition(":")[0].strip().casefold() == ECOSYSTEM.casefold()


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
    """The records of the Python index, each file that could not be read, with why, and how many are no records."""

    records: list[OsvRecord]
    unreadable: list[str]
    ignored: int = 0


def load(path: Path) -> OsvDatabase:
    """Return all records of PyPI below a directory, or in a zip file. UnavailableError where there is no database."""
    _refuse_unless_there(path)
    decode = msgspec.json.Decoder(OsvRecord).decode
    records: list[OsvRecord] = []
    unreadable: list[str] = []
    ignored = 0
    for where, content in files(path):
        if content is None:
            ignored += 1
            continue
        try:
            record = decode(content if isinstance(content, bytes) else _raised(content))
        except Exception as error:  # noqa: BLE001 (whatever is wrong with a record, it was not read)
            unreadable.append(f"{where}: {_reason(error)}")
            continue
        if any(affected.of_pypi for affected in record.affected):
            records.append(record)
    if not records and not unreadable:
        message = f"{path}: no record of {ECOSYSTEM} is there"
        raise UnavailableError(message, fix=_FIX)
    return OsvDatabase(records, unreadable, ignored)


def _refuse_unless_there(path: Path) -> None:
    try:
        path.stat()
    except OSError as error:
        message = f"{path}: no OSV database is there ({_reason(error)})"
        raise UnavailableError(message, fix=_FIX) from None


def _raised(error: Exception) -> bytes:
    raise error


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
