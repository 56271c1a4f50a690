"""What an image or environment is to be: cell, target, base, locks and promises, as data."""

from __future__ import annotations

from typing import Literal

import msgspec

from envcheck.matrix.model import Base, Cell, HostArch, Target

Group = Literal["nvidia", "torch", "base"]
LABEL_PREFIX = "envcheck."


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """One package of a lock: exact version (local label included) and the sha256 of each file that may be it."""

    name: str
    version: str
    sha256: list[str]


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """One lock file, `<group>.lock`. `index` is where all of it comes from: "pypi" or "pytorch/<variant>".

    Groups are layers, rarest change first: `nvidia` (nvidia-*, cuda-*, triton), `torch` (torch and companions), `base`
    (the rest).
    """

    group: Group
    index: str
    pins: list[Pin]


class ImageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One target of one cell. `locks` are in layer order and empty for a cell without a lock.

    `promises` hold what the image says of itself, as strings, "none" where a variant has no such thing: cell, target,
    torch ("2.13.0+cpu", as torch.__version__), cuda ("12.8"), cudnn ("9.10.2"), nccl ("2.27.5"), python ("3.11"),
    arch-list ("sm_80 sm_90"), lock (sha256 of the lock files). They are its labels, under LABEL_PREFIX.
    """

    cell: Cell
    target: Target
    base: Base
    arch: HostArch
    locks: list[Lock]
    promises: dict[str, str]

    @property
    def tag(self) -> str:
        """Return the full tag, e.g. 2.8.0-cu128-py312-runtime."""
        return f"{str(self.cell).removeprefix('torch')}-{self.target}"
