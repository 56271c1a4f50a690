"""Where an image's bytes are: its layers, as the engine counts them, and its largest Python packages."""

from typing import Final, Literal

import msgspec

from envcheck.data import data_path
from envcheck.errors import BuildError, ConfigError
from envcheck.images.engines import Engine, Layer, connect, local_name

_TIMEOUT: Final = 300.0
_MARK: Final = "envcheck-size:"


class ImageSize(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of an image by layer, first one first, and by Python package, largest first. `total` is of the layers."""

    schema: Literal["envcheck/image-size/1"] = "envcheck/image-size/1"
    image: str
    total: int
    layers: list[Layer]
    packages: dict[str, int]


def measure(engine: Literal["docker", "podman"], image: str) -> ImageSize:
    """Return where an image's bytes are; one that has no Python is a BuildError, one that is not here a ConfigError."""
    name, connected = local_name(engine, image), connect(engine)
    if connected.inspect(name) is None:
        message = f"{engine} has no image {image}"
        raise ConfigError(message, fix=f"build it with `envcheck build`, or get it with `{engine} pull {image}`")
    layers = [layer for layer in reversed(connected.history(name)) if layer.bytes]
    packages = sorted(_packages(connected, name).items(), key=lambda item: (-item[1], item[0]))
    return ImageSize(image=name, total=sum(layer.bytes for layer in layers), layers=layers, packages=dict(packages))


def _packages(engine: Engine, name: str) -> dict[str, int]:
    """Start the image once, without a network, to count the files of its packages."""
    script = (data_path("templates") / "context/sizes.py").read_text(encoding="utf-8")
    words = ("run", "--rm", "--network=none", "--user=0", "--entrypoint=python3", name, "-I", "-B", "-c", script)
    printed = engine.run(*words, timeout=_TIMEOUT).output.splitlines()
    line = next((line for line in printed if line.startswith(_MARK)), None)
    if line is None:
        message = f"{name} did not print the sizes of its files"
        raise BuildError(message, fix="run it by hand to see more")
    return msgspec.json.decode(line.removeprefix(_MARK), type=dict[str, int])
