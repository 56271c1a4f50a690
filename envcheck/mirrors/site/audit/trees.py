"""Audit published trees on the disk by their own manifests, and remove wrong files so that they are not served.

A tree is a directory with a manifest that `envcheck store release` wrote; it may lie at any depth of what is served.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from envcheck.mirrors.site.audit.report import AuditFinding
from envcheck.mirrors.site.model import Site
from envcheck.mirrors.store.versions import MANIFEST, Manifest

_CHUNK_BYTES: Final = 1 << 20
# A copy may write a file in place: one that changed within these seconds is hashed again.
_RECENT_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.5
_Hashes = Mapping[str, str]  # path below the tree -> sha256
_NO_HASHES: Final[_Hashes] = {}


@dataclasses.dataclass(frozen=True)
class UnreadPath:
    """A path that was not read, and why; `unexpected` means that it was read and does not belong there."""

    path: Path
    why: str
    unexpected: bool = False


@dataclasses.dataclass(frozen=True)
class ServedDirectory:
    """A directory that the site serves: the name clients use, its path, and how to restore a removed file."""

    name: str
    path: Path
    fix: str


def served_directories(site: Site) -> Iterator[ServedDirectory]:
    """Yield the site's copies of trees and the tree of its store. Raise OSError if they cannot be listed."""
    folder = Path(site.root, "public/static")
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        names = []
    yield from (ServedDirectory(name, folder / name, "the next copy restores it") for name in names)
    if site.store and Path(site.store, "current").is_symlink():
        fix = f"run `envcheck store --store {site.store} verify`, then `envcheck store release`"
        yield ServedDirectory("store", Path(site.store, "current"), fix)


def audit(site: Site) -> Iterator[AuditFinding]:
    """Yield a finding for every file of the site's trees; wrong files are removed."""
    try:
        for directory in served_directories(site):
            yield from _audited(directory)
    except OSError as error:
        path = Path(error.filename or site.root)
        yield _unreadable(str(path), path, error)


def _audited(directory: ServedDirectory) -> Iterator[AuditFinding]:
    # A version may be switched during the audit: the one that was served at its beginning is read.
    root = directory.path.resolve() if directory.path.exists() else directory.path
    if not root.is_dir():
        yield _not_a_directory(directory, root)
        return
    paths = list(_files(root))
    hashes: dict[Path, _Hashes] = {}
    for manifest in [path for path in paths if isinstance(path, Path) and path.name == MANIFEST]:
        content = _manifest(manifest)
        if isinstance(content, UnreadPath):
            yield _unread_finding(directory, root, content)
        else:
            hashes[manifest.parent] = content
    for path in paths:
        if isinstance(path, UnreadPath):
            yield _unread_finding(directory, root, path)
        elif path.name != MANIFEST:
            folder = next((parent for parent in path.parents if parent in hashes), root)
            expected = hashes.get(folder, _NO_HASHES).get(str(path.relative_to(folder)))
            yield from _file(directory, root, path, expected)
    present = set(paths)
    for folder, listed in hashes.items():
        absent = (folder / name for name in listed if folder / name not in present)
        yield from (AuditFinding(_name(directory, root, path), "missing", cache="trees") for path in absent)


def _not_a_directory(directory: ServedDirectory, root: Path) -> AuditFinding:
    try:
        directory.path.stat()
    except OSError as error:
        return _unreadable(directory.name, directory.path, error)
    return AuditFinding(directory.name, "unknown", f"{root} is not in a published tree", cache="trees")


def _manifest(path: Path) -> _Hashes | UnreadPath:
    try:
        with _regular(path) as file:
            manifest = msgspec.json.decode(file.read(), type=Manifest)
    except OSError as error:
        return _unread(path, error)
    except (msgspec.DecodeError, RecursionError) as error:
        return UnreadPath(path, f"not the manifest of a published tree: {error}", unexpected=True)
    return {file.path: file.sha256 for file in manifest.files}


def _file(directory: ServedDirectory, root: Path, path: Path, expected: str | None) -> Iterator[AuditFinding]:
    name = _name(directory, root, path)
    if expected is None:
        yield AuditFinding(name, "unknown", "no manifest of a published tree lists it", cache="trees")
        return
    try:
        sha256 = _settled_hash(path, expected)
    except FileNotFoundError:
        return
    except OSError as error:
        yield _unreadable(name, path, error)
        return
    if sha256 == expected:
        yield AuditFinding(name, "clean", cache="trees", by="manifest")
        return
    problem = f"it has sha256 {sha256}, its manifest has {expected}"
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        problem += f"; cannot remove {path}: {_reason(error)}"
        yield AuditFinding(name, "poisoned", problem, cache="trees", by="manifest", fix=directory.fix)
    else:
        yield AuditFinding(name, "poisoned", problem, (str(path),), "trees", "manifest", directory.fix)


def _files(root: Path) -> Iterator[Path | UnreadPath]:
    """Yield every file below a directory in order, and every path that cannot be read."""
    refused: list[OSError] = []
    for folder, below, names in os.walk(root, onerror=refused.append):
        below.sort()
        yield from (Path(folder, name) for name in sorted(names))
        links = [path for path in (Path(folder, name) for name in below) if path.is_symlink()]
        yield from (UnreadPath(path, "a link to a directory", unexpected=True) for path in links)
    present = (error for error in refused if not isinstance(error, FileNotFoundError))
    yield from (_unread(Path(error.filename or root), error) for error in present)


def _settled_hash(path: Path, expected: str) -> str:
    """Return a file's sha256: the expected one, or another as soon as the file no longer changes. Raise OSError."""
    before = _stamp(path)
    while True:
        sha256 = _sha256(path)
        if sha256 == expected:
            return sha256
        if time.time() - before[0] / 1e9 < _RECENT_SECONDS:
            time.sleep(_PAUSE_SECONDS)
        after = _stamp(path)
        if after == before:
            return sha256
        before = after


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with _regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def _regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file. Raise OSError for a pipe or a device: reading from one may never end."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "neither a file nor a directory")
        yield file


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _unread(path: Path, error: OSError) -> UnreadPath:
    return UnreadPath(path, _reason(error))


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _unreadable(name: str, path: Path, error: OSError) -> AuditFinding:
    return AuditFinding(name, "unreadable", f"{path}: {_reason(error)}", cache="trees")


def _unread_finding(directory: ServedDirectory, root: Path, unread: UnreadPath) -> AuditFinding:
    name = _name(directory, root, unread.path) if root in unread.path.parents else f"{directory.name}/."
    if unread.unexpected:
        return AuditFinding(name, "unknown", unread.why, cache="trees")
    return AuditFinding(name, "unreadable", f"{unread.path}: {unread.why}", cache="trees")


def _name(directory: ServedDirectory, root: Path, path: Path) -> str:
    return f"{directory.name}/{path.relative_to(root)}"
