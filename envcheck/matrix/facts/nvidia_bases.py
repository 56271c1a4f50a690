"""Say which drivers an nvidia/cuda base image refuses through NVIDIA_REQUIRE_CUDA, even if torch could run."""

from __future__ import annotations

from envcheck.errors import ConfigError
from envcheck.matrix.facts.lookup import Device, Facts
from envcheck.matrix.facts.model import BaseImage
from envcheck.matrix.facts.versions import branch, key


def what_base_refuses(facts: Facts, cuda: str, driver: str | None, devices: list[Device]) -> str:
    """Return a sentence: whether nvidia/cuda of that CUDA minor starts under `driver`; None: under which drivers.

    Raises ConfigError for a CUDA minor whose images are not in the matrix.
    """
    image = _image(facts, cuda)
    name = f"nvidia/cuda:{image.image}"
    if driver is None:
        return f"{name} starts under drivers of CUDA >= {image.cuda}, and {_exceptions(image)}"
    row = facts.branch(driver)
    if row is not None and key(row.cuda) >= key(image.cuda):
        return f"{name} starts: driver {driver} is of CUDA {row.cuda} >= {image.cuda}"
    of = f"driver {driver} is of CUDA {row.cuda} < {image.cuda}" if row else f"the CUDA of driver {driver} is not known"
    kinds = {device.datacenter for device in devices} or {None}
    lists = [_branches(image, datacenter=kind) for kind in kinds]
    if all(branch(driver) in branches for branches in lists):
        return f"{name} starts: {of}, but it accepts R{branch(driver)} with such GPUs"
    doubt = "" if image.complete else " (the end of its list is not known)"
    return (
        f"{name} refuses to start: {of}, and it accepts {_exceptions(image)}{doubt}; NVIDIA_DISABLE_REQUIRE=1 overrides"
    )


def _image(facts: Facts, cuda: str) -> BaseImage:
    images = sorted(facts.matrix.cuda.base_images, key=lambda row: key(row.image))
    of_minor = [row for row in images if row.cuda == cuda]
    if not of_minor:
        minors = ", ".join(dict.fromkeys(row.cuda for row in images))
        message = f"what nvidia/cuda of CUDA {cuda} demands is not in the matrix"
        raise ConfigError(message, fix=f"use one of {minors}")
    return of_minor[-1]


def _branches(image: BaseImage, *, datacenter: bool | None) -> list[str]:
    if datacenter:
        return image.datacenter_branches
    return image.geforce_branches


def _exceptions(image: BaseImage) -> str:
    def listed(branches: list[str]) -> str:
        return ", ".join(f"R{name}" for name in sorted(branches, key=key)) or "no older branch"

    return f"{listed(image.datacenter_branches)} with data-centre GPUs, {listed(image.geforce_branches)} with others"
