"""Find the needed files on index pages: where a mirror lists each one, by hash or by name. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from packaging.version import Version

from envcheck.mirrors.index.file_names import parse_file_name
from envcheck.mirrors.index.simple_api import IndexFile
from envcheck.mirrors.probe.measurements import FileStatus
from envcheck.mirrors.profiles.model import without_query

PYPI: Final = "pypi"
NO_HASH: Final = "the page gives no hash, and no other mirror lists the hash of the lock"


@dataclasses.dataclass(frozen=True)
class WantedPackage:
    """One package of a lock. `part` is its index in the lock: "pypi" or "pytorch/cu128"."""

    project: str
    version: str
    sha256: tuple[str, ...]
    part: str = PYPI

    @property
    def label(self) -> str:
        """Return project==version."""
        return f"{self.project}=={self.version}"


@dataclasses.dataclass(frozen=True)
class ListedFile:
    """The file with a certain hash, as pages list it: its name, and its size in bytes or None."""

    name: str
    size: int | None


@dataclasses.dataclass(frozen=True)
class FileCandidate:
    """A URL that may have a file, with the file's status there; "" without a request."""

    status: FileStatus
    url: str


def files_by_hash(pages: Iterable[Sequence[IndexFile]]) -> dict[str, ListedFile]:
    """Return the listed files of all pages by their hash."""
    by_hash: dict[str, ListedFile] = {}
    for file in (file for page in pages for file in page):
        if file.sha256 is not None:
            earlier = by_hash.get(file.sha256)
            by_hash[file.sha256] = ListedFile(file.name, file.size if earlier is None else earlier.size or file.size)
    return by_hash


def candidates(
    package: WantedPackage,
    pages: Sequence[Sequence[IndexFile]],
    unread: Sequence[str],
    listed: Mapping[str, ListedFile],
) -> list[list[FileCandidate]]:
    """Return the candidates for each file of a package, in order; one without a URL has the reason in its status."""
    files = [file for page in pages for file in page]
    by_digest = [_matching_files(package, digest, files, listed.get(digest)) for digest in package.sha256]
    return [places for places in by_digest if places] or [
        [FileCandidate(_missing_status(package, files, unread, listed), "")]
    ]


def _matching_files(
    package: WantedPackage, digest: str, files: Sequence[IndexFile], listed: ListedFile | None
) -> list[FileCandidate]:
    same_hash = [file for file in files if file.sha256 == digest]
    same_name = [file for file in files if listed is not None and file.sha256 is None and file.name == listed.name]
    size = listed.size if listed is not None else None
    return [
        FileCandidate(
            FileStatus(
                need=package.label,
                listed="hash" if file.sha256 else "name",
                sha256=digest,
                name=file.name,
                size=file.size or size,
                url=without_query(file.url),
            ),
            file.url,
        )
        for file in [*same_hash, *same_name]
    ]


def _missing_status(
    package: WantedPackage, files: Sequence[IndexFile], unread: Sequence[str], listed: Mapping[str, ListedFile]
) -> FileStatus:
    names = {listed[digest].name for digest in package.sha256 if digest in listed}
    other = next((file for file in files if file.sha256 is not None and file.name in names), None)
    if other is not None:
        why = f"its page lists {other.name} with sha256 {str(other.sha256)[:12]}..., not the lock's"
        return FileStatus(need=package.label, listed="other", name=other.name, why=why)
    same_version = [file for file in files if _is_file_of(file.name, package)]
    if not files and unread:
        return FileStatus(need=package.label, listed="unread", why="; ".join(dict.fromkeys(unread)))
    if any(file.sha256 is None for file in same_version) and not names:
        return FileStatus(need=package.label, listed="absent", why=NO_HASH)
    why = "no file of that version has a hash of the lock" if same_version else "it lacks that version"
    return FileStatus(need=package.label, listed="absent", why="; ".join(dict.fromkeys([why, *unread])))


def _is_file_of(name: str, package: WantedPackage) -> bool:
    """Tell whether a file's name has the project and version of the package."""
    try:
        project, version, _ = parse_file_name(name)
        return project == package.project and version == Version(package.version)
    except ValueError:
        return False
