"""What several node checks ask of the matrix and of the view."""

import functools
import re
from collections.abc import Mapping
from typing import Any

from envcheck.checks import View
from envcheck.checks.gpu_readings import label
from envcheck.matrix.facts.lookup import find_gpu, is_vgpu
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.load import load

# Brands and series of boards for desktops, laptops and embedded systems, for models that the matrix does not list.
_CONSUMER = re.compile(
    r"GeForce|\b[GR]TX\b|TITAN|Quadro|\bNVS\b|\bMX\d{3}\b|\bT\d{3,4}\b|Laptop|Max-Q|Mobile|nvgpu|Orin|Xavier|Thor|Tegra"
)
# "Max-Q Workstation Edition" (RTX PRO 6000 Blackwell) is a board for a slot.
_LAPTOP = re.compile(r"Laptop|Max-Q(?! Workstation)|Mobile|\bMX\d{3}\b")
# Grace Hopper, Grace Blackwell and GB10 (DGX Spark); nvtop#426 shows one lane of generation 1 there.
_C2C = re.compile(r"\bG[HB]\d{2,3}\b")
_JETSON = re.compile(r"nvgpu|Orin|Xavier|Jetson|Tegra|\bThor\b")
_GUESTS = ("passthrough", "vgpu")


def matrix(view: View) -> Matrix:
    """Return the matrix the run was given, else the shipped one."""
    return view.matrix if isinstance(view.matrix, Matrix) else _shipped()


_shipped = functools.cache(load)


def wheel_cuda(view: View) -> str | None:
    """Return the CUDA that the environment's torch carries, else the one its image promises; None for neither."""
    if view.environment.get("torch"):
        cuda = view.environment.get("cuda")
        return str(cuda) if cuda else None
    promised = view.promises.get("cuda", "none")
    return None if promised == "none" else promised


def datacenter(view: View) -> bool | None:
    """Return whether every GPU here is a data-centre one; None when a model is unknown."""
    verdicts = [is_datacenter(view, str(gpu.signal("name").value)) for gpu in view.snapshot.gpus]
    if not verdicts or None in verdicts:
        return None
    return all(verdicts)


def is_datacenter(view: View, name: str) -> bool | None:
    """Return whether a model is made for data centres: by the matrix, else by its brand; None where neither says."""
    if is_vgpu(name):
        return True
    row = find_gpu(matrix(view), name)
    if row is not None:
        return row.datacenter
    return False if _CONSUMER.search(name) else None


def unless_consumer(view: View, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was found of GPUs that may be made for data centres: of all but those that are known not to be."""
    names = {label(gpu): str(gpu.signal("name").value) for gpu in view.snapshot.gpus}
    return {gpu: value for gpu, value in found.items() if is_datacenter(view, names.get(gpu, "")) is not False}


def laptop(name: str) -> bool:
    """Return whether a model is made for laptops: soldered on, and its power limit moves with the CPU's load."""
    return bool(_LAPTOP.search(name))


def coherent(name: str) -> bool:
    """Return whether a GPU hangs on its CPU by NVLink-C2C, so that its PCIe link carries next to nothing."""
    return bool(_C2C.search(name))


def wsl(view: View) -> bool:
    """Return whether this is WSL2: its kernel says so, and the driver is the one of Windows."""
    kernel, library = view.snapshot.signal("host.kernel").value, view.snapshot.signal("driver.library").source
    return "microsoft" in str(kernel).lower() or "/usr/lib/wsl/" in library


def jetson(view: View) -> bool:
    """Return whether this is a Jetson: the GPU is part of the chip, and the driver part of JetPack."""
    names = [str(gpu.signal("name").value) for gpu in view.snapshot.gpus]
    tegra = "tegra" in str(view.snapshot.signal("host.kernel").value).lower()
    return tegra or (bool(names) and all(_JETSON.search(name) for name in names))


def guest(view: View) -> bool:
    """Return whether this system is a virtual machine: NVML says so of a GPU, or the CPU does."""
    virtual = [gpu.signal("virtualization").value for gpu in view.snapshot.gpus]
    return any(kind in _GUESTS for kind in virtual) or bool(view.snapshot.signal("host.hypervisor").value) or wsl(view)
