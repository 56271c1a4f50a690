"""List, lock and download a revision of a Hugging Face repository; only a trusted endpoint's hashes count."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from envcheck import safe_files
from envcheck.errors import EnvcheckError, PromiseError, UnavailableError
from envcheck.mirrors.fetch.request import (
    FetchedFile,
    NoSourceError,
    TransferOptions,
    WantedFile,
    no_answer_error,
    read_body,
    try_sources,
)
from envcheck.mirrors.fetch.transfer import fetch_all
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError, StatusError, joined_advice
from envcheck.mirrors.net.urls import host_of
from envcheck.mirrors.net.waits import NETWORK_WAITS, map_in_threads

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


_PAGE: Final = 64 << 20
# Of a thousand files each: no repository has as many.
_PAGES: Final = 1000
_AT_ONCE: Final = 8
# Unauthorized and forbidden; a hub also answers so if the repository does not exist.
_REFUSED: Final = {401, 403}


def _head(client: Client, endpoint: str, ref: hub_revision.Reference) -> str:
    """Return the commit that a branch or tag has on an endpoint."""
    return hub_revision.parse_head(_page(client, hub_revision.revision_url(endpoint, ref))[0])


def read_revision(client: Client, endpoint: str, ref: hub_revision.Reference) -> hub_revision.Revision:
    """Return every file of a revision with the hashes that the endpoint gives, so it must be trusted.

    Raises UnavailableError if the lookup fails.
    """
    try:
        commit = ref.revision if ref.pinned else _head(client, endpoint, ref)
        pinned = dataclasses.replace(ref, revision=commit)
        with NETWORK_WAITS.on(host_of(endpoint), "list", "its list of files is not complete"):
            files = _listed_files(client, hub_revision.tree_url(endpoint, pinned))
        hub_revision.refuse_clashes(files)
    except (NoSourceError, ValueError) as error:
        raise _lookup_error(ref, endpoint, error) from error
    ref_name = None if ref.pinned else ref.revision
    return hub_revision.Revision(kind=ref.kind, repo=ref.repo, revision=commit, ref=ref_name, files=files)


def _listed_files(client: Client, first: str) -> list[hub_revision.HubFile]:
    """Return the files on all pages of a tree. Raises ValueError if it has too many pages, as in a circle."""
    files: list[hub_revision.HubFile] = []
    url, seen = first, {first}
    for _ in range(_PAGES):
        body, following = _page(client, url)
        files += hub_revision.parse_tree(body)
        if following is None:
            return files
        if following in seen:
            break
        url = following
        seen.add(url)
    message = f"its list of files does not end after {len(files)} files"
    raise ValueError(message)


def lock_revision(client: Client, endpoint: str, ref: hub_revision.Reference) -> hub_revision.Revision:
    """Return the lock of a revision: the endpoint gives the sha256 of LFS files; small files are downloaded for it."""
    listed = read_revision(client, endpoint, ref)
    missing = [file for file in listed.files if file.sha256 is None]
    pinned = dataclasses.replace(ref, revision=listed.revision)

    def digest(file: hub_revision.HubFile) -> str:
        try:
            url = hub_revision.file_url(endpoint, pinned, file.path)
            (content, _), _ = try_sources([url], lambda at: read_body(client, at, file.size))
        except NoSourceError as error:
            fix = joined_advice((reason.fix for reason in error.reasons.values()), ", or run it again")
            message = f"{file.path}: {error}"
            raise no_answer_error(message, fix, list(error.reasons.values())) from error
        if hub_revision.git_sha1(content) != file.sha1:
            message = f"{file.path}: {host_of(endpoint)}: it has another hash than it should have"
            raise PromiseError(message, fix="the mirror serves wrong bytes: compare with the origin, purge the mirror")
        return hashlib.sha256(content).hexdigest()

    digests = map_in_threads(digest, missing, _AT_ONCE)
    hashes = dict(zip([file.path for file in missing], digests, strict=True))
    return msgspec.structs.replace(listed, files=hub_revision.with_hashes(listed.files, hashes))


def fetch_revision(
    revision: hub_revision.Revision,
    endpoints: Sequence[str],
    to: Path,
    options: TransferOptions,
    on_fetched: Callable[[FetchedFile], None],
) -> list[FetchedFile]:
    """Download a revision to `to`, a directory for HF_HUB_CACHE; the snapshot appears when all files are complete.

    `endpoints` are tried in order for each file, and for each piece of a large file. `on_fetched` is called with each
    file. Progress and errors name a file by its path in the repository, not by its blob.
    """
    ref = hub_revision.Reference(revision.kind, revision.repo, revision.revision)
    folder = safe_files.directory(to, hub_revision.cache_folder(ref))
    safe_files.directory(folder, "blobs")
    names = {file.blob: file.path for file in revision.files}
    naming = dataclasses.replace(options, note=lambda text: options.note(_with_paths(text, names)))
    try:
        fetched = fetch_all(wanted_files(revision, endpoints, to), naming, on_fetched)
    except EnvcheckError as error:
        raise type(error)(_with_paths(error.message, names), fix=error.fix) from error
    link_snapshot(revision, folder)
    if revision.ref is not None and revision.ref != revision.revision:
        write_ref(folder, revision.ref, revision.revision)
    return fetched


def wanted_files(revision: hub_revision.Revision, endpoints: Sequence[str], to: Path) -> list[WantedFile]:
    """Return the files with URLs and blob paths; equal files are one blob. Small files may have git's hash alone."""
    ref = hub_revision.Reference(revision.kind, revision.repo, revision.revision)
    blobs = to / hub_revision.cache_folder(ref) / "blobs"
    files = {file.blob: file for file in revision.files}
    return [
        WantedFile(
            tuple(hub_revision.file_url(at, ref, file.path) for at in endpoints),
            file.sha256 or "",
            file.size,
            blobs / name,
            git_sha1="" if file.sha256 else file.sha1 or "",
        )
        for name, file in files.items()
    ]


def _page(client: Client, url: str) -> tuple[bytes, str | None]:
    (body, headers), _ = try_sources([url], lambda at: read_body(client, at, _PAGE))
    return body, hub_revision.next_page(headers, url)


def _with_paths(text: str, names: Mapping[str, str]) -> str:
    return next((text.replace(blob, path) for blob, path in names.items() if blob in text), text)


def _lookup_error(ref: hub_revision.Reference, endpoint: str, error: NoSourceError | ValueError) -> UnavailableError:
    reason = next(iter(error.reasons.values())) if isinstance(error, NoSourceError) else error
    return UnavailableError(f"{ref.kind} {ref.repo}@{ref.revision}: {host_of(endpoint)}: {reason}", fix=_fix(reason))


def _fix(reason: Exception) -> str:
    use_lock = "or use `fetch --lock FILE`, which needs no lookup"
    if isinstance(reason, NetworkError) and reason.fix and not isinstance(reason, StatusError):
        return f"{reason.fix}, {use_lock}"
    if isinstance(reason, NetworkError) and reason.retry:
        return f"run it again later, {use_lock}"
    if isinstance(reason, StatusError):
        private = "if it is private or gated, set `hf: {token: allow}` or `credentials:` in the profile"
        return f"check the name; {private}" if reason.status in _REFUSED else f"check the name and revision, {use_lock}"
    doubt = "can be reached from here" if isinstance(reason, NetworkError) else "is a hub"
    return f"check that the endpoint {doubt}, set another with `hf: {{trusted: URL}}` in the profile, {use_lock}"
