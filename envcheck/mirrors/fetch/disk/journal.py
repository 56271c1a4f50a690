"""What a later process may believe of an unfinished file.

Lines of JSON beside the data: a header, then one line a piece, written after the piece's bytes. A kill leaves the
page cache whole, so each line holds. A power cut does not: after a reboot only lines before the last `synced` hold,
and that line is written when the data before it is on the disk; what was to be forgotten is. What cannot be read ends
the journal there. A source is noted as a hash of its URL, which may be signed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envcheck import safe_files

_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Header:
    """What the unfinished file is to become, and the boot during which it was begun."""

    sha256: str
    size: int
    piece: int
    boot: str

    def fits(self, other: Header) -> bool:
        """Tell whether it is the same file in the same pieces."""
        return (self.sha256, self.size, self.piece) == (other.sha256, other.size, other.piece)


def boot_id() -> str:
    """Return what is another after every boot; "" where the system does not tell, which is like no other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def source_id(url: str) -> str:
    """Return what a source is called in a journal."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def read(text: bytes, boot: str) -> tuple[Header | None, dict[int, str]]:
    """Return the header, and the source of each piece that holds; (None, {}) of what is no journal."""
    lines = text.split(b"\n")[:-1]
    header = _header(_row(lines[0])) if lines else None
    if header is None:
        return None, {}
    notes, synced = _notes(lines[1:])
    if boot and header.boot == boot:
        return header, _replayed(notes)
    return header, _replayed([*notes[:synced], *(row for row in notes[synced:] if "forget" in row)])


def _notes(lines: list[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Return the notes up to the first line that is none, and how many of them are on the disk for certain."""
    notes: list[dict[str, Any]] = []
    synced = 0
    for row in map(_row, lines):
        if _index(row.get("synced")):
            synced = min(row["synced"], len(notes))
        elif (_index(row.get("piece")) and isinstance(row.get("source"), str)) or isinstance(row.get("forget"), list):
            notes.append(row)
        else:
            break
    return notes, synced


def _replayed(notes: list[dict[str, Any]]) -> dict[int, str]:
    pieces: dict[int, str] = {}
    for row in notes:
        if "forget" in row:
            pieces = {piece: source for piece, source in pieces.items() if piece not in row["forget"]}
        else:
            pieces[row["piece"]] = row["source"]
    return pieces


def _index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _header(row: Mapping[str, Any]) -> Header | None:
    if row.get("envcheck-fetch") != _FORMAT:
        return None
    values = [row.get(field.name) for field in dataclasses.fields(Header)]
    kinds = (str, int, int, str)
    if not all(isinstance(value, kind) for value, kind in zip(values, kinds, strict=True)):
        return None
    return Header(*values)  # type: ignore[arg-type]  # their types were looked at


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


class Journal:
    """The open journal. Its lines are whole: one write each, to a file that no one else has open."""

    def __init__(self, path: Path, header: Header, pieces: Mapping[int, str]) -> None:
        """Start over with what holds, on the disk at once."""
        rows = [{"envcheck-fetch": _FORMAT, **dataclasses.asdict(header)}]
        rows += [{"piece": piece, "source": source} for piece, source in sorted(pieces.items())]
        fresh = path.with_name(path.name + ".new")
        self._file = safe_files.create(fresh)
        safe_files.write(self._file, b"".join(_line(row) for row in [*rows, {"synced": len(pieces)}]))
        os.fsync(self._file)
        fresh.replace(path)
        self.notes = len(pieces)

    def piece(self, piece: int, source: str) -> None:
        """Note a piece whose bytes are written."""
        self._note({"piece": piece, "source": source})

    def forget(self, pieces: list[int]) -> None:
        """Note pieces that have to come again."""
        self._note({"forget": pieces})

    def synced(self, notes: int) -> None:
        """Note, on the disk, that the bytes of the first `notes` notes are on the disk."""
        os.write(self._file, _line({"synced": notes}))
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _note(self, row: Mapping[str, Any]) -> None:
        os.write(self._file, _line(row))
        self.notes += 1


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"
