"""Write a revision in huggingface_hub's cache layout: blobs named by ETag, and a snapshot of links to them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from envcheck import safe_files
from envcheck.mirrors.hub import revision as hub_revision

# Errors of a file system without symlinks (FAT, some SMB): each file is copied there.
_NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}


def link_snapshot(revision: hub_revision.Revision, folder: Path) -> None:
    """Make the snapshot under another name, and rename it when it is complete; complete an existing one."""
    snapshots = safe_files.directory(folder.parent, folder.name, "snapshots")
    with _directory_lock(snapshots) as directory:
        snapshot = snapshots / revision.revision
        fresh = snapshots / f".{revision.revision}.new"
        _clear(fresh)
        into = snapshot if os.path.lexists(snapshot) else fresh
        folders = {parent: safe_files.directory(snapshots, into.name, *parent.parts) for parent in _parents(revision)}
        for file in revision.files:
            path = PurePosixPath(file.path)
            _link_or_copy(folder / "blobs" / file.blob, folders[path.parent] / path.name)
        if into is fresh:
            fresh.rename(snapshot)
        os.fsync(directory)


def _parents(revision: hub_revision.Revision) -> set[PurePosixPath]:
    return {PurePosixPath(file.path).parent for file in revision.files}


def _clear(fresh: Path) -> None:
    """Remove the unfinished snapshot of an interrupted run; remove a symlink, not its target."""
    if fresh.is_symlink() or fresh.is_file():
        fresh.unlink()
    shutil.rmtree(fresh, ignore_errors=True)


def write_ref(folder: Path, ref: str, commit: str) -> None:
    """Write the commit of a branch or tag, which huggingface_hub reads when it has no network."""
    *above, last = ref.split("/")
    safe_files.put(safe_files.directory(folder.parent, folder.name, "refs", *above) / last, commit.encode())


@contextlib.contextmanager
def _directory_lock(directory: Path) -> Iterator[int]:
    """Lock a directory while links are made in it. The kernel releases the lock when its process ends."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _link_or_copy(target: Path, at: Path) -> None:
    """Make `at` a relative symlink to `target`, so that the whole cache can be moved; copy if symlinks are missing."""
    relative = Path(os.path.relpath(target, at.parent))
    if at.is_symlink() and at.readlink() == relative:
        return
    try:
        _symlink(relative, at)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with target.open("rb") as blob_, safe_files.temporary(at.parent, at.name) as (copy, fresh):
            with open(copy, "wb", closefd=False) as stream:
                shutil.copyfileobj(blob_, stream)
            os.fchmod(copy, 0o666 & ~safe_files.umask())
            fresh.replace(at)


def _symlink(relative: Path, at: Path) -> None:
    """Make a symlink; replace an existing file atomically."""
    with contextlib.suppress(FileExistsError):
        at.symlink_to(relative)
        return
    fresh = at.with_name(f".{safe_files.shortened(at.name)}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(relative)
    fresh.replace(at)
