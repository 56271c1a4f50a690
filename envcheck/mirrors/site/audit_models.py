"""Judge what olah has cached by the locks of models, and by the hashes that the hub itself tells; purge what is wrong.

olah holds nothing of what it takes against a hash. A lock's word stands over the hub's: what the hub's answers, as
olah keeps them, say otherwise of a locked revision is poison too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from envcheck.mirrors.hf import Entry as Locked
from envcheck.mirrors.hf import Revision
from envcheck.mirrors.site import audit_olah
from envcheck.mirrors.site.audit import By, Finding, not_read, unreadable
from envcheck.mirrors.site.audit_disk import Unread, files, unread
from envcheck.mirrors.site.audit_olah import Entry
from envcheck.mirrors.site.model import Site

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SHA1: Final = re.compile(r"[0-9a-f]{40}")


class At(NamedTuple):
    """Which file of which commit of a repository: `kind` is olah's "models" or "datasets"."""

    kind: str
    repo: str
    commit: str
    path: str

    def __str__(self) -> str:
        """Return it as a person writes it."""
        return f"{'' if self.kind == 'models' else f'{self.kind}/'}{self.repo}@{self.commit[:12]}/{self.path}"


class Says(NamedTuple):
    """What a file must be, and who says it; a sha1 is the one that git gives a file's content."""

    by: By
    hashes: frozenset[str]


def audit(site: Site, models: Sequence[Revision]) -> Iterator[Finding]:
    """Yield what every file and listing in the cache of a site's Hugging Face server is; what is wrong is removed."""
    root, there = Path(site.root, "cache/hf"), set[At]()
    locked = {At(f"{one.kind}s", one.repo, one.revision, file.path): file for one in models for file in one.files}
    for entry in audit_olah.entries(root):
        if isinstance(entry, Unread):
            yield not_read("models", entry, root)
            continue
        at = _at(entry.path.relative_to(root).parts)
        if at is not None:
            there.add(at)
        yield from _audited(entry, root, at, locked)
    yield from _listings(root, locked)
    yield from (Finding(str(at), "not cached", cache="models") for at in locked if at not in there)


def _at(parts: Sequence[str]) -> At | None:
    """Return which file of a repository lies at a path below olah's directory, or None: its name is a hash then."""
    for owned in (5, 4):
        if len(parts) > owned and parts[0] == "files" and parts[owned - 1] == "resolve":
            return At(parts[1], "/".join(parts[2 : owned - 1]), parts[owned], "/".join(parts[owned + 1 :]))
    return None


def _audited(entry: Entry, root: Path, at: At | None, locked: Mapping[At, Locked]) -> Iterator[Finding]:
    name = str(at or entry.path.relative_to(root))
    digests = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % entry.size, usedforsecurity=False)
    try:
        had = audit_olah.hashed(entry, digests)
        says = _says(entry, root, at, locked)
    except OSError as error:
        yield unreadable("models", name, Path(error.filename or entry.path), error)
        return
    if had != entry.size:
        yield Finding(name, "in part", f"{had} of {entry.size} bytes are there in a row", cache="models")
        return
    finding = judged(name, {digest.hexdigest() for digest in digests}, says)
    if finding.verdict == "poisoned":
        gone, still = audit_olah.purged(entry)
        about = "; ".join(text for text in (finding.about, still) if text)
        finding = dataclasses.replace(finding, about=about, purged=gone)
    yield finding


def _says(entry: Entry, root: Path, at: At | None, locked: Mapping[At, Locked]) -> Says:
    """Return what a file must be: by the lock, by a name that is its hash, or by what the hub tells of it."""
    lock = locked.get(at) if at else None
    if lock is not None:
        return Says("lock", frozenset({str(lock.sha256)}))
    name = entry.path.name
    if at is None and _SHA256.fullmatch(name) and entry.path.parent.name != "xet":
        return Says("name", frozenset({name}))
    said = _paths_info(root, at) if at else _xet(root, name)
    # An ETag that is no sha256 is whatever its upstream likes.
    return Says("upstream", said | ({entry.etag} if _SHA256.fullmatch(entry.etag) and at else frozenset()))


def judged(name: str, digests: set[str], says: Says) -> Finding:
    """Return what a whole file is, by its sha256 and git's sha1."""
    if not says.hashes:
        return Finding(
            name, "unknown", "no lock holds it, and the hub's answers in the cache tell no hash", cache="models"
        )
    wrong = says.hashes - digests
    if not wrong:
        return Finding(name, "clean", cache="models", by=says.by)
    who = {"lock": "the lock", "name": "its name"}.get(says.by, "the hub")
    kind = len(min(wrong))
    mine = next(digest for digest in digests if len(digest) == kind)
    return Finding(name, "poisoned", f"the cache has {mine}, {who} {min(wrong)}", cache="models", by=says.by)


def _paths_info(root: Path, at: At) -> frozenset[str]:
    folder = root / "api" / at.kind / at.repo / "paths-info" / at.commit / at.path
    answers = [_rows(answer) for answer in sorted(folder.glob("paths-info_*.json"))]
    return frozenset(said for rows in answers for row in rows if (said := _hash(row, at.path)))


def _rows(answer: Path) -> list[Any]:
    try:
        return audit_olah.rows(answer)
    except (FileNotFoundError, ValueError):
        return []


def _hash(row: Any, path: str) -> str | None:
    """Return the sha256 of a file in LFS, or git's sha1 of another, as a row of the API tells it."""
    if not isinstance(row, dict) or row.get("path") != path:
        return None
    lfs = row.get("lfs")
    said = str(lfs.get("oid", "")).removeprefix("sha256:") if isinstance(lfs, dict) else str(row.get("oid", ""))
    return said if (_SHA256 if isinstance(lfs, dict) else _SHA1).fullmatch(said) else None


def _xet(root: Path, name: str) -> frozenset[str]:
    """Return the sha256 that olah noted for a file it has under xet's own hash."""
    try:
        told = msgspec.json.decode((root / "lfs/xet_index" / name[:2] / f"{name}.json").read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return frozenset()
    said = str(told.get("lfs_oid")) if isinstance(told, dict) else ""
    return frozenset({said} if _SHA256.fullmatch(said) else ())


def _listings(root: Path, locked: Mapping[At, Locked]) -> Iterator[Finding]:
    """Yield what the hub's answers in the cache say otherwise than a lock of its revision, and remove them."""
    commits = {(at.kind, at.repo, at.commit) for at in locked}
    for kind, repo, commit in sorted(commits):
        for listing in ("paths-info", "tree"):
            folder = root / "api" / kind / repo / listing / commit
            for path in files(folder):
                if isinstance(path, Unread):
                    yield not_read("models", path, root)
                elif path.suffix == ".json":
                    yield from _listing(path, root, At(kind, repo, commit, ""), locked)


def _listing(path: Path, root: Path, at: At, locked: Mapping[At, Locked]) -> Iterator[Finding]:
    name = str(path.relative_to(root))
    try:
        wrong = next((row["path"] for row in audit_olah.rows(path) if _otherwise(row, at, locked)), None)
    except FileNotFoundError:
        return
    except ValueError as error:
        yield Finding(name, "unknown", str(error), cache="models")
        return
    except OSError as error:
        yield not_read("models", unread(path, error), root)
        return
    if wrong is not None:
        gone, still = audit_olah.forgotten(path)
        about = "; ".join(text for text in (f"what it says of {wrong} is not what the lock says", still) if text)
        yield Finding(name, "poisoned", about, gone, "models", "lock")


def _otherwise(row: Any, at: At, locked: Mapping[At, Locked]) -> bool:
    """Tell whether a row of a listing contradicts the lock of its file."""
    path = row.get("path") if isinstance(row, dict) else None
    file = locked.get(at._replace(path=path)) if isinstance(path, str) else None
    if file is None:
        return False
    said = _hash(row, file.path) or ""
    known = file.sha256 if _SHA256.fullmatch(said) else file.sha1
    return (bool(said) and known is not None and said != known) or row.get("size") != file.size
