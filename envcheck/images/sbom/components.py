"""What the locks bring into an image, one component a pin."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from packaging.version import Version

from envcheck.images.locks.model import Lock
from envcheck.images.sbom.licences import Licence, PackageKey
from envcheck.images.spec import ImageSpec
from envcheck.matrix.facts.model import PYTORCH

# What a package index says of these names is NVIDIA's; their licences differ (NCCL's is BSD-3-Clause).
_NVIDIA_PREFIX: Final = "nvidia-"
# Any name of ours: the document's identity is then the same wherever it is written.
_NAMESPACE: Final = uuid.UUID("6c1f2f0e-5f43-5f1b-9f0c-2b8f4f0f7b10")
INCOMPLETE: Final = "From the locks: Python packages with their hashes. The distribution's packages are not locked."


class Component(NamedTuple):
    """One locked package. `environment` is /opt/venv, or /opt/envcheck for what envcheck itself needs in an image."""

    ref: str
    name: str
    version: str
    sha256: tuple[str, ...]
    purl: str
    licence: Licence | None
    supplier: str | None
    environment: str


def components(spec: ImageSpec, tool: Lock | None, licences: Mapping[PackageKey, Licence]) -> list[Component]:
    """Return what a target's locks and envcheck's own environment hold, in the order of the layers."""
    return [
        *_of("/opt/venv", spec.locks, licences),
        *_of("/opt/envcheck", [tool] if tool else [], licences),
    ]


def _of(environment: str, locks: Iterable[Lock], licences: Mapping[PackageKey, Licence]) -> list[Component]:
    return [
        Component(
            ref=f"{environment.rpartition('/')[2]}-{pin.name}-{pin.version}",
            name=pin.name,
            version=pin.version,
            sha256=tuple(sorted(pin.sha256)),
            purl=purl(pin.name, pin.version, lock.index),
            licence=licences.get(PackageKey(pin.name, str(Version(pin.version)))),
            supplier="NVIDIA Corporation" if pin.name.startswith(_NVIDIA_PREFIX) else None,
            environment=environment,
        )
        for lock in locks
        for pin in lock.pins
    ]


def purl(name: str, version: str, index: str) -> str:
    """Return the package's URL; one of the PyTorch index says so, since its files differ from those of the name."""
    identity = f"pkg:pypi/{name}@{quote(version, safe='')}"
    if index == "pypi":
        return identity
    return f"{identity}?repository_url={PYTORCH}/whl/{index.removeprefix('pytorch/')}"


def identity(spec: ImageSpec, listed: Iterable[Component]) -> uuid.UUID:
    """Return what identifies a document of these components: the same for the same content."""
    content = "\n".join(f"{one.ref} {' '.join(one.sha256)} {one.licence}" for one in listed)
    return uuid.uuid5(_NAMESPACE, f"{spec.tag}\n{content}")
