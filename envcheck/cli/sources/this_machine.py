"""What this machine is, and the published cell to build on it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, get_args

import click

from envcheck.cli import Settings
from envcheck.errors import NotFoundError, NothingLegalError, UnavailableError
from envcheck.images.lockfile import Lock
from envcheck.images.spec import load_spec
from envcheck.matrix.facts.model import Cell, HostArch, Matrix
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.resolve import Query, Resolution, find_gpu, resolve
from envcheck.mirrors.profiles.load import AUTO
from envcheck.mirrors.profiles.load import load as profile
from envcheck.mirrors.profiles.model import Profile
from envcheck.node.collect import identify
from envcheck.node.snapshot import Snapshot

_VERSION: Final = re.compile(r"^version(?:_info)?\s*=\s*(3\.\d+)", re.MULTILINE)
_NAME: Final = re.compile(r"python(3\.\d+t?)")


class FilledQuery(NamedTuple):
    """A question filled in: `read` says what came off this node, `notes` what was not there."""

    query: Query
    read: dict[str, str]
    notes: list[str]


def fill(matrix: Matrix, query: Query, snapshot: Snapshot, python: str) -> FilledQuery:
    """Return `wanted` with every free axis of the machine and the Python read off this node.

    Without an NVIDIA GPU that is the cpu variant, unless another variant was asked for. Raises UnavailableError for
    GPUs that cannot be identified or whose driver cannot be read: leaving those free would be a guess.
    """
    read: dict[str, str] = {}
    notes: list[str] = []
    if query.python is None:
        query, read["python"] = query.replace(python=python), python
    arch = snapshot.signal("host.arch").value
    if query.arch is None and not query.gpus and arch in get_args(HostArch):
        query, read["arch"] = query.replace(arch=arch), str(arch)
    if query.variant != "cpu":
        query = _machine(matrix, query, snapshot, read, notes)
    return FilledQuery(query, read, notes)


def _machine(matrix: Matrix, query: Query, snapshot: Snapshot, read: dict[str, str], notes: list[str]) -> Query:
    driver = snapshot.signal("driver.version")
    if not snapshot.gpus:
        why = driver.reason or f"driver {driver.value} is loaded, but NVML lists no GPU"
        if query.driver or query.gpus or query.cc or query.variant or query.cuda:
            notes.append(f"no NVIDIA GPU on this node ({why}): its driver and GPU are left free")
            return query
        notes.append(f"no NVIDIA GPU on this node ({why}): the cpu variant")
        return query.replace(variant="cpu")
    if query.driver is None:
        if not isinstance(driver.value, str):
            message = f"this node has a GPU, but its driver version could not be read: {driver.reason}"
            raise UnavailableError(message, fix="give it with --driver")
        query, read["driver"] = query.replace(driver=driver.value), driver.value
    if not query.gpus and not query.cc:
        query = _gpus(matrix, query, snapshot, read)
    return query


def _gpus(matrix: Matrix, query: Query, snapshot: Snapshot, read: dict[str, str]) -> Query:
    names, capabilities = [], []
    for gpu in snapshot.gpus:
        name, capability = gpu.signal("name"), gpu.signal("compute_capability")
        if isinstance(name.value, str) and find_gpu(matrix, name.value) is not None:
            names.append(name.value)
        elif isinstance(capability.value, str):
            capabilities.append(capability.value)
        else:
            why = capability.reason or name.reason or "NVML gives neither a known name nor a compute capability"
            message = f"GPU {gpu.uuid} cannot be identified: {why}"
            raise UnavailableError(message, fix="give it with --gpu or --cc")
    read["gpu"] = ", ".join([*names, *(f"compute capability {cc}" for cc in capabilities)])
    return query.replace(gpus=list(dict.fromkeys(names)), cc=list(dict.fromkeys(capabilities)))


def active_python(environ: Mapping[str, str] = os.environ) -> str:
    """Return the version (3.12, 3.13t) of the Python that `python3` is here, without starting it.

    An active virtual environment comes first, then `python3` on PATH; when neither tells, the Python this runs on.
    """
    venv = environ.get("VIRTUAL_ENV")
    python = shutil.which("python3", path=environ.get("PATH"))
    for executable in (Path(venv, "bin", "python3") if venv else None, Path(python) if python else None):
        version = _version_of(executable) if executable is not None else None
        if version is not None:
            return version
    return f"3.{sys.version_info.minor}"


def _version_of(executable: Path) -> str | None:
    named = _NAME.fullmatch(executable.resolve().name)
    if named is not None:
        return named[1]
    try:
        version = _VERSION.search(executable.parent.with_name("pyvenv.cfg").read_text())
    except (OSError, UnicodeDecodeError):
        return None
    return version[1] if version else None


class BestCell(NamedTuple):
    """A cell, and why it is not the best that resolve names; None where it is."""

    cell: Cell
    why: str | None = None


def cell_for_this_machine(settings: Settings, mirror: str) -> str:
    """Return the name of the published cell to build here through this mirror, and say which it is and why."""
    matrix = load(settings.matrix)
    node = fill(matrix, Query(), identify(), active_python())
    answer = resolve(matrix, node.query, read_here=node.read, notes=node.notes)
    cells = published_here(matrix, [answer, resolve(matrix, node.query.replace(python=None))])
    if answer.published is None:
        message = "no published cell runs on this machine"
        raise NothingLegalError(message, fix="`envcheck resolve` says why, `envcheck images` what is published")
    best = BestCell(cells[0]) if mirror == AUTO else newest_available(matrix, cells, profile(mirror), answer.arch)
    click.echo(f"cell    {best.cell}: {best.why or 'the best published one for this machine'}", err=True)
    return str(best.cell)


def published_here(matrix: Matrix, answers: Sequence[Resolution]) -> list[Cell]:
    """Return the published cells that run here, best first.

    Where these are CPU cells, the default builds of the same torches follow: they run on a CPU too.
    """
    arch = answers[0].arch
    published = {str(cell): cell for cell in matrix.cells() if arch in matrix.archs(cell)}
    named = [answer.published for answer in answers] + [row.cell for answer in answers for row in answer.ranked]
    legal = [*dict.fromkeys(published[name] for name in named if name in published)]
    return [*legal, *(cell for first in legal if first.variant == "cpu" for cell in _defaults(matrix, first, arch))]


def _defaults(matrix: Matrix, cell: Cell, arch: HostArch) -> Iterator[Cell]:
    """Yield the published cells of the same torch in the variant that the Python index has, this Python's first."""
    release = matrix.release(cell.torch)
    default = release.pypi.get(arch) if release else None
    same = [c for c in matrix.cells() if c.torch == cell.torch and c.variant == default and arch in matrix.archs(c)]
    yield from sorted(same, key=lambda other: other.python != cell.python)


def newest_available(matrix: Matrix, cells: Sequence[Cell], profile: Profile, arch: HostArch = "x86_64") -> BestCell:
    """Return the first of the cells whose torch the profile has; the first of all where none is found."""
    from envcheck.images.wheels import bytes_to_fetch  # needs uv and urllib3, which images lack
    from envcheck.mirrors.net.client import hub_client

    client, silent = hub_client(profile, connections=8), set[str]()
    for cell in dict.fromkeys(cells):
        locks = load_spec(matrix, cell, arch=arch).locks
        torch = [lock for lock in locks if lock.group == "torch"]
        try:
            bytes_to_fetch(torch, cell.python, profile, None if silent & {lock.index for lock in torch} else client)
        except NotFoundError:
            continue
        except UnavailableError:
            silent |= {lock.index for lock in torch}
            continue
        if torch:
            return BestCell(cell, _why(cell, cells[0], profile, locks))
    return BestCell(cells[0])


def _why(cell: Cell, best: Cell, profile: Profile, locks: list[Lock]) -> str | None:
    if cell == best:
        return None
    if cell.variant == best.variant:
        return f"the newest published one that mirror profile {profile.name} has; it does not have {best}"
    lacks = f"mirror profile {profile.name} has no CPU wheel of torch"
    remedy = ", unless --mirror host or a profile names an index that has it" if profile.name == "none" else ""
    return f"{lacks}; this CUDA build runs on a CPU too, {_size(cell, locks, profile)}{remedy}"


def _size(cell: Cell, locks: list[Lock], profile: Profile) -> str:
    from envcheck.images.wheels import bytes_to_fetch
    from envcheck.mirrors.net.client import hub_client

    try:
        size = bytes_to_fetch(locks, cell.python, profile, hub_client(profile, connections=8))
    except UnavailableError:
        size = None
    return "of unknown size" if size is None else f"{size / 1e9:.1f} GB to fetch"
