"""Fetch a revision of a Hugging Face repository, laid out so that huggingface_hub finds it with HF_HUB_OFFLINE=1."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from envcheck.errors import PromiseError, UnavailableError
from envcheck.mirrors import hf
from envcheck.mirrors.fetch.many import fetch_all
from envcheck.mirrors.fetch.wanted import Fetched, Means, StoppedError, Wanted
from envcheck.mirrors.http import Client, NetworkError
from envcheck.mirrors.urls import host_of

_PAGE: Final = 64 << 20
# Files outside LFS are text and small; the hub itself refuses larger ones.
_SMALL: Final = 64 << 20
_PAGES: Final = 10_000
_AT_ONCE: Final = 8


def revision(client: Client, endpoint: str, ref: hf.Reference) -> hf.Revision:
    """Return every file of a revision, as the endpoint tells it: whoever is asked here is trusted for the hashes."""
    try:
        commit = ref.revision if ref.pinned else hf.commit_of(_page(client, hf.revision_url(endpoint, ref))[0])
        pinned = dataclasses.replace(ref, revision=commit)
        files: list[hf.Entry] = []
        url: str | None = hf.tree_url(endpoint, pinned)
        for _ in range(_PAGES):
            if url is None:
                break
            body, url = _page(client, url)
            files += hf.entries_of(body)
        hf.refuse_clashes(files)
    except (NetworkError, ValueError) as error:
        message = f"{ref.repo}@{ref.revision}: {host_of(endpoint)}: {error}"
        raise UnavailableError(message, fix="check the name, the revision and the profile's hf.endpoint") from error
    named = None if ref.pinned else ref.revision
    return hf.Revision(kind=ref.kind, repo=ref.repo, revision=commit, ref=named, files=files)


def locked(client: Client, endpoint: str, ref: hf.Reference) -> hf.Revision:
    """Return the lock of a revision: small files are read for their sha256, the others' is what the endpoint tells."""
    found = revision(client, endpoint, ref)
    small = [file for file in found.files if file.sha256 is None]
    pinned = dataclasses.replace(ref, revision=found.revision)

    def digest(file: hf.Entry) -> str:
        return hashlib.sha256(_small(client, [hf.file_url(endpoint, pinned, file.path)], file)[0]).hexdigest()

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        hashes = dict(zip([file.path for file in small], pool.map(digest, small), strict=True))
    return msgspec.structs.replace(found, files=hf.with_hashes(found.files, hashes))


def fetch_revision(
    wanted: hf.Revision, endpoints: list[str], to: Path, means: Means, done: Callable[[Fetched], None]
) -> list[Fetched]:
    """Put every file under `to`, a directory HF_HUB_CACHE may name; the snapshot appears when all of them are there.

    `endpoints` are tried in order; `done` hears of each file as it is there.
    """
    ref = hf.Reference(wanted.kind, wanted.repo, wanted.revision)
    folder = to / hf.folder_of(ref)
    found = fetch_all(planned(wanted, endpoints, to), means, done)
    small = [file for file in wanted.files if file.sha256 is None]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for fetched in pool.map(lambda file: _blob(file, ref, endpoints, folder / "blobs", means), small):
            done(fetched)
            found.append(fetched)
    _link(wanted, folder)
    if wanted.ref is not None and wanted.ref != wanted.revision:
        _write(folder / "refs" / wanted.ref, wanted.revision.encode())
    return found


def planned(wanted: hf.Revision, endpoints: list[str], to: Path) -> list[Wanted]:
    """Return the files whose sha256 is known, of whatever size: nothing here needs xet. Equal files are one blob."""
    ref = hf.Reference(wanted.kind, wanted.repo, wanted.revision)
    blobs = to / hf.folder_of(ref) / "blobs"
    files = {file.blob: file for file in wanted.files if file.sha256 is not None}
    return [
        Wanted(tuple(hf.file_url(at, ref, file.path) for at in endpoints), file.sha256 or "", file.size, blobs / name)
        for name, file in files.items()
    ]


def _blob(file: hf.Entry, ref: hf.Reference, endpoints: list[str], blobs: Path, means: Means) -> Fetched:
    """Fetch a file of which only git's hash is known: a small one, that is not in LFS."""
    path = blobs / file.blob
    if path.is_file() and path.stat().st_size == file.size and hf.git_sha1(path.read_bytes()) == file.sha1:
        return Fetched(path, file.size, 0, file.size, 0.0, {})
    if means.stop.is_set():
        raise StoppedError
    began = time.monotonic()
    content, host = _small(means.client, [hf.file_url(endpoint, ref, file.path) for endpoint in endpoints], file)
    _write(path, content)
    return Fetched(path, file.size, len(content), 0, time.monotonic() - began, {host: len(content)})


def _small(client: Client, urls: list[str], file: hf.Entry) -> tuple[bytes, str]:
    """Return a file whose hash is git's, and the host of the first endpoint that has it."""
    reasons = []
    for url in urls:
        content = _read(client, url)
        if isinstance(content, str):
            reasons.append(f"{host_of(url)}: {content}")
        elif len(content) == file.size and hf.git_sha1(content) == file.sha1:
            return content, host_of(url)
        else:
            reasons.append(f"{host_of(url)}: it has another hash than it should have")
    message = f"{file.path}: {'; '.join(reasons)}"
    if any("another hash" in reason for reason in reasons):
        raise PromiseError(message, fix="the mirror serves wrong bytes: compare with the origin, purge the mirror")
    raise UnavailableError(message, fix="name another mirror (--mirror), or run it again")


def _read(client: Client, url: str) -> bytes | str:
    try:
        with client.get(url) as answer:
            return answer.text(_SMALL) if answer.status == 200 else f"it answers {answer.status}"  # noqa: PLR2004 (OK)
    except NetworkError as error:
        return str(error)


def _page(client: Client, url: str) -> tuple[bytes, str | None]:
    with client.get(url) as answer:
        if answer.status != 200:  # noqa: PLR2004 (HTTP's OK)
            message = f"it answers {answer.status}"
            raise NetworkError(message)
        return answer.text(_PAGE), hf.next_page(answer.headers, url)


def _link(wanted: hf.Revision, folder: Path) -> None:
    """Make the snapshot beside its name, and name it when it is whole."""
    snapshot = folder / "snapshots" / wanted.revision
    for file in wanted.files:
        link = snapshot / file.path
        link.parent.mkdir(parents=True, exist_ok=True)
        target = Path(os.path.relpath(folder / "blobs" / file.blob, link.parent))
        if link.is_symlink() and link.readlink() == target:
            continue
        fresh = link.with_name(f".{link.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(link)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)
