"""Judge the object store behind a site's trees: all of it is read, through rclone, and held against the manifests.

A tree is copied there file by file, so for a while a page may be of the version before or after: it is right if the
store's manifest or this disk's says so.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from envcheck.mirrors.site.audit import Finding
from envcheck.mirrors.site.audit_disk import unread
from envcheck.mirrors.site.model import Site
from envcheck.mirrors.versions import MANIFEST, Manifest

_LINE: Final = re.compile(r" *([0-9a-f]{64}|[A-Z]+) +(.+)")
_SHA256: Final = 64


class _FailedError(Exception):
    """What rclone could not do, and why."""


def unasked(site: Site) -> list[Finding]:
    """Return the finding of an object store that nobody asked to be read: it may be large, and far away."""
    about = "the object store was not read: --object-store reads all of it"
    return [Finding(f"{site.s3}", "unknown", about, cache="object store")] if site.s3 else []


def audit(site: Site) -> Iterator[Finding]:
    """Yield what every object behind a site's trees is; what is wrong is deleted there."""
    if not site.s3:
        return
    at = f"cold:{site.s3}"
    try:
        lines = _rclone("hashsum", "sha256", "--download", at).splitlines()
        hashes = {found[2]: found[1] for line in lines if (found := _LINE.fullmatch(line))}
        known = {path: _known(site, at, path) for path in hashes if path.rpartition("/")[2] == MANIFEST}
    except _FailedError as error:
        yield Finding(site.s3, "unreadable", str(error), cache="object store")
        return
    for path, has in sorted(hashes.items()):
        if path not in known:
            yield _judged(at, path, has, known)
    yield from (
        Finding(path, "unknown", "no manifest of a published tree", cache="object store")
        for path in known
        if not known[path]
    )


def _known(site: Site, at: str, path: str) -> Mapping[str, set[str]]:
    """Return what a tree's files may be, by the manifest that lies beside them and by that of this disk."""
    found: dict[str, set[str]] = {}
    for content in (_rclone("cat", f"{at}/{path}").encode(), _local(Path(site.root, "public", path))):
        for file in _files(content):
            found.setdefault(f"{path.removesuffix(MANIFEST)}{file[0]}", set()).add(file[1])
    return found


def _local(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _files(content: bytes) -> list[tuple[str, str]]:
    try:
        return [(file.path, file.sha256) for file in msgspec.json.decode(content, type=Manifest).files]
    except msgspec.DecodeError:
        return []


def _judged(at: str, path: str, has: str, known: Mapping[str, Mapping[str, set[str]]]) -> Finding:
    nearest = max((one for one in known if path.startswith(one.removesuffix(MANIFEST))), key=len, default="")
    right = known.get(nearest, {}).get(path)
    if len(has) != _SHA256:
        return Finding(path, "unreadable", "rclone could not read it", cache="object store")
    if right is None:
        return Finding(path, "unknown", "no manifest of a published tree holds it", cache="object store")
    if has in right:
        return Finding(path, "clean", cache="object store", by="manifest")
    about = f"it has {has}, its manifest {min(right)}"
    try:
        _rclone("deletefile", f"{at}/{path}")
    except _FailedError as error:
        return Finding(path, "poisoned", f"{about}; it is still there: {error}", (), "object store", "manifest")
    about += "; it comes again with the next copy of the tree"
    return Finding(path, "poisoned", about, (f"{at}/{path}",), "object store", "manifest")


def _rclone(*arguments: str) -> str:
    """Return what rclone says; raise _FailedError where it fails. Its credentials are variables of its own."""
    try:
        done = subprocess.run(
            ["rclone", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        message = f"rclone cannot be started: {unread(Path('rclone'), error).why}"
        raise _FailedError(message) from error
    if done.returncode:
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        message = f"rclone {arguments[0]}: {last}"
        raise _FailedError(message)
    return done.stdout
