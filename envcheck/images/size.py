"""What a local image holds: the bytes of its layers and Python packages, and its distribution's packages."""

from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

import msgspec

from envcheck.data import data_path
from envcheck.errors import BuildError, ConfigError, refuse
from envcheck.images.engines import ContainerEngine, Engine, Layer, connect, local_name
from envcheck.images.spec import LABEL_PREFIX, ImageSpec

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
        refuse(f"{engine} has no image {image}", f"build it (`envcheck build`), or `{engine} pull {image}`")
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
        refuse(f"{name} did not print the sizes of its files", "run it by hand to see more", BuildError)
    return msgspec.json.decode(line.removeprefix(_MARK), type=dict[str, int])


# What advisories of a distribution name is the source of a package.
_LIST: Final = """. /etc/os-release && printf 'os\\t%s\\t%s\\n' "$ID" "$VERSION_ID" && exec dpkg-query -W -f \
'${db:Status-Status}\\t${Package}\\t${Version}\\t${Architecture}\\t${source:Package}\\t${source:Version}\\n'"""


def distribution(engine: ContainerEngine, image: str, spec: ImageSpec) -> list[dict[str, Any]]:
    """Return the distribution of a local image of `spec`, and its packages. The image is started once."""
    name, connected = local_name(engine, image), connect(engine)
    labels = info.labels if (info := connected.inspect(name)) else {}
    if (labels.get(f"{LABEL_PREFIX}cell"), labels.get(f"{LABEL_PREFIX}target")) != (str(spec.cell), spec.target):
        message = f"{image} is no image of {spec.cell} {spec.target} that {engine} has"
        raise ConfigError(message, fix=f"build it: `envcheck build {spec.cell} --target {spec.target}`")
    words = ("run", "--rm", "--network=none", "--entrypoint=sh", name, "-c", _LIST)
    lines = [line.split("\t") for line in connected.output(*words, timeout=_TIMEOUT).splitlines()]
    system, release = next(row[1:] for row in lines if row[0] == "os")
    rows = [row[1:] for row in lines if row[0] == "installed"]
    return [
        {"type": "operating-system", "bom-ref": "os", "name": system, "version": release},
        *(_deb(system, release, *row) for row in rows),
    ]


def _deb(system: str, release: str, name: str, version: str, arch: str, *source: str) -> dict[str, Any]:
    # As Syft writes it: Grype and Trivy look advisories up by the distribution and the source.
    of = {"arch": arch, "distro": f"{system}-{release}", "upstream": "@".join(source)}
    url = f"pkg:deb/{system}/{name}@{quote(version, safe=':')}?{urlencode(of)}"
    return {"type": "library", "bom-ref": f"os-{name}-{arch}", "name": name, "version": version, "purl": url}
