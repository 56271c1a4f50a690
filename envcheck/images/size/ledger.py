"""What an image's bytes are made of. Pure: layers and what was measured inside, to a ledger."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final, Literal

import msgspec

KINDS: Final = {
    "packages": "Python packages",
    "bytecode": "bytecode of Python packages",
    "system": "distribution packages",
    "envcheck": "envcheck itself",
    "other": "everything else",
}
_LIBRARY: Final = re.compile(r"^(?P<stem>lib[A-Za-z0-9_+-]+?)(-[0-9a-f]{8})?\.so(\.[0-9.]+)?$")


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer: bytes as the engine counts them, and the step that made it."""

    bytes: int
    step: str


class MeasuredSizes(msgspec.Struct, frozen=True, kw_only=True):
    """What `inside.py` prints. Sizes are in bytes; `kinds` has the keys of KINDS."""

    packages: dict[str, int]
    kinds: dict[str, int]
    unneeded: dict[str, int]
    libraries: list[tuple[str, int]]


class Duplicate(msgspec.Struct, frozen=True, kw_only=True):
    """A shared library that is there more than once; `bytes` is what all copies but the largest take."""

    library: str
    bytes: int
    paths: list[str]


class SizeLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of an image by layer, kind and package, largest first. `total` is the sum of the kinds.

    `overhead` is what envcheck adds, itself and the bytecode, over all the rest.
    """

    schema: Literal["envcheck/image-size/1"] = "envcheck/image-size/1"
    image: str
    total: int
    overhead: float
    layers: list[Layer]
    kinds: dict[str, int]
    packages: dict[str, int]
    duplicates: list[Duplicate]
    unneeded: dict[str, int]


def ledger(image: str, layers: Sequence[Layer], measured: MeasuredSizes) -> SizeLedger:
    """Return the ledger of an image."""
    total = sum(measured.kinds.values())
    added = measured.kinds.get("envcheck", 0) + measured.kinds.get("bytecode", 0)
    return SizeLedger(
        image=image,
        total=total,
        overhead=added / (total - added) if total > added else 0.0,
        layers=list(layers),
        kinds=_sorted(measured.kinds),
        packages=_sorted(measured.packages),
        duplicates=duplicates(measured.libraries),
        unneeded=_sorted(measured.unneeded),
    )


def duplicates(libraries: Sequence[tuple[str, int]]) -> list[Duplicate]:
    """Return the libraries that are there in several places, by name without version and hash, worst first."""
    copies: dict[str, list[tuple[str, int]]] = {}
    for path, size in libraries:
        match = _LIBRARY.match(PurePosixPath(path).name)
        if match:
            copies.setdefault(match["stem"], []).append((path, size))
    repeated = [
        Duplicate(
            library=stem,
            bytes=sum(size for _, size in same) - max(size for _, size in same),
            paths=sorted(path for path, _ in same),
        )
        for stem, same in copies.items()
        if len({str(PurePosixPath(path).parent) for path, _ in same}) > 1
    ]
    return sorted(repeated, key=lambda each: (-each.bytes, each.library))


def _sorted(sizes: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))
