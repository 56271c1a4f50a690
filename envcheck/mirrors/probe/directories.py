"""Find the needed files in the local directories of a profile, by their hash, without a request."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from envcheck.mirrors.index.locate import LockedPackage, local_files
from envcheck.mirrors.probe.file_matches import WantedPackage
from envcheck.mirrors.probe.measurements import FileResponse, FileStatus
from envcheck.mirrors.profiles.model import Profile

_BLOCK_BYTES: Final = 1 << 20


def matching_files(profile: Profile, packages: Iterable[WantedPackage]) -> dict[str, FileStatus]:
    """Return the needed files in this machine's directories, by hash. Read every file with a matching name."""
    by_hash: dict[str, FileStatus] = {}
    for package, path in _candidates(profile, packages):
        digest, size = _hash(path)
        if digest in package.sha256:
            by_hash.setdefault(digest, _file_status(package, digest, path.name, size))
    return by_hash


def file_stamps(profile: Profile, packages: Iterable[WantedPackage]) -> list[tuple[str, int, int]]:
    """Return path, size and modification time of each file that `matching_files` reads."""
    stamps = []
    for _, path in _candidates(profile, packages):
        with contextlib.suppress(OSError):
            stat = path.stat()
            stamps.append((str(path), stat.st_size, stat.st_mtime_ns))
    return sorted(stamps)


def _candidates(profile: Profile, packages: Iterable[WantedPackage]) -> Iterator[tuple[WantedPackage, Path]]:
    indexes = {"pypi": profile.pypi, "pytorch": profile.pytorch}
    # Only packages of these parts have versions to compare.
    for package in (package for package in packages if package.part.partition("/")[0] in indexes):
        for path in local_files(LockedPackage(package.project, package.sha256, package.part, package.version), indexes):
            yield package, path


def _file_status(package: WantedPackage, digest: str, name: str, size: int) -> FileStatus:
    # No host serves the file; any range of a local file can be read.
    response = FileResponse(status=200, hosts=[], ranged=True, total=size)
    return FileStatus(need=package.label, listed="hash", sha256=digest, name=name, size=size, reached=response)


def _hash(path: Path) -> tuple[str, int]:
    hasher = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                hasher.update(block)
            return hasher.hexdigest(), file.tell()
    except OSError:
        return "", 0
