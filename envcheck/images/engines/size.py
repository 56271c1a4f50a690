"""Ask an engine for the layers of an image, and an image for its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from envcheck.errors import BuildError, ConfigError
from envcheck.images.engines import connect, local_name, subprocesses
from envcheck.images.size import inside
from envcheck.images.size.ledger import Layer, MeasuredSizes, SizeLedger, ledger

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
    script = Path(inside.__file__).read_text(encoding="utf-8")
    argv = [engine, "run", "--rm", "--network=none", "--user=0", "--entrypoint=python3", name, "-I", "-B", "-c", script]
    printed = subprocesses.output(argv, timeout=_TIMEOUT)
    line = next((line for line in printed.splitlines() if line.startswith(inside.MARK)), None)
    if line is None:
        message = f"{name} did not print the sizes of its files"
        raise BuildError(message, fix="run it by hand to see more")
    return msgspec.json.decode(line.removeprefix(inside.MARK), type=MeasuredSizes)
