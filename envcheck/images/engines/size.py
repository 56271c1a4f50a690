"""What an image's bytes are made of. Pure: layers and what was measured inside, to a ledger."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

import msgspec

from envcheck.errors import BuildError, ConfigError
from envcheck.images.engines import connect, local_name, size_inside, subprocesses

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


_TIMEOUT: Final = 300.0


def measure(engine: Literal["docker", "podman"], image: str) -> SizeLedger:
    """Return where an image's bytes are; one that has no Python is a BuildError, one that is not here a ConfigError."""
    name = local_name(engine, image)
    if connect(engine).inspect(name) is None:
        message = f"{engine} has no image {image}"
        raise ConfigError(message, fix=f"build it with `envcheck build`, or get it with `{engine} pull {image}`")
    history = subprocesses.output(
        [engine, "history", "--no-trunc", "--human=false", "--format", "{{json .}}", name], timeout=_TIMEOUT
    )
    return ledger(image, read_history(history), _measured(engine, name))


def read_history(text: str) -> list[Layer]:
    """Return the layers that have bytes, in the order in which they were made."""
    rows: list[dict[str, Any]] = [msgspec.json.decode(line) for line in text.splitlines() if line.startswith("{")]
    layers = [Layer(bytes=_bytes(row), step=str(row.get("CreatedBy") or row.get("createdBy") or "")) for row in rows]
    return [layer for layer in reversed(layers) if layer.bytes]


def _bytes(row: dict[str, Any]) -> int:
    """Return a row's size; an engine that prints units in spite of --human=false prints decimal ones."""
    size = str(row.get("Size") or row.get("size") or "0")
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("KB", 1e3), ("B", 1)):
        if size.endswith(unit):
            return round(float(size.removesuffix(unit)) * factor)
    return int(float(size))


def _measured(engine: str, name: str) -> MeasuredSizes:
    script = Path(size_inside.__file__).read_text(encoding="utf-8")
    argv = [engine, "run", "--rm", "--network=none", "--user=0", "--entrypoint=python3", name, "-I", "-B", "-c", script]
    printed = subprocesses.output(argv, timeout=_TIMEOUT)
    line = next((line for line in printed.splitlines() if line.startswith(size_inside.MARK)), None)
    if line is None:
        message = f"{name} did not print the sizes of its files"
        raise BuildError(message, fix="run it by hand to see more")
    return msgspec.json.decode(line.removeprefix(size_inside.MARK), type=MeasuredSizes)
