"""Judge what pull-through registries have cached: every blob and manifest has its own hash for a name.

A blob goes first and its links after it: a link without a blob is nothing to the registry, which then asks its
upstream; a blob that only lost its links would be linked again, as it is.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from envcheck.mirrors.site.audit import Finding, not_read, unreadable
from envcheck.mirrors.site.audit_disk import Unread, empty, files, removed, settled, unread
from envcheck.mirrors.site.model import Site

_STORAGE: Final = "docker/registry/v2"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Link:
    """A file that gives a repository a blob: `digest` is its directory's name, `to` what it holds."""

    path: Path
    repo: str
    digest: str
    to: str


def audit(site: Site) -> Iterator[Finding]:
    """Yield what every blob, manifest and link of a site's registries is; what is wrong is removed."""
    for registry in site.registries:
        yield from _registry(registry.name, Path(site.root, "cache/registry", registry.name, _STORAGE))


def _registry(name: str, root: Path) -> Iterator[Finding]:
    links: dict[str, list[Link]] = {}
    for path in files(root / "repositories"):
        if isinstance(path, Unread):
            yield not_read("images", path, root)
        elif path.name == "link" and path.parent.parent.name == "sha256":
            found = _link(path, root / "repositories")
            if isinstance(found, Unread):
                yield not_read("images", found, root)
            elif found is not None:
                links.setdefault(found.digest, []).append(found)
    yield from _wrong_links(name, links)
    for path in files(root / "blobs"):
        if isinstance(path, Unread):
            yield not_read("images", path, root)
        elif path.name == "data":
            yield from _blob(name, path, links)


def _link(path: Path, root: Path) -> Link | Unread | None:
    try:
        to = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        return unread(path, error)
    parts = path.relative_to(root).parts
    inner = next((n for n, part in enumerate(parts) if part in {"_layers", "_manifests"}), len(parts))
    return Link(path, "/".join(parts[:inner]), path.parent.name, to)


def _wrong_links(name: str, links: Mapping[str, list[Link]]) -> Iterator[Finding]:
    """Yield the links that lead to another blob than their name says: what was asked for is not what would come."""
    for link in [link for of_blob in links.values() for link in of_blob]:
        if link.to != f"sha256:{link.digest}":
            gone, still = removed([link.path])
            about = "; ".join(text for text in (f"its link leads to {link.to or 'nothing'}", still) if text)
            yield Finding(_named(name, link.repo, link.digest), "poisoned", about, gone, "images", "name")


def _blob(name: str, path: Path, links: Mapping[str, list[Link]]) -> Iterator[Finding]:
    digest, mine = path.parent.name, links.get(path.parent.name, [])
    told = _named(name, ",".join(sorted({link.repo for link in mine})), digest)
    if not _DIGEST.fullmatch(digest) or path.parents[2].name != "sha256":
        yield Finding(str(path), "unknown", "its name is no sha256", cache="images")
        return
    try:
        has = settled(path, digest)
    except FileNotFoundError:
        return
    except OSError as error:
        yield unreadable("images", told, path, error)
        return
    if has == digest:
        yield Finding(told, "clean", cache="images", by="name")
        return
    gone, still = _purged(path, mine)
    about = "; ".join(text for text in (f"the cache has sha256:{has} under this name", still) if text)
    yield Finding(told, "poisoned", about, gone, "images", "name")


def _purged(data: Path, links: list[Link]) -> tuple[tuple[str, ...], str]:
    """Remove a blob; then, if it is gone, the links to it."""
    gone, still = removed([data])
    if still:
        return gone, still
    empty(data.parent)
    unlinked, still = removed([link.path for link in links])
    for link in links:
        empty(link.path.parent)
    return (*gone, *unlinked), still


def _named(registry: str, repo: str, digest: str) -> str:
    return f"{registry}{f'/{repo}' if repo else ''}@sha256:{digest}"
