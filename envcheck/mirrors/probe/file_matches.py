"""From index pages to the files that are needed: where a mirror lists each, and how surely. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envcheck.mirrors.index.simple_api import IndexFile
from envcheck.mirrors.probe.measurements import Sight
from envcheck.mirrors.profiles.model import without_query

PYPI: Final = "pypi"
NO_HASH: Final = "the page gives no hash, and no other mirror tells which file is meant"


@dataclasses.dataclass(frozen=True)
class Asked:
    """One package of a lock. `part` is where the lock says it is from: "pypi" or "pytorch/cu128"."""

    project: str
    version: str
    sha256: tuple[str, ...]
    part: str = PYPI

    @property
    def label(self) -> str:
        """Return it as a person writes it."""
        return f"{self.project}=={self.version}"


@dataclasses.dataclass(frozen=True)
class Known:
    """What some page tells of a hash: the file's name, and its size in bytes where one says it."""

    name: str
    size: int | None


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One place where a file may be asked for."""

    sight: Sight
    url: str


def known(pages: Iterable[Sequence[IndexFile]]) -> dict[str, Known]:
    """Return what all pages together tell of each hash."""
    found: dict[str, Known] = {}
    for file in (file for page in pages for file in page):
        if file.sha256 is not None:
            before = found.get(file.sha256)
            found[file.sha256] = Known(file.name, file.size if before is None else before.size or file.size)
    return found


def candidates(
    asked: Asked, pages: Sequence[Sequence[IndexFile]], unread: Sequence[str], told: Mapping[str, Known]
) -> list[list[Candidate]]:
    """Return, for each file of a package, the places to ask for it in order; one without a URL says what is missing."""
    files = [file for page in pages for file in page]
    found = [_places(asked, digest, files, told.get(digest)) for digest in asked.sha256]
    return [places for places in found if places] or [[Candidate(_missing(asked, files, unread, told), "")]]


def _places(asked: Asked, digest: str, files: Sequence[IndexFile], told: Known | None) -> list[Candidate]:
    sure = [file for file in files if file.sha256 == digest]
    named = [file for file in files if told is not None and file.sha256 is None and file.name == told.name]
    size = told.size if told is not None else None
    return [
        Candidate(
            Sight(
                need=asked.label,
                listed="hash" if file.sha256 else "name",
                sha256=digest,
                name=file.name,
                size=file.size or size,
                url=without_query(file.url),
            ),
            file.url,
        )
        for file in [*sure, *named]
    ]


def _missing(asked: Asked, files: Sequence[IndexFile], unread: Sequence[str], told: Mapping[str, Known]) -> Sight:
    names = {told[digest].name for digest in asked.sha256 if digest in told}
    wrong = next((file for file in files if file.sha256 is not None and file.name in names), None)
    if wrong is not None:
        why = f"its page gives {wrong.name} the sha256 {str(wrong.sha256)[:12]}..., not the lock's"
        return Sight(need=asked.label, listed="other", name=wrong.name, why=why)
    same = [file for file in files if _is(file.name, asked)]
    if not files and unread:
        return Sight(need=asked.label, listed="unread", why="; ".join(dict.fromkeys(unread)))
    if any(file.sha256 is None for file in same) and not names:
        return Sight(need=asked.label, listed="absent", why=NO_HASH)
    why = "no file of that version has a hash of the lock" if same else "that version is not there"
    return Sight(need=asked.label, listed="absent", why="; ".join(dict.fromkeys([why, *unread])))


def _is(name: str, asked: Asked) -> bool:
    """Tell whether a file's name says this project and version."""
    try:
        parsed = parse_wheel_filename(name)[:2] if name.endswith(".whl") else parse_sdist_filename(name)
        return parsed[0] == asked.project and parsed[1] == Version(asked.version)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return False
