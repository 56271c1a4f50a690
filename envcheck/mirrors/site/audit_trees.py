"""Judge published trees by their versions' own manifests, and take what is wrong away: it is then not served at all.

A tree is a directory with a manifest that `envcheck store publish` wrote; it may lie at any depth of what is served.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from envcheck.mirrors.site.audit import Finding, not_read, unreadable
from envcheck.mirrors.site.audit_disk import Unread, files, removed, settled, unread
from envcheck.mirrors.site.model import Site
from envcheck.mirrors.versions import MANIFEST, Manifest


@dataclasses.dataclass(frozen=True)
class Served:
    """A directory that is served: the name clients know it by, where it is, and what brings back what is purged."""

    name: str
    path: Path
    fix: str


_Tree = Mapping[str, str]
_NOTHING: Final[_Tree] = {}


def served(site: Site) -> Iterator[Served]:
    """Yield what a site serves of its own: copies of trees, each a link to its version, and what a store published.

    Raise OSError where that cannot be read.
    """
    folder = Path(site.root, "public/static")
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        names = []
    yield from (Served(name, folder / name, "it comes again with the next copy") for name in names)
    if site.store and Path(site.store, "current").is_symlink():
        fix = f"run `envcheck store verify --store {site.store}`, then publish again"
        yield Served("store", Path(site.store, "current"), fix)


def audit(site: Site) -> Iterator[Finding]:
    """Yield what every file that a site serves of its own is. Raise OSError where it cannot be told what that is."""
    for tree in served(site):
        yield from _audited(tree)


def _audited(tree: Served) -> Iterator[Finding]:
    # A version may be switched while it is read: what is read is the one that was served at the beginning.
    root = tree.path.resolve() if tree.path.exists() else tree.path
    if not root.is_dir():
        yield from _alone(tree, root)
        return
    found = list(files(root))
    manifests = {path.parent: path for path in found if isinstance(path, Path) and path.name == MANIFEST}
    known: dict[Path, _Tree] = {}
    for folder, manifest in manifests.items():
        told = _manifest(manifest)
        if isinstance(told, Unread):
            yield _named(tree, root, not_read("trees", told, root))
        else:
            known[folder] = told
    for path in found:
        if isinstance(path, Unread):
            yield _named(tree, root, not_read("trees", path, root))
        elif path.name != MANIFEST:
            folder = next((one for one in path.parents if one in known), root)
            yield from _file(tree, root, path, known.get(folder, _NOTHING).get(str(path.relative_to(folder))))
    there = set(found)
    for folder, told in known.items():
        absent = (folder / name for name in told if folder / name not in there)
        yield from (Finding(_name(tree, root, path), "not cached", cache="trees") for path in absent)


def _alone(tree: Served, root: Path) -> Iterator[Finding]:
    """Yield the finding of what is served and is no directory."""
    try:
        tree.path.stat()
    except OSError as error:
        yield unreadable("trees", tree.name, tree.path, error)
    else:
        yield Finding(tree.name, "unknown", f"{root} is in no published tree", cache="trees")


def _manifest(path: Path) -> _Tree | Unread:
    try:
        told = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        return unread(path, error)
    except msgspec.DecodeError as error:
        return Unread(path, f"no manifest of a published tree: {error}", strange=True)
    return {file.path: file.sha256 for file in told.files}


def _file(tree: Served, root: Path, path: Path, expected: str | None) -> Iterator[Finding]:
    name = _name(tree, root, path)
    if expected is None:
        yield Finding(name, "unknown", "no manifest of a published tree holds it", cache="trees")
        return
    try:
        has = settled(path, expected)
    except FileNotFoundError:
        return
    except OSError as error:
        yield unreadable("trees", name, path, error)
        return
    if has == expected:
        yield Finding(name, "clean", cache="trees", by="manifest")
        return
    gone, still = removed([path])
    about = "; ".join(text for text in (f"it has {has}, its manifest {expected}", still or tree.fix) if text)
    yield Finding(name, "poisoned", about, gone, "trees", "manifest")


def _name(tree: Served, root: Path, path: Path) -> str:
    return f"{tree.name}/{path.relative_to(root)}"


def _named(tree: Served, root: Path, finding: Finding) -> Finding:
    path = finding.name if root != Path(finding.name) else "."
    return dataclasses.replace(finding, name=f"{tree.name}/{path}")
