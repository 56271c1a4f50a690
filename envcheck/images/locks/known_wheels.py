"""What is known of wheels on the PyTorch index without asking it: their sha256, and what each variant's torch requires.

`known_wheels.json` holds it, each row with its source: `variants` are the requirements of a release's torch on NVIDIA's
packages and triton (what else it requires is the same in every variant), `wheels` the sha256 by path below the index.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from envcheck.images.locks.local_wheels import named
from envcheck.images.locks.model import Pin
from envcheck.matrix.facts.model import Cell, HostArch, TorchRelease

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
