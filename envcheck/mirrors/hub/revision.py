"""Hugging Face repositories: what a revision holds, where its files are, and how huggingface_hub wants them to lie.

Only what a plain endpoint answers is used: `revision`, `tree` and `resolve`. Xet is not, as its data plane knows no
mirror (huggingface_hub#4475), so there is no size above which it is needed.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, Literal
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from envcheck.errors import ConfigError

SCHEMA: Final = "envcheck/model-lock/1"
Kind = Literal["model", "dataset"]
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
# Bytes of a path; with the cache's own directories before it, it stays below PATH_MAX (4096).
_LONGEST: Final = 1024
# Bytes: no file has a petabyte.
_LARGEST: Final = 10**15
_NEXT: Final = re.compile(r"<([^>]*)>\s*;\s*rel=\"?next\"?")


class HubFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a revision. `size` in bytes. Small files have a git blob's sha1 and no sha256 until one has them."""

    path: str
    size: int
    sha256: str | None = None
    sha1: str | None = None

    @property
    def blob(self) -> str:
        """Return the name huggingface_hub stores it under: its ETag."""
        return self.sha1 or self.sha256 or ""


class Revision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every file of one commit of a repository; written to a file, it is the lock of a model or dataset.

    `ref` is the branch or tag that was at the commit when somebody asked for it by that name.
    """

    schema: Literal["envcheck/model-lock/1"] = "envcheck/model-lock/1"
    kind: Kind = "model"
    repo: str
    revision: str
    ref: str | None = None
    files: list[HubFile]


@dataclasses.dataclass(frozen=True)
class Reference:
    """REPO@REV as a person writes it; without @REV, `main`."""

    kind: Kind
    repo: str
    revision: str

    @property
    def pinned(self) -> bool:
        """Tell whether it names a commit, which cannot change."""
        return _COMMIT.fullmatch(self.revision) is not None


@dataclasses.dataclass(frozen=True)
class Head:
    """What a branch or tag is at, and when that was made, in seconds of the day's clock, where the endpoint says so."""

    commit: str
    changed: float | None


def parse_reference(text: str, kind: Kind) -> Reference:
    """Return what REPO@REV names. Raise ConfigError for what no repository is called."""
    repo, at, revision = text.partition("@")
    if not _NAME.fullmatch(repo) or ".." in repo or not _is_ref_name(revision if at else "main"):
        message = f"{text!r} names no {kind}"
        raise ConfigError(message, fix="write OWNER/NAME@COMMIT, or OWNER/NAME@BRANCH")
    return Reference(kind, repo, revision or "main")


def revision_url(endpoint: str, ref: Reference) -> str:
    """Return where the endpoint tells the commit that a branch is at."""
    return f"{endpoint.rstrip('/')}/api/{ref.kind}s/{ref.repo}/revision/{quote(ref.revision, safe='')}"


def tree_url(endpoint: str, ref: Reference) -> str:
    """Return where the endpoint lists a revision's files."""
    revision = quote(ref.revision, safe="")
    return f"{endpoint.rstrip('/')}/api/{ref.kind}s/{ref.repo}/tree/{revision}?recursive=true&expand=false"


def file_url(endpoint: str, ref: Reference, path: str) -> str:
    """Return where the endpoint has a file."""
    base = endpoint.rstrip("/") + ("/datasets" if ref.kind == "dataset" else "")
    return f"{base}/{ref.repo}/resolve/{quote(ref.revision, safe='')}/{quote(path)}"


def parse_head(body: bytes) -> Head:
    """Return the commit an endpoint tells of a revision. Raise ValueError when it tells none."""
    answer = _parse_json(body)
    commit = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        message = "it names no commit"
        raise ValueError(message)
    try:
        changed = dt.datetime.fromisoformat(str(answer.get("lastModified")).replace("Z", "+00:00"))
    except ValueError:
        return Head(commit, None)
    return Head(commit, (changed if changed.tzinfo else changed.replace(tzinfo=dt.timezone.utc)).timestamp())


def parse_tree(body: bytes) -> list[HubFile]:
    """Return the files of one page of a tree. Raise ValueError for what is none, or for a path that leads outside."""
    rows = _parse_json(body)
    if not isinstance(rows, list):
        message = "it lists no files"
        raise ValueError(message)  # noqa: TRY004 (of the answer, not of an argument)
    return [_parse_entry(row) for row in rows if not (isinstance(row, dict) and row.get("type") == "directory")]


def next_page(headers: Mapping[str, str], url: str) -> str | None:
    """Return the tree's next page: on the host that was asked, whatever host the link names (olah and proxies)."""
    match = _NEXT.search(headers.get("Link", ""))
    if match is None:
        return None
    target = urlsplit(urljoin(url, match[1]))
    return urlsplit(url)._replace(query=target.query).geturl()


def is_safe_path(path: str) -> bool:
    """Tell whether a path stays inside its repository."""
    parts = PurePosixPath(path).parts
    plain = not path.startswith("/") and ".." not in parts and "\\" not in path and path.isprintable()
    return bool(parts) and plain and len(path.encode()) <= _LONGEST and all(len(part.encode()) <= 255 for part in parts)  # noqa: PLR2004 (NAME_MAX)


def git_hasher(size: int) -> hashlib._Hash:
    """Return the hasher of a file of `size` bytes that gives git's name of its content, the ETag outside LFS."""
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def git_sha1(content: bytes) -> str:
    """Return the name git gives a file's content."""
    hasher = git_hasher(len(content))
    hasher.update(content)
    return hasher.hexdigest()


def cache_folder(ref: Reference) -> str:
    """Return the directory of a repository in huggingface_hub's cache."""
    return f"{ref.kind}s--{ref.repo.replace('/', '--')}"


def parse_lock(text: bytes, where: str) -> Revision:
    """Return a lock. Raise ConfigError, naming the key, if it is not a lock; every file has a sha256."""
    try:
        lock = msgspec.json.decode(text, type=Revision)
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"{where}: not a valid model lock: {error}"
        raise ConfigError(message, fix="make one with `envcheck lock --model REPO@REV`") from error
    bad = next((file.path for file in lock.files if not _is_valid(file)), None) or _clash(lock.files)
    valid_names = _COMMIT.fullmatch(lock.revision) and _NAME.fullmatch(lock.repo) and ".." not in lock.repo
    if bad is not None or not valid_names or not (lock.ref is None or _is_ref_name(lock.ref)):
        message = f"{where}: {bad!r} has no hash, leads outside or is there twice" if bad else f"{where}: no commit"
        raise ConfigError(message, fix="make it again with `envcheck lock --model REPO@REV`")
    return lock


def _is_valid(file: HubFile) -> bool:
    """Tell whether a lock's file can be written and held against its hash; its sha1 becomes a file's name."""
    has_hashes = _is_sha256(file.sha256) and (file.sha1 is None or _COMMIT.fullmatch(file.sha1) is not None)
    return is_safe_path(file.path) and has_hashes and file.size >= 0


def refuse_clashes(files: Sequence[HubFile]) -> None:
    """Raise ValueError for a listing in which one path stands in the way of another, or which has no file."""
    bad = _clash(files)
    if bad is not None or not files:
        message = f"it lists {bad!r} twice" if bad else "it lists no files"
        raise ValueError(message)


def _clash(files: Sequence[HubFile]) -> str | None:
    """Return a path that is there twice, or is a directory of another, or None."""
    paths = {PurePosixPath(file.path) for file in files}
    above = {parent for path in paths for parent in path.parents}
    twice = str(next(iter(paths), "")) if len(paths) < len(files) else None
    return next((str(path) for path in sorted(paths & above)), twice)


def _is_ref_name(name: str) -> bool:
    """Tell whether it may be a branch's, a tag's or a commit's name, and so a file's below refs/."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*", name) is not None


def format_lock(lock: Revision) -> bytes:
    """Return the lock file: sorted by path, one form."""
    ordered = msgspec.structs.replace(lock, files=sorted(lock.files, key=lambda file: file.path))
    return msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n"


def with_hashes(files: Sequence[HubFile], hashes: Mapping[str, str]) -> list[HubFile]:
    """Return the files with the sha256 that was found for those that had none."""
    return [msgspec.structs.replace(file, sha256=file.sha256 or hashes[file.path]) for file in files]


def _parse_entry(row: Any) -> HubFile:
    path, size = (row.get("path"), row.get("size")) if isinstance(row, dict) else (None, None)
    if not isinstance(path, str) or not is_safe_path(path):
        message = f"it lists {path!r}, which cannot be written"
        raise ValueError(message)
    lfs = row.get("lfs")
    size = lfs.get("size", size) if isinstance(lfs, dict) else size
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < _LARGEST:
        message = f"it gives {path!r} no valid size"
        raise ValueError(message)
    if isinstance(lfs, dict):
        digest = str(lfs.get("oid", "")).removeprefix("sha256:")
        if not _is_sha256(digest):
            message = f"it gives {path!r} no sha256"
            raise ValueError(message)
        return HubFile(path=path, size=size, sha256=digest)
    if not _COMMIT.fullmatch(str(row.get("oid", ""))):
        message = f"it gives {path!r} no hash"
        raise ValueError(message)
    return HubFile(path=path, size=size, sha1=row["oid"])


def _is_sha256(text: str | None) -> bool:
    return text is not None and re.fullmatch(r"[0-9a-f]{64}", text) is not None


def _parse_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        message = "its response is not valid JSON"
        raise ValueError(message) from error
