"""Find a GPU by the names people and NVML give it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from envcheck.matrix.facts.model import GpuModel, HostArch, Matrix

# NVML writes the maker and brand before a model's name, and memory, form factor, MIG slice or vGPU profile ("L40S-48Q")
# after it.
_MAKER: Final = frozenset({"NVIDIA", "TESLA", "GEFORCE", "GRAPHICS", "DEVICE", "GRID"})
_FORM: Final = re.compile(
    r"\d+(\.\d+)?GB?|G?HBM\d\w*|GDDR\d\w*|SXM\d*|PCI-?E|NVL\d*|OAM|AC|LC|HGX|DGX|MIG|\d{1,3}[ABCQ]"
)

# lspci puts the product into the last square brackets, after the chip: "NVIDIA Corporation GA102GL [A10] (rev a1)";
# with -nn the vendor and device ids follow in brackets of their own.
_BRACKETS: Final = re.compile(r"\[([^\]]+)\]")
_PCI_ID: Final = re.compile(r"[0-9a-fA-F]{4}(:[0-9a-fA-F]{4})?")
_REVISION: Final = re.compile(r"\s+Rev\. \w+$")
# `nvidia-smi -L` puts the index before the name and the UUID behind it.
_LISTED: Final = re.compile(r"GPU \d+: (?P<name>.+?)(?: \(UUID: [^)]*\))?")
# A row of the table of `nvidia-smi`: index, name, persistence mode.
_ROW: Final = re.compile(r"\| *\d+ +(?P<name>\S.*?) +(?:On|Off|N/A) *\|.*")

# A GeForce series is the first two of four digits. NVIDIA's RTX 4000 and 6000 of any generation end in 00.
_SERIES: Final = re.compile(r"(?P<kind>[RG]TX)(?P<series>\d\d)[1-9]\d")


def find_gpu(matrix: Matrix, name: str) -> GpuModel | None:
    """Return the GPU that `name` means, or None; never a guess.

    `name` is as people write it ("H100", "4090"), or as NVML, `nvidia-smi` or lspci print it.
    """
    model = _key(product_name(name))
    for gpu in matrix.gpus:
        if model in {_key(alias) for alias in (gpu.name, *gpu.aliases)}:
            return gpu
    return next((gpu for gpu in matrix.gpus if model == _key(gpu.name).removeprefix("RTX").removeprefix("GTX")), None)


def product_name(name: str) -> str:
    """Return the product in a line of lspci, `nvidia-smi -L` or `nvidia-smi`; return any other name unchanged."""
    listed = _LISTED.fullmatch(name.strip()) or _ROW.fullmatch(name.strip())
    if listed is not None:
        return listed["name"]
    brackets = [text for text in _BRACKETS.findall(name) if not _PCI_ID.fullmatch(text)]
    return _REVISION.sub("", brackets[-1]) if brackets and "NVIDIA" in name.upper() else name


def suggest(matrix: Matrix, name: str) -> list[str]:
    """Return up to three names that `name` may have been meant to be, nearest first."""
    import difflib  # noqa: PLC0415 (only for a name that is wrong)

    names = {_key(alias): gpu.name for gpu in matrix.gpus for alias in (gpu.name, *gpu.aliases)}
    model = _key(product_name(name))
    near = difflib.get_close_matches(model, names, n=6, cutoff=0.65)
    near += [alias for alias in sorted(names) if model and model in alias and alias not in near]
    return list(dict.fromkeys(names[alias] for alias in near))[:3]


def capability_of_series(matrix: Matrix, name: str) -> tuple[str, str] | None:
    """Return the compute capability of the series or generation in `name`, and a GPU of the matrix that has it.

    Return None where the matrix has no such GPU, or several that differ.
    """
    series, words = _SERIES.match(_key(name)), name.upper().split()
    siblings = [
        gpu
        for gpu in matrix.gpus
        if (series and (other := _SERIES.match(_key(gpu.name))) and other.groups() == series.groups())
        or gpu.architecture.upper() in words
    ]
    capabilities = {gpu.cc for gpu in siblings}
    return (siblings[0].cc, siblings[0].name) if len(capabilities) == 1 else None


@lru_cache(maxsize=4096)
def _key(name: str) -> str:
    words = [word for word in re.split(r"[\s_/-]+", name.upper()) if word]
    if "MIG" in words[1:]:
        words = words[: words.index("MIG")]
    first, *tail = [word for word in words if word not in _MAKER] or [""]
    return "".join([first, *(word for word in tail if not _FORM.fullmatch(word))])


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
