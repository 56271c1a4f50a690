"""A revision of a Hugging Face repository: what it holds, as who is trusted tells it, and all of it on this machine."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from envcheck.errors import EnvcheckError, UnavailableError
from envcheck.mirrors import hf, snapshot
from envcheck.mirrors.asking import LaterError, NobodyError, StatusError, in_turn, text
from envcheck.mirrors.fetch.many import fetch_all
from envcheck.mirrors.fetch.wanted import Fetched, Means, Wanted
from envcheck.mirrors.http import Client, NetworkError
from envcheck.mirrors.urls import host_of

_PAGE: Final = 64 << 20
_PAGES: Final = 10_000
_AT_ONCE: Final = 8
# Who is not known and who may not; a hub says so of what does not exist, too.
_REFUSED: Final = {401, 403}


def head(client: Client, endpoint: str, ref: hf.Reference) -> hf.Head:
    """Return the commit that an endpoint has a branch or tag at."""
    url = hf.revision_url(endpoint, ref)
    try:
        return hf.head_of(_page(client, url)[0])
    except (NobodyError, ValueError) as error:
        raise _untold(ref, endpoint, error) from error


def revision(client: Client, endpoint: str, ref: hf.Reference) -> hf.Revision:
    """Return every file of a revision, as the endpoint tells it: whoever is asked here is trusted for the hashes."""
    commit = ref.revision if ref.pinned else head(client, endpoint, ref).commit
    pinned = dataclasses.replace(ref, revision=commit)
    files: list[hf.Entry] = []
    url: str | None = hf.tree_url(endpoint, pinned)
    try:
        for _ in range(_PAGES):
            if url is None:
                break
            body, url = _page(client, url)
            files += hf.entries_of(body)
        hf.refuse_clashes(files)
    except (NobodyError, ValueError) as error:
        raise _untold(ref, endpoint, error) from error
    named = None if ref.pinned else ref.revision
    return hf.Revision(kind=ref.kind, repo=ref.repo, revision=commit, ref=named, files=files)


def locked(client: Client, endpoint: str, ref: hf.Reference) -> hf.Revision:
    """Return the lock of a revision: small files are read for their sha256, the others' is what the endpoint tells."""
    found = revision(client, endpoint, ref)
    missing = [file for file in found.files if file.sha256 is None]
    pinned = dataclasses.replace(ref, revision=found.revision)

    def digest(file: hf.Entry) -> str:
        url = hf.file_url(endpoint, pinned, file.path)
        try:
            content, _ = in_turn([url], lambda at: snapshot.small(client, at, file))
        except NobodyError as error:
            raise snapshot.refused(file.path, error) from error
        return hashlib.sha256(content).hexdigest()

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        hashes = dict(zip([file.path for file in missing], pool.map(digest, missing), strict=True))
    return msgspec.structs.replace(found, files=hf.with_hashes(found.files, hashes))


def fetch_revision(
    wanted: hf.Revision, endpoints: Sequence[str], to: Path, means: Means, done: Callable[[Fetched], None]
) -> list[Fetched]:
    """Put every file under `to`, a directory HF_HUB_CACHE may name; the snapshot appears when all of them are there.

    `endpoints` are tried in order, for each file and, of a large one, for each piece; `done` hears of each file as it
    is there. What is told of a file names it as the repository does, not as its blob is called.
    """
    ref = hf.Reference(wanted.kind, wanted.repo, wanted.revision)
    folder = to / hf.folder_of(ref)
    names = {file.blob: file.path for file in wanted.files}
    naming = dataclasses.replace(means, note=lambda said: means.note(_renamed(said, names)))
    endpoints = _living(wanted, endpoints, means)
    try:
        found = fetch_all(planned(wanted, endpoints, to), naming, done)
        found += _small(wanted, endpoints, folder / "blobs", naming, done)
    except EnvcheckError as error:
        raise type(error)(_renamed(error.message, names), fix=error.fix) from error
    snapshot.link(wanted, folder)
    if wanted.ref is not None and wanted.ref != wanted.revision:
        snapshot.name(folder, wanted.ref, wanted.revision)
    return found


def planned(wanted: hf.Revision, endpoints: Sequence[str], to: Path) -> list[Wanted]:
    """Return the files whose sha256 is known, of whatever size: nothing here needs xet. Equal files are one blob."""
    ref = hf.Reference(wanted.kind, wanted.repo, wanted.revision)
    blobs = to / hf.folder_of(ref) / "blobs"
    files = {file.blob: file for file in wanted.files if file.sha256 is not None}
    return [
        Wanted(tuple(hf.file_url(at, ref, file.path) for at in endpoints), file.sha256 or "", file.size, blobs / name)
        for name, file in files.items()
    ]


def _small(
    wanted: hf.Revision, endpoints: Sequence[str], blobs: Path, means: Means, done: Callable[[Fetched], None]
) -> list[Fetched]:
    """Fetch the files of which only git's hash is known: small ones, that are not in LFS."""
    ref = hf.Reference(wanted.kind, wanted.repo, wanted.revision)
    files = {file.blob: file for file in wanted.files if file.sha256 is None}.values()
    blobs.mkdir(parents=True, exist_ok=True)
    found = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            urls = {file.path: [hf.file_url(at, ref, file.path) for at in endpoints] for file in files}
            for fetched in pool.map(lambda file: snapshot.blob(file, urls[file.path], blobs, means), files):
                done(fetched)
                found.append(fetched)
        except BaseException:
            means.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return found


def _living(wanted: hf.Revision, endpoints: Sequence[str], means: Means) -> list[str]:
    """Return the endpoints, the first ones last that cannot be reached: else every file had to find that out anew."""
    ref = hf.Reference(wanted.kind, wanted.repo, wanted.revision)
    left = list(endpoints)
    dead: list[str] = []
    while len(left) > 1:
        url = hf.file_url(left[0], ref, wanted.files[0].path)
        try:
            with means.client.get(url, {"Range": "bytes=0-0"}):
                break
        except NetworkError as error:
            means.note(f"{host_of(url)}: {error}: asked last")
            dead.append(left.pop(0))
    return [*left, *dead]


def _page(client: Client, url: str) -> tuple[bytes, str | None]:
    (body, headers), _ = in_turn([url], lambda at: text(client, at, _PAGE))
    return body, hf.next_page(headers, url)


def _renamed(said: str, names: dict[str, str]) -> str:
    return next((said.replace(blob, path) for blob, path in names.items() if blob in said), said)


def _untold(ref: hf.Reference, endpoint: str, error: NobodyError | ValueError) -> UnavailableError:
    """Return what a user reads of a lookup that failed: which host, and what can be done about it."""
    reason = next(iter(error.reasons.values())) if isinstance(error, NobodyError) else error
    return UnavailableError(f"{ref.kind} {ref.repo}@{ref.revision}: {host_of(endpoint)}: {reason}", fix=_fix(reason))


def _fix(reason: Exception) -> str:
    elsewhere = "or `fetch --lock FILE`, which asks nobody"
    if isinstance(reason, NetworkError) and reason.fix and not isinstance(reason, StatusError):
        return f"{reason.fix}, {elsewhere}"
    if isinstance(reason, LaterError):
        return f"run it again later, {elsewhere}"
    if isinstance(reason, StatusError):
        gated = "no such repository, or a private or gated one: `hf: {token: allow}` or `credentials:` in the profile"
        return gated if reason.status in _REFUSED else f"check the name and the revision, {elsewhere}"
    doubt = "can be reached from here" if isinstance(reason, NetworkError) else "is a hub"
    return f"see that it {doubt} (`hf: {{trusted: URL}}` in the profile names another), {elsewhere}"
