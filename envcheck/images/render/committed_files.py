"""images/: what is written there, what is compared, what does not belong."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from envcheck import safe_files
from envcheck.images.locks.lockfile import GROUPS, file_name, format_lock
from envcheck.images.locks.model import Lock
from envcheck.matrix.facts.model import Cell, HostArch

Kind = Literal["missing", "stale", "orphan"]
ARCHS: Final[tuple[HostArch, ...]] = get_args(HostArch)
_CELL: Final = re.compile(r"torch\d[\w.]*-(cpu|cu\d+)-py\d+t?")


class Drift(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One file that is not what rendering would give; `path` is relative to images/."""

    path: str
    kind: Kind


def lock_files(cell: Cell, locks: Sequence[Lock], arch: HostArch = "x86_64") -> dict[str, bytes]:
    """Return a cell's lock files for one architecture."""
    where = "" if arch == "x86_64" else f", {arch}"
    return {
        file_name(lock.group, arch): format_lock(lock, f"{cell}, layer {lock.group}{where}").encode() for lock in locks
    }


def write_locks(images_dir: Path, cell: Cell, locks: Sequence[Lock], arch: HostArch = "x86_64") -> bool:
    """Make a cell's lock files for one architecture exactly these; tell whether anything changed."""
    directory = images_dir / str(cell)
    files = lock_files(cell, locks, arch)
    names = [file_name(group, arch) for group in GROUPS]
    stale = [path for path in (directory / name for name in names if name not in files) if path.exists()]
    for path in stale:
        path.unlink()
    return bool(write(directory, files) or stale)


def write(directory: Path, files: Mapping[str, bytes]) -> list[str]:
    """Write files that differ, each whole or not at all; return their names."""
    changed = []
    for name, content in files.items():
        path = directory / name
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        safe_files.replace(path, content)
        changed.append(name)
    return changed


def drift(images_dir: Path, rendered: Mapping[str, bytes]) -> list[Drift]:
    """Compare images/ with `rendered` (path below it -> bytes), as sets and byte by byte."""
    committed = {str(p.relative_to(images_dir)) for p in images_dir.rglob("*") if not p.is_dir() and p.name != ".keep"}
    drifts = [Drift(path=path, kind="missing") for path in rendered if path not in committed]
    drifts += [Drift(path=path, kind="orphan") for path in committed if path not in rendered]
    in_both = [path for path in rendered if path in committed]
    drifts += [Drift(path=p, kind="stale") for p in in_both if (images_dir / p).read_bytes() != rendered[p]]
    return sorted(drifts)


def remove_orphans(images_dir: Path, rendered: Mapping[str, bytes]) -> list[str]:
    """Delete what an earlier rendering or lock gave and this one does not, and directories this leaves empty.

    Return the paths. A file of another name or place is not ours: --images may name any directory.
    """
    generated = {
        "Dockerfile",
        *(file_name(g, arch) for g in GROUPS for arch in ARCHS),
        *(path.partition("/")[2] for path in rendered),
    }
    orphans = [d.path for d in drift(images_dir, rendered) if d.kind == "orphan" and _rendered(d.path, generated)]
    for path in orphans:
        (images_dir / path).unlink()
        directory = (images_dir / path).parent
        if not any(directory.iterdir()):
            directory.rmdir()
    return orphans


def _rendered(path: str, generated: Collection[str]) -> bool:
    directory, _, name = path.partition("/")
    return name in generated and _CELL.fullmatch(directory) is not None
