"""Which locked files a mirror profile has, and how large they are, without fetching them."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

import msgspec
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envcheck.images.lockfile import Lock, Pin
from envcheck.matrix.facts.model import Cell, HostArch, TorchRelease
from envcheck.mirrors.index import LockedPackage, locate
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.profiles.model import Index, Profile, network_indexes


def wanted_packages(locks: Sequence[Lock], python: str) -> list[LockedPackage]:
    """Return the packages of the locks, as indexes are asked for them."""
    return [
        LockedPackage(pin.name, tuple(pin.sha256), lock.index, pin.version, python)
        for lock in locks
        for pin in lock.pins
    ]


def indexes_by_family(profile: Profile) -> dict[str, list[Index]]:
    """Return the indexes to ask for "pypi" and "pytorch", in order; a closed profile has no defaults."""
    families = {"pypi": profile.pypi, "pytorch": profile.pytorch}
    return {family: [*network_indexes(indexes, closed=profile.closed)] for family, indexes in families.items()}


def bytes_to_fetch(locks: Sequence[Lock], python: str, profile: Profile, client: Client | None) -> int | None:
    """Return how many bytes of these locks are not on this machine yet; None where an index does not say a size.

    Raises UnavailableError naming what no source has; NotFoundError where all indexes answered. Without a client only
    this machine's directories are looked at.
    """
    local = local_wheels(locks, [*profile.pypi, *profile.pytorch], python)
    absent = [package for package in wanted_packages(locks, python) if not {*package.sha256} & local.keys()]
    if not absent:
        return 0
    indexes = indexes_by_family(profile) if client else {}
    located = locate(absent, indexes, client or Client())
    sizes = [file.size for file in located if file.size is not None]
    return sum(sizes) if len(sizes) == len(located) else None


_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class KnownVariant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one variant of one torch requires of NVIDIA's packages and triton. `verified` is false for a derived row."""

    torch: str
    variant: str
    requires: list[str]
    source: list[str]
    verified: bool = True
    note: str | None = None


class KnownHashes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sha256 of wheels by their path below a PyTorch index, e.g. whl/cu118/torch-2.6.0+cu118-….whl."""

    source: list[str]
    sha256: dict[str, str]


class KnownWheels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of known_wheels.json."""

    sources: dict[str, str]
    variants: list[KnownVariant]
    wheels: KnownHashes

    def variant(self, torch: str, variant: str) -> KnownVariant | None:
        """Return the row of a torch and variant, or None."""
        return next((row for row in self.variants if (row.torch, row.variant) == (torch, variant)), None)


class KnownCell(NamedTuple):
    """What the lock of a cell needs beyond the Python index.

    `pins` are torch and the companions whose hash is known, `requires` this variant's own requirements, `without` the
    packages that the release's wheel on the Python index requires and this variant does not.
    """

    pins: list[Pin]
    requires: list[str]
    without: list[str]
    verified: bool


@functools.cache
def known_wheels() -> KnownWheels:
    """Return the shipped table."""
    return msgspec.json.decode(Path(__file__).with_name("known_wheels.json").read_bytes(), type=KnownWheels)


def known_cell(release: TorchRelease, cell: Cell, companions: Mapping[str, str], arch: HostArch) -> KnownCell | None:
    """Return what is known of a cell whose torch is on the PyTorch index; None where a lock of it needs that index.

    `companions` are the names and versions of the packages that belong to the release.
    """
    table = known_wheels()
    own, default = table.variant(cell.torch, cell.variant), table.variant(cell.torch, release.pypi.get(arch, ""))
    torch = _pin(table, cell, "torch", cell.torch, arch)
    if own is None or default is None or own is default or torch is None:
        return None
    others = [_pin(table, cell, name, version, arch) for name, version in companions.items()]
    mine = {package(line) for line in own.requires}
    without = [name for name in map(package, default.requires) if name not in mine]
    return KnownCell([torch, *(pin for pin in others if pin)], own.requires, without, own.verified)


def package(requirement: str) -> str:
    """Return the package that a requirement of the table names."""
    match = _NAME.match(requirement)
    return match[0] if match else requirement


def _pin(table: KnownWheels, cell: Cell, name: str, version: str, arch: HostArch) -> Pin | None:
    """Return the pin of the wheel of the cell's variant, or None where its hash is not known."""
    pin = Pin(name=name, version=f"{version}+{cell.variant}", sha256=[])
    directory = f"whl/{cell.variant}/"
    hashes = {
        digest
        for path, digest in table.wheels.sha256.items()
        if path.startswith(f"{directory}{name}-") and named(path.removeprefix(directory), pin, cell.python, arch)
    }
    return msgspec.structs.replace(pin, sha256=sorted(hashes)) if hashes else None


_LINK: Final = re.compile(r"<a\b[^>]*\bhref=[\"'](?P<href>[^\"'#]+)", re.IGNORECASE)


def local_wheels(locks: Iterable[Lock], indexes: Iterable[Index], python: str) -> dict[str, Path]:
    """Return sha256 -> path of each file of the locks for this Python that the local ones among `indexes` hold."""
    indexes = [index for index in indexes if index.local is not None]
    wheels: dict[str, Path] = {}
    for pin in (pin for lock in locks for pin in lock.pins):
        for path in (path for index in indexes for path in _files(index, pin.name)):
            if set(pin.sha256) & wheels.keys():
                break
            if _may_be(path, pin, python) and (digest := sha256(path)) in pin.sha256:
                wheels.setdefault(digest, path)
    return wheels


def refused_wheels(lock: Lock, indexes: Iterable[Index], python: str, wheels: Mapping[str, Path]) -> list[str]:
    """Return the names of local files that a lock asks for by name but not by hash, `wheels` being those it takes."""
    indexes = [index for index in indexes if index.local is not None]
    missing = [pin for pin in lock.pins if not set(pin.sha256) & wheels.keys()]
    files = ((pin, path) for pin in missing for index in indexes for path in _files(index, pin.name))
    return sorted({path.name for pin, path in files if _may_be(path, pin, python)})


def _files(index: Index, package: str) -> Iterator[Path]:
    directory = index.local
    if directory is None:
        return
    if index.kind == "find-links" and directory.is_dir():
        yield from sorted(directory.glob("*.whl"))
        return
    page = directory if index.kind == "find-links" else directory / package / "index.html"
    if page.is_file():
        hrefs = (unescape(m["href"]) for m in _LINK.finditer(page.read_text(errors="replace")))
        local = (
            Path(unquote(href.removeprefix("file://"))) for href in hrefs if "://" not in href.removeprefix("file://")
        )
        yield from (page.parent / path for path in local)


def named(name: str, pin: Pin, python: str, machine: str | None = None) -> bool:
    """Tell whether a wheel of this file name is one of a pin, for this Python and architecture (this machine's)."""
    machine = machine or os.uname().machine
    try:
        project, version, _, tags = parse_wheel_filename(name)
    except ValueError:
        return False
    same = canonicalize_name(project) == pin.name and version == Version(pin.version)
    return same and any(_fits(tag, python) and tag.platform.endswith(("any", machine)) for tag in tags)


def _may_be(path: Path, pin: Pin, python: str) -> bool:
    return named(path.name, pin, python) and path.is_file()


def _fits(tag: Tag, python: str) -> bool:
    """Tell whether a wheel's tag is for this CPython; a lock may hold files for several."""
    minor = int(python.partition(".")[2].rstrip("t"))
    if tag.interpreter.startswith("py3"):
        return True
    if tag.abi == "abi3":
        oldest = tag.interpreter.removeprefix("cp3") or "0"
        return tag.interpreter.startswith("cp3") and oldest.isdecimal() and int(oldest) <= minor
    return tag.abi == f"cp{python.replace('.', '')}"


def sha256(path: Path) -> str:
    """Return a file's sha256."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
