"""Models and datasets of Hugging Face hubs: list, lock and download a revision; only a trusted endpoint's hashes count.

Only the endpoints `revision`, `tree` and `resolve` are used, for files of any size. Xet is not used, because its data
plane does not support mirrors (huggingface_hub#4475).
"""

import contextlib
import dataclasses
import errno
import hashlib
import importlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from envcheck import safe_files
from envcheck.errors import ConfigError, EnvcheckError, PromiseError, UnavailableError, refuse
from envcheck.mirrors.fetch.request import (
    FetchedFile,
    NoSourceError,
    TransferOptions,
    WantedFile,
    git_hasher,
    no_answer_error,
    read_body,
    try_sources,
)
from envcheck.mirrors.fetch.transfer import fetch_all
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError, StatusError, joined_advice
from envcheck.mirrors.net.waits import map_in_threads
from envcheck.mirrors.profiles.model import Profile, host_of
from envcheck.struct_types import know_types

SCHEMA: Final = "envcheck/model-lock/1"
Kind = Literal["model", "dataset"]
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
# A branch, tag or commit, which becomes a file below refs/.
_REF_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_NEXT: Final = re.compile(r"<([^>]*)>\s*;\s*rel=\"?next\"?")
# Bytes of a path; together with the cache's directories it stays below PATH_MAX (4096). Bytes of a name (NAME_MAX).
_LONGEST: Final = 1024
_NAME_MAX: Final = 255
_PAGE: Final = 64 << 20
# Of a thousand files each: no repository has as many.
_PAGES: Final = 1000
_AT_ONCE: Final = 8


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


class _Lfs(msgspec.Struct, frozen=True):
    oid: Annotated[str, msgspec.Meta(pattern=r"^(sha256:)?[0-9a-f]{64}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0, lt=10**15)]


class _Row(msgspec.Struct, frozen=True):
    path: str
    type: str = "file"
    size: Annotated[int, msgspec.Meta(ge=0, lt=10**15)] = -1
    oid: str = ""
    lfs: _Lfs | None = None


class _Head(msgspec.Struct, frozen=True):
    sha: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}\Z")]


know_types(Revision, _Row, _Head)


def trusted_endpoint(profile: Profile, *, mirror: bool) -> str:
    """Return the endpoint whose hashes are trusted: the profile's `trusted`, or huggingface_hub's default.

    With `mirror`, the profile's own endpoint is trusted. HF_ENDPOINT alone is not: it usually names a mirror, which
    would confirm its own bytes. Raises ConfigError if there is no trusted endpoint.
    """
    if profile.hf.trusted is not None:
        return profile.hf.trusted
    if mirror and profile.hf.endpoint is not None:
        return profile.hf.endpoint
    default = None if profile.closed else default_endpoint()
    if not default or default.rstrip("/") in {endpoint.rstrip("/") for endpoint in profile.hf.endpoints}:
        message = "no trusted endpoint for the hashes: a mirror cannot confirm its own files"
        own = ", or pass --trust-mirror" if profile.hf.endpoint is not None else ""
        fix = f"set `hf: {{trusted: URL}}` in a profile, or install huggingface_hub beside envcheck{own}"
        raise ConfigError(message, fix=f"{fix}; `fetch --lock FILE` needs no trusted endpoint")
    return default


def default_endpoint() -> str | None:
    """Return the default endpoint of huggingface_hub; None if it is not installed."""
    try:
        constants = importlib.import_module("huggingface_hub.constants")
    except ImportError:
        return None
    default = getattr(constants, "_HF_DEFAULT_ENDPOINT", None)
    return default if isinstance(default, str) else None


def parse_reference(text: str, kind: Kind) -> Reference:
    """Parse REPO@REV. Raises ConfigError if it cannot be the name of a repository and revision."""
    repo, at, revision = text.partition("@")
    if not _NAME.fullmatch(repo) or ".." in repo or not _REF_NAME.fullmatch(revision if at else "main"):
        refuse(f"{text!r} is not the name of a {kind}", "write OWNER/NAME@COMMIT, or OWNER/NAME@BRANCH")
    return Reference(kind, repo, revision or "main")


def file_url(endpoint: str, ref: Reference, path: str) -> str:
    """Return the URL of a file on the endpoint."""
    base = endpoint.rstrip("/") + ("/datasets" if ref.kind == "dataset" else "")
    return f"{base}/{ref.repo}/resolve/{quote(ref.revision, safe='')}/{quote(path)}"


def _api_url(endpoint: str, ref: Reference, what: str) -> str:
    return f"{endpoint.rstrip('/')}/api/{ref.kind}s/{ref.repo}/{what}/{quote(ref.revision, safe='')}"


def git_sha1(content: bytes) -> str:
    """Return the git blob sha1 of a file's content, which is its ETag outside LFS."""
    hasher = git_hasher(len(content))
    hasher.update(content)
    return hasher.hexdigest()


def parse_tree(body: bytes) -> list[HubFile]:
    """Return the files of one page of a tree. Raises ValueError if it is invalid or a path leads outside."""
    rows = [row for row in _decoded(body, list[_Row]) if row.type != "directory"]
    for row in rows:
        if not _is_safe_path(row.path):
            message = f"it lists {row.path!r}, which cannot be written"
            raise ValueError(message)
        if row.lfs is None and (row.size < 0 or not _COMMIT.fullmatch(row.oid)):
            message = f"it lists {row.path!r} without a size or a hash"
            raise ValueError(message)
    return [
        HubFile(path=row.path, size=row.size, sha1=row.oid)
        if row.lfs is None
        else HubFile(path=row.path, size=row.lfs.size, sha256=row.lfs.oid.removeprefix("sha256:"))
        for row in rows
    ]


def _decoded(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        what = "a web page, as to log in" if body.lstrip().startswith(b"<") else str(error)
        message = f"its response is not what a hub answers: {what}"
        raise ValueError(message) from error


def _is_safe_path(path: str) -> bool:
    parts = PurePosixPath(path).parts
    plain = not path.startswith("/") and ".." not in parts and "\\" not in path and path.isprintable()
    short = len(path.encode()) <= _LONGEST and all(len(part.encode()) <= _NAME_MAX for part in parts)
    return bool(parts) and plain and short


def _clash(files: Sequence[HubFile]) -> str | None:
    """Return a path that is repeated or is the directory of another path, or None."""
    paths = {PurePosixPath(file.path) for file in files}
    above = {parent for path in paths for parent in path.parents}
    twice = str(next(iter(paths), "")) if len(paths) < len(files) else None
    return next((str(path) for path in sorted(paths & above)), twice)


def parse_lock(text: bytes, where: str) -> Revision:
    """Parse a lock; `where` names its file in errors. Raises ConfigError if it is invalid or a file has no sha256."""
    try:
        lock = msgspec.json.decode(text, type=Revision)
    except (msgspec.DecodeError, RecursionError) as error:
        refuse(f"{where}: not a valid model lock: {error}", "make one with `envcheck lock --model REPO@REV`")
    bad = _clash(lock.files)
    for file in lock.files:
        # The hashes become file names.
        has_hashes = _SHA256.fullmatch(file.sha256 or "") and (file.sha1 is None or _COMMIT.fullmatch(file.sha1))
        if not has_hashes or file.size < 0 or not _is_safe_path(file.path):
            bad = file.path
    valid_names = _COMMIT.fullmatch(lock.revision) and _NAME.fullmatch(lock.repo) and ".." not in lock.repo
    if bad is not None or not valid_names or not (lock.ref is None or _REF_NAME.fullmatch(lock.ref)):
        problem = f"{bad!r} has no hash, leads outside or is repeated" if bad else "no valid repository, commit and ref"
        refuse(f"{where}: {problem}", "make it again with `envcheck lock --model REPO@REV`")
    return lock


def format_lock(lock: Revision) -> bytes:
    """Return the lock as JSON, sorted by path: equal locks give equal bytes."""
    ordered = msgspec.structs.replace(lock, files=sorted(lock.files, key=lambda file: file.path))
    return msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n"


def read_revision(client: Client, endpoint: str, ref: Reference) -> Revision:
    """Return every file of a revision with the hashes that the endpoint gives, so it must be trusted.

    Raises UnavailableError if the lookup fails.
    """
    try:
        commit = ref.revision
        if not ref.pinned:
            commit = _decoded(_page(client, _api_url(endpoint, ref, "revision"))[0], _Head).sha
        pinned = dataclasses.replace(ref, revision=commit)
        files = _listed_files(client, f"{_api_url(endpoint, pinned, 'tree')}?recursive=true&expand=false")
    except (NoSourceError, ValueError) as error:
        raise _lookup_error(ref, endpoint, error) from error
    ref_name = None if ref.pinned else ref.revision
    return Revision(kind=ref.kind, repo=ref.repo, revision=commit, ref=ref_name, files=files)


def _listed_files(client: Client, first: str) -> list[HubFile]:
    """Return the files on all pages of a tree. Raises ValueError for too many pages, as in a circle, and for no list.

    The next page is asked of the same host: olah and proxies link to others.
    """
    files: list[HubFile] = []
    url: str | None = first
    seen = set[str]()
    while url is not None:
        if url in seen or len(seen) >= _PAGES:
            message = f"its list of files does not end after {len(files)} files"
            raise ValueError(message)
        seen.add(url)
        body, headers = _page(client, url)
        files += parse_tree(body)
        following = _NEXT.search(headers.get("Link", ""))
        query = urlsplit(urljoin(url, following[1])).query if following else ""
        url = urlsplit(url)._replace(query=query).geturl() if following else None
    bad = _clash(files)
    if bad is not None or not files:
        message = f"it lists {bad!r} twice" if bad else "it lists no files"
        raise ValueError(message)
    return files


def _page(client: Client, url: str) -> tuple[bytes, Mapping[str, str]]:
    return try_sources([url], lambda at: read_body(client, at, _PAGE))[0]


def _lookup_error(ref: Reference, endpoint: str, error: NoSourceError | ValueError) -> UnavailableError:
    reason = next(iter(error.reasons.values())) if isinstance(error, NoSourceError) else error
    fix = "check the name, the revision and the endpoint (`hf: {trusted: URL}` in the profile)"
    if isinstance(reason, NetworkError) and reason.retry:
        fix = "run it again later"
    elif isinstance(reason, StatusError) and reason.fix:
        fix = "check the name; if it is private or gated, set `hf: {token: allow}` or `credentials:` in the profile"
    elif isinstance(reason, NetworkError):
        fix = reason.fix or fix
    message = f"{ref.kind} {ref.repo}@{ref.revision}: {host_of(endpoint)}: {reason}"
    return UnavailableError(message, fix=f"{fix}, or use `fetch --lock FILE`, which needs no lookup")


def lock_revision(client: Client, endpoint: str, ref: Reference) -> Revision:
    """Return the lock of a revision: the endpoint gives the sha256 of LFS files; small files are downloaded for it."""
    listed = read_revision(client, endpoint, ref)
    pinned = dataclasses.replace(ref, revision=listed.revision)

    def hashed(file: HubFile) -> HubFile:
        if file.sha256 is not None:
            return file
        try:
            url = file_url(endpoint, pinned, file.path)
            (content, _), _ = try_sources([url], lambda at: read_body(client, at, file.size))
        except NoSourceError as error:
            reasons = list(error.reasons.values())
            fix = joined_advice((reason.fix for reason in reasons), ", or run it again")
            message = f"{file.path}: {error}"
            raise no_answer_error(message, fix, reasons) from error
        if git_sha1(content) != file.sha1:
            message = f"{file.path}: {host_of(endpoint)}: it has another hash than it should have"
            raise PromiseError(message, fix="the mirror serves wrong bytes: compare with the origin, purge the mirror")
        return msgspec.structs.replace(file, sha256=hashlib.sha256(content).hexdigest())

    return msgspec.structs.replace(listed, files=map_in_threads(hashed, listed.files, _AT_ONCE))


def fetch_revision(
    revision: Revision,
    endpoints: Sequence[str],
    to: Path,
    options: TransferOptions,
    on_fetched: Callable[[FetchedFile], None],
) -> list[FetchedFile]:
    """Download a revision to `to`, a directory for HF_HUB_CACHE; the snapshot appears when all files are complete.

    `endpoints` are tried in order for each file, and for each piece of a large file. `on_fetched` is called with each
    file. Equal files are one blob. Progress and errors name a file by its path in the repository, not by its blob.
    """
    ref = Reference(revision.kind, revision.repo, revision.revision)
    folder = safe_files.directory(to, f"{ref.kind}s--{ref.repo.replace('/', '--')}")  # as huggingface_hub names it
    blobs = safe_files.directory(folder, "blobs")
    names = {file.blob: file.path for file in revision.files}
    wanted = [
        WantedFile(
            tuple(file_url(at, ref, file.path) for at in endpoints),
            file.sha256 or "",
            file.size,
            blobs / name,
            git_sha1="" if file.sha256 else file.sha1 or "",
        )
        for name, file in {file.blob: file for file in revision.files}.items()
    ]
    naming = dataclasses.replace(options, note=lambda text: options.note(_with_paths(text, names)))
    try:
        fetched = fetch_all(wanted, naming, on_fetched)
    except EnvcheckError as error:
        raise type(error)(_with_paths(error.message, names), fix=error.fix) from error
    _link_snapshot(revision, folder)
    if revision.ref is not None and revision.ref != revision.revision:
        *above, last = revision.ref.split("/")  # huggingface_hub reads its commit when it has no network
        safe_files.put(safe_files.directory(to, folder.name, "refs", *above) / last, revision.revision.encode())
    return fetched


def _with_paths(text: str, names: Mapping[str, str]) -> str:
    return next((text.replace(blob, path) for blob, path in names.items() if blob in text), text)


def _link_snapshot(revision: Revision, folder: Path) -> None:
    """Make the snapshot under another name, and rename it when it is complete; complete an existing one."""
    snapshots = safe_files.directory(folder.parent, folder.name, "snapshots")
    snapshot = snapshots / revision.revision
    if os.path.lexists(snapshot):
        _link_files(revision, snapshot)
        return
    with tempfile.TemporaryDirectory(dir=snapshots, prefix=".", ignore_cleanup_errors=True) as fresh:
        _link_files(revision, Path(fresh))
        Path(fresh).chmod(0o777 & ~safe_files.umask())
        try:
            Path(fresh).rename(snapshot)
        except OSError as error:
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:  # else another process made the same one
                raise


def _link_files(revision: Revision, snapshot: Path) -> None:
    """Make the files relative links to their blobs, so that the whole cache can be moved; copies without links."""
    folder = snapshot.parent.parent
    for file in revision.files:
        path = PurePosixPath(file.path)
        at = safe_files.directory(folder, "snapshots", snapshot.name, *path.parent.parts) / path.name
        relative = Path(os.path.relpath(folder / "blobs" / file.blob, at.parent))
        if at.is_symlink() and at.readlink() == relative:
            continue
        with contextlib.suppress(FileNotFoundError):
            at.unlink()
        try:
            at.symlink_to(relative)
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP}:
                raise
            with safe_files.temporary(at.parent, at.name) as (_, copy):  # exFAT has no links (huggingface_hub#1882)
                shutil.copyfile(folder / "blobs" / file.blob, copy)
                copy.chmod(0o666 & ~safe_files.umask())
                copy.replace(at)
