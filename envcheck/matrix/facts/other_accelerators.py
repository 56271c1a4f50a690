"""Recognize accelerators that no CUDA wheel of the matrix runs on: AMD, Intel and Apple GPUs, and NVIDIA Jetson."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from envcheck.matrix.facts.model import HostArch


class OtherAccelerator(NamedTuple):
    """The kind of accelerator, where PyTorch for it comes from, and the architecture of its usual host."""

    kind: str
    advice: str
    arch: HostArch = "x86_64"


_NVIDIA: Final = re.compile(r"\b(NVIDIA|TESLA|QUADRO|GEFORCE)\b", re.IGNORECASE)
_JETSON: Final = re.compile(r"\b(JETSON|TEGRA|XAVIER|ORIN|THOR|NVGPU|DRIVE AGX)\b", re.IGNORECASE)
_FAMILIES: Final = (
    (
        re.compile(
            r"\b(AMD|ATI|RADEON|INSTINCT|ADVANCED MICRO|MI\d{2,3}[AX]?|RX ?\d{3,4}( ?XTX?)?|GFX\d{2,4}[A-F]?)\b",
            re.IGNORECASE,
        ),
        OtherAccelerator("an AMD GPU", "PyTorch for it is the ROCm build (https://pytorch.org/get-started/locally/)"),
    ),
    (
        re.compile(
            r"\b(INTEL|ARC( PRO)? [AB]\d{2,3}M?|IRIS|UHD GRAPHICS|GAUDI ?\d?|(GPU )?(MAX|FLEX) 1\d{2,3})\b",
            re.IGNORECASE,
        ),
        OtherAccelerator("an Intel GPU", "PyTorch for it is the XPU build (https://pytorch.org/get-started/locally/)"),
    ),
    (
        re.compile(r"\bAPPLE\b|^\s*M[1-9]( (PRO|MAX|ULTRA))?\s*$", re.IGNORECASE),
        OtherAccelerator("an Apple GPU", "PyTorch for it is the macOS wheel with the mps device", "aarch64"),
    ),
)


def other_accelerator(name: str) -> OtherAccelerator | None:
    """Return what `name` is if it is not a discrete NVIDIA GPU, or None.

    Call this only with a name that is not in the matrix.
    """
    if _JETSON.search(name):
        return OtherAccelerator(
            "an NVIDIA Jetson module",
            "its driver and PyTorch wheels come with JetPack, from NVIDIA's Jetson index",
            "aarch64",
        )
    if _NVIDIA.search(name):
        return None
    return next((family for pattern, family in _FAMILIES if pattern.search(name)), None)
