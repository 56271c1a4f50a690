"""Where an image's bytes are: its layers, as the engine counts them, and its largest Python packages."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from envcheck.data import data_path
from envcheck.errors import BuildError, ConfigError
from envcheck.images.engines import connect, local_name, subprocesses

_TIMEOUT: Final = 300.0
_MARK: Final = "envcheck-size:"
_UNITS: Final = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "KB": 1e3, "B": 1}


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer: bytes as the engine counts them, and the step that made it."""

    bytes: int
    step: str


class ImageSize(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of an image by layer, first one first, and by Python package, largest first. `total` is of the layers."""

    schema: Literal["envcheck/image-size/1"] = "envcheck/image-size/1"
    image: str
    total: int
    layers: list[Layer]
    packages: dict[str, int]


def measure(engine: Literal["docker", "podman"], image: str) -> ImageSize:
    """Return where an image's bytes are; one that has no Python is a BuildError, one that is not here a ConfigError."""
    name = local_name(engine, image)
    if connect(engine).inspect(name) is None:
        message = f"{engine} has no image {image}"
        raise ConfigError(message, fix=f"build it with `envcheck build`, or get it with `{engine} pull {image}`")
    layers = read_history(
        subprocesses.output(
            [engine, "history", "--no-trunc", "--human=false", "--format", "{{json .}}", name], timeout=_TIMEOUT
        )
    )
    packages = sorted(_packages(engine, name).items(), key=lambda item: (-item[1], item[0]))
    return ImageSize(image=name, total=sum(row.bytes for row in layers), layers=layers, packages=dict(packages))


def read_history(text: str) -> list[Layer]:
    """Return the layers that have bytes, in the order in which they were made."""
    rows: list[dict[str, Any]] = [msgspec.json.decode(line) for line in text.splitlines() if line.startswith("{")]
    layers = [Layer(bytes=_bytes(row), step=str(row.get("CreatedBy") or row.get("createdBy") or "")) for row in rows]
    return [layer for layer in reversed(layers) if layer.bytes]


def _bytes(row: dict[str, Any]) -> int:
    """Return a row's size; an engine that prints units in spite of --human=false prints decimal ones."""
    size = str(row.get("Size") or row.get("size") or "0")
    unit = next((unit for unit in _UNITS if size.endswith(unit)), "")
    return round(float(size.removesuffix(unit)) * _UNITS.get(unit, 1))


def _packages(engine: str, name: str) -> dict[str, int]:
    """Start the image once, without a network, to count the files of its packages."""
    script = (data_path("templates") / "context/sizes.py").read_text(encoding="utf-8")
    argv = [engine, "run", "--rm", "--network=none", "--user=0", "--entrypoint=python3", name, "-I", "-B", "-c", script]
    printed = subprocesses.output(argv, timeout=_TIMEOUT).splitlines()
    line = next((line for line in printed if line.startswith(_MARK)), None)
    if line is None:
        message = f"{name} did not print the sizes of its files"
        raise BuildError(message, fix="run it by hand to see more")
    return msgspec.json.decode(line.removeprefix(_MARK), type=dict[str, int])
