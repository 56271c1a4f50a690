"""Revisions of Hugging Face repositories: their files, URLs, API responses and locks.

Only the endpoints `revision`, `tree` and `resolve` are used, for files of any size. Xet is not used, because its data
plane does not support mirrors (huggingface_hub#4475).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, Literal
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from envcheck.errors import ConfigError
from envcheck.mirrors.fetch.request import git_hasher

SCHEMA: Final = "envcheck/model-lock/1"
Kind = Literal["model", "dataset"]
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
# Bytes of a path; together with the cache's directories it stays below PATH_MAX (4096).
_LONGEST: Final = 1024
# Bytes: no file is as large as a petabyte.
_LARGEST: Final = 10**15
_NEXT: Final = re.compile(r"<([^>]*)>\s*;\s*rel=\"?next\"?")


class HubFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a revision. `size` in bytes. A file outside LFS has a git blob's sha1; a lock adds its sha256."""

    path: str
    size: int
    sha256: str | None = None
    sha1: str | None = None

    @property
    def blob(self) -> str:
        """Return the name that huggingface_hub stores the file under: its ETag."""
        return self.sha1 or self.sha256 or ""


class Revision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every file of one commit of a repository. As a JSON file, it is the lock of a model or dataset.

    `ref` is the branch or tag that the user gave and that was at this commit when it was looked up.
    """

    schema: Literal["envcheck/model-lock/1"] = "envcheck/model-lock/1"
    kind: Kind = "model"
    repo: str
    revision: str
    ref: str | None = None
    files: list[HubFile]


@dataclasses.dataclass(frozen=True)
class Reference:
    """REPO@REV as the user gives it; without @REV, the revision is `main`."""

    kind: Kind
    repo: str
    revision: str

    @property
    def pinned(self) -> bool:
        """Tell whether the revision is a commit, which cannot change."""
        return _COMMIT.fullmatch(self.revision) is not None


def parse_reference(text: str, kind: Kind) -> Reference:
    """Parse REPO@REV. Raises ConfigError if it cannot be the name of a repository and revision."""
    repo, at, revision = text.partition("@")
    if not _NAME.fullmatch(repo) or ".." in repo or not _is_ref_name(revision if at else "main"):
        message = f"{text!r} is not the name of a {kind}"
        raise ConfigError(message, fix="write OWNER/NAME@COMMIT, or OWNER/NAME@BRANCH")
    return Reference(kind, repo, revision or "main")


def revision_url(endpoint: str, ref: Reference) -> str:
    """Return the URL where the endpoint gives the commit of a branch or tag."""
    return f"{endpoint.rstrip('/')}/api/{ref.kind}s/{ref.repo}/revision/{quote(ref.revision, safe='')}"


def tree_url(endpoint: str, ref: Reference) -> str:
    """Return the URL where the endpoint lists a revision's files."""
    revision = quote(ref.revision, safe="")
    return f"{endpoint.rstrip('/')}/api/{ref.kind}s/{ref.repo}/tree/{revision}?recursive=true&expand=false"


def file_url(endpoint: str, ref: Reference, path: str) -> str:
    """Return the URL of a file on the endpoint."""
    base = endpoint.rstrip("/") + ("/datasets" if ref.kind == "dataset" else "")
    return f"{base}/{ref.repo}/resolve/{quote(ref.revision, safe='')}/{quote(path)}"


def parse_head(body: bytes) -> str:
    """Return the commit in an endpoint's response about a revision. Raises ValueError if it has none."""
    answer = _parse_json(body)
    commit = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        message = "its response has no commit"
        raise ValueError(message)
    return commit


def parse_tree(body: bytes) -> list[HubFile]:
    """Return the files of one page of a tree. Raises ValueError if it is invalid or a path leads outside."""
    rows = _parse_json(body)
    if not isinstance(rows, list):
        message = "it lists no files"
        raise ValueError(message)  # noqa: TRY004 (wrong is the response, not an argument)
    return [_parse_entry(row) for row in rows if not (isinstance(row, dict) and row.get("type") == "directory")]


def next_page(headers: Mapping[str, str], url: str) -> str | None:
    """Return the URL of a tree's next page, or None. It stays on `url`'s host: olah and proxies link to others."""
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


def git_sha1(content: bytes) -> str:
    """Return the git blob sha1 of a file's content, which is its ETag outside LFS."""
    hasher = git_hasher(len(content))
    hasher.update(content)
    return hasher.hexdigest()


def cache_folder(ref: Reference) -> str:
    """Return the name of a repository's directory in huggingface_hub's cache."""
    return f"{ref.kind}s--{ref.repo.replace('/', '--')}"


def parse_lock(text: bytes, where: str) -> Revision:
    """Parse a lock; `where` names its file in errors. Raises ConfigError if it is invalid or a file has no sha256."""
    try:
        lock = msgspec.json.decode(text, type=Revision)
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"{where}: not a valid model lock: {error}"
        raise ConfigError(message, fix="make one with `envcheck lock --model REPO@REV`") from error
    bad = next((file.path for file in lock.files if not _is_valid(file)), None) or _clash(lock.files)
    valid_names = _COMMIT.fullmatch(lock.revision) and _NAME.fullmatch(lock.repo) and ".." not in lock.repo
    if bad is not None or not valid_names or not (lock.ref is None or _is_ref_name(lock.ref)):
        problem = f"{bad!r} has no hash, leads outside or is repeated" if bad else "no valid repository, commit and ref"
        message = f"{where}: {problem}"
        raise ConfigError(message, fix="make it again with `envcheck lock --model REPO@REV`")
    return lock


def _is_valid(file: HubFile) -> bool:
    """Tell whether a lock's file has a safe path, a size and a sha256; its sha1, which becomes a file name, is hex."""
    has_hashes = _is_sha256(file.sha256) and (file.sha1 is None or _COMMIT.fullmatch(file.sha1) is not None)
    return is_safe_path(file.path) and has_hashes and file.size >= 0


def refuse_clashes(files: Sequence[HubFile]) -> None:
    """Raise ValueError if a list has no file, or a path that is repeated or is the directory of another."""
    bad = _clash(files)
    if bad is not None or not files:
        message = f"it lists {bad!r} twice" if bad else "it lists no files"
        raise ValueError(message)


def _clash(files: Sequence[HubFile]) -> str | None:
    """Return a path that is repeated or is the directory of another path, or None."""
    paths = {PurePosixPath(file.path) for file in files}
    above = {parent for path in paths for parent in path.parents}
    twice = str(next(iter(paths), "")) if len(paths) < len(files) else None
    return next((str(path) for path in sorted(paths & above)), twice)


def _is_ref_name(name: str) -> bool:
    """Tell whether a branch, tag or commit may have this name, which becomes a file below refs/."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*", name) is not None


def format_lock(lock: Revision) -> bytes:
    """Return the lock as JSON, sorted by path: equal locks give equal bytes."""
    ordered = msgspec.structs.replace(lock, files=sorted(lock.files, key=lambda file: file.path))
    return msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n"


def with_hashes(files: Sequence[HubFile], hashes: Mapping[str, str]) -> list[HubFile]:
    """Return the files, each with its sha256 or the one in `hashes` (by path)."""
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
