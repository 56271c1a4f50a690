"""images/: what is written there, what is compared, what does not belong."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from envcheck import safe_files
from envcheck.data import rendered
from envcheck.images.lockfile import GROUPS, Lock, file_name, format_lock
from envcheck.images.spec import LABEL_PREFIX, ImageSpec, no_lock
from envcheck.images.targets import RECIPES, SHARED_GROUPS, os_packages
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
        *(f"{target}.json" for target in RECIPES),
        *(file_name(g, arch) for g in GROUPS for arch in ARCHS),
        *(path.partition("/")[2] for path in rendered),
    }
    orphans = []
    for path in (d.path for d in drift(images_dir, rendered) if d.kind == "orphan"):
        cell, _, name = path.partition("/")
        if name not in generated or not _CELL.fullmatch(cell):
            continue
        orphans.append(path)
        (images_dir / path).unlink()
        directory = (images_dir / path).parent
        if not any(directory.iterdir()):
            directory.rmdir()
    return orphans


PROVEN: Final = ("torch", "cuda", "cudnn", "nccl", "python", "arch-list")


def render_cell(*specs: ImageSpec) -> dict[str, bytes]:
    """Return the files of images/<cell>/ for these targets of one cell: Dockerfile, promises and locks.

    Dockerfile and promises are those of the first spec's architecture; each architecture has its own locks.
    """
    cell = specs[0].cell
    unlocked = next((spec for spec in specs if not spec.locks), None)
    if unlocked is not None:
        raise no_lock(cell, unlocked.arch)
    first = [spec for spec in specs if spec.arch == specs[0].arch]
    files = {"Dockerfile": render_dockerfile(*first).encode()}
    files |= {f"{s.target}.json": (json.dumps(s.own_promises, indent=1, sort_keys=True) + "\n").encode() for s in first}
    for arch in dict.fromkeys(spec.arch for spec in specs):
        files |= lock_files(cell, all_locks(spec for spec in specs if spec.arch == arch), arch)
    return files


def render_cells(specs: Iterable[ImageSpec]) -> dict[str, bytes]:
    """Return all of images/, path below it -> bytes; specs of one cell are targets of one Dockerfile."""
    cells: dict[Cell, list[ImageSpec]] = {}
    for spec in specs:
        cells.setdefault(spec.cell, []).append(spec)
    return {f"{cell}/{name}": text for cell, group in cells.items() for name, text in render_cell(*group).items()}


def all_locks(specs: Iterable[ImageSpec]) -> list[Lock]:
    """Return each lock of these specs once, in layer order."""
    locks = {lock.group: lock for spec in specs for lock in spec.locks}
    return [locks[group] for group in GROUPS if group in locks]


def render_dockerfile(
    *specs: ImageSpec, base: str | None = None, kept: Mapping[str, str] | None = None, carried: bool = False
) -> str:
    """Return the Dockerfile of these targets of one cell, `runtime` last: it is what `docker build DIR` makes.

    With `kept`, it leaves keep/ and this environment in the image. `carried`: the context holds mirror/ and bin/uv, as
    one of envcheck's does, so that engines without named contexts build it. Without, they are stages.
    """
    spec = specs[0]
    context = {
        "carried": carried,
        "mirror": "source=mirror/" if carried else "from=mirror,source=",
        "uv": "source=bin/uv" if carried else "from=uv,source=uv",
        "mirrored": ["os", *(lock.group for lock in all_locks(specs)), "envcheck"],
        "cell": spec.cell,
        "base": base or base_reference(spec),
        "packages": os_packages(spec.cuda),
        "python": spec.cell.python,
        "locks": [lock for lock in spec.locks if lock.group in SHARED_GROUPS],
        "targets": [
            {
                "name": each.target,
                "packages": RECIPES[each.target].packages,
                "groups": [lock.group for lock in each.locks if lock.group not in SHARED_GROUPS],
                "added": shlex.join(added(each)),
                "part": f"targets/{each.target}.j2",
                "command": list(RECIPES[each.target].command),
                "labels": labels(each),
            }
            for each in sorted(specs, key=lambda each: each.target == "runtime")
        ],
        "proof": shlex.join([*proof(spec), *([f"fabric={spec.promises['fabric']}"] if spec.cuda else [])]),
        "keep": kept is not None,
        "kept_environment": dict(kept or {}),
        "cuda": spec.cuda,
        "cuda_major": spec.cuda.partition(".")[0] if spec.cuda else None,
    }
    return rendered("Dockerfile.j2", context)


def proof(spec: ImageSpec) -> list[str]:
    """Return what prove.py is given: the promises that it compares with the installed torch."""
    return [f"{name}={spec.promises[name]}" for name in PROVEN]


def added(spec: ImageSpec) -> list[str]:
    """Return the native extensions and the user's packages, which may overwrite no file of the cell's."""
    return [pin.name for lock in spec.locks if lock.group in ("extensions", "user") for pin in lock.pins]


def base_reference(spec: ImageSpec, registry: str | None = None) -> str:
    """Return the base, by digest once known; `registry` stands in for the engine's default one."""
    image = spec.base.image + (f"@{spec.base.digest}" if spec.base.digest else "")
    if registry is None:
        return image
    return f"{registry.rstrip('/')}/{image if '/' in image else f'library/{image}'}"


def labels(spec: ImageSpec) -> dict[str, str]:
    """Return every label but the revision, which only a build knows, sorted."""
    oci = {
        "org.opencontainers.image.base.name": spec.base.image,
        "org.opencontainers.image.description": spec.title,
        "org.opencontainers.image.title": f"{spec.cell}-{spec.target}",
        "org.opencontainers.image.version": spec.tag,
    }
    if spec.base.digest:
        oci["org.opencontainers.image.base.digest"] = spec.base.digest
    return dict(sorted({**oci, **{f"{LABEL_PREFIX}{name}": value for name, value in spec.promises.items()}}.items()))
