"""The journal of an unfinished file: which pieces a later process may reuse.

The journal is JSON lines beside the data: a header, then one line for each piece, written after the piece's bytes. If
the process is killed, the page cache survives and every line holds. After a reboot only the lines before the last
`synced` hold, and all `forget` lines; a `synced` line is written when the data before it is on the disk. An unreadable
line ends the journal. A source is recorded as a hash of its URL, because the URL may be signed.
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
    """The hash and size of the finished file, the piece size, and the boot during which the download began."""

    sha256: str
    size: int
    piece: int
    boot: str

    def fits(self, other: Header) -> bool:
        """Tell whether both describe the same file in the same pieces."""
        return (self.sha256, self.size, self.piece) == (other.sha256, other.size, other.piece)


def boot_id() -> str:
    """Return the kernel's id of this boot, or "" if it cannot be read; "" equals no other boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def source_id(url: str) -> str:
    """Return the name of a source in a journal."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def read(text: bytes, boot: str) -> tuple[Header | None, dict[int, str]]:
    """Return the header and the source of each valid piece; (None, {}) if the text is not a journal."""
    lines = text.split(b"\n")[:-1]
    header = _header(_row(lines[0])) if lines else None
    if header is None:
        return None, {}
    notes, synced = _notes(lines[1:])
    if boot and header.boot == boot:
        return header, _replayed(notes)
    return header, _replayed([*notes[:synced], *(row for row in notes[synced:] if "forget" in row)])


def _notes(lines: list[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Return the notes up to the first invalid line, and how many of them are certainly on the disk."""
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
    """The open journal. Each line is one write to a file that no other process has open."""

    def __init__(self, path: Path, header: Header, pieces: Mapping[int, str]) -> None:
        """Write a new journal with the valid pieces, and sync it."""
        rows = [{"envcheck-fetch": _FORMAT, **dataclasses.asdict(header)}]
        rows += [{"piece": piece, "source": source} for piece, source in sorted(pieces.items())]
        fresh = path.with_name(path.name + ".new")
        self._file = safe_files.create(fresh)
        safe_files.write(self._file, b"".join(_line(row) for row in [*rows, {"synced": len(pieces)}]))
        os.fsync(self._file)
        fresh.replace(path)
        self.notes = len(pieces)

    def piece(self, piece: int, source: str) -> None:
        """Record a piece whose bytes are written."""
        self._note({"piece": piece, "source": source})

    def forget(self, pieces: list[int]) -> None:
        """Record pieces that must be fetched again."""
        self._note({"forget": pieces})

    def synced(self, notes: int) -> None:
        """Record and sync that the bytes of the first `notes` notes are on the disk."""
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
