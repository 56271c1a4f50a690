"""Find a GPU by the names people and NVML give it."""

from __future__ import annotations

import re
from typing import Final

from envcheck.matrix.model import Gpu, Matrix

# What NVML says around a model's name: maker and brand before it, memory, form factor and MIG slice behind it.
_MAKER: Final = frozenset({"NVIDIA", "TESLA", "GEFORCE", "GRAPHICS", "DEVICE"})
_FORM: Final = re.compile(r"\d+(\.\d+)?GB?|G?HBM\d\w*|GDDR\d\w*|SXM\d*|PCI-?E|NVL\d*|OAM|AC|LC|HGX|DGX|MIG")

# A GeForce series is the first two of four digits. NVIDIA's RTX 4000 and 6000 of any generation end in 00.
_SERIES: Final = re.compile(r"(?P<kind>[RG]TX)(?P<series>\d\d)[1-9]\d")


def find_gpu(matrix: Matrix, name: str) -> Gpu | None:
    """Return the GPU that `name` means ("H100", "NVIDIA H100 80GB HBM3", "4090"), or None; never a guess."""
    wanted = _key(name)
    for gpu in matrix.gpus:
        if wanted in {_key(known) for known in (gpu.name, *gpu.aliases)}:
            return gpu
    return next((gpu for gpu in matrix.gpus if wanted == _key(gpu.name).removeprefix("RTX").removeprefix("GTX")), None)


def suggest(matrix: Matrix, name: str) -> list[str]:
    """Return up to three names that `name` may have been meant to be, nearest first."""
    import difflib  # noqa: PLC0415 (only for a name that is wrong)

    names = {_key(known): gpu.name for gpu in matrix.gpus for known in (gpu.name, *gpu.aliases)}
    wanted = _key(name)
    near = difflib.get_close_matches(wanted, names, n=6, cutoff=0.65)
    near += [known for known in sorted(names) if wanted and wanted in known and known not in near]
    return list(dict.fromkeys(names[known] for known in near))[:3]


def capability_of_series(matrix: Matrix, name: str) -> tuple[str, str] | None:
    """Return the compute capability that a GPU of this name's series or generation has, and a GPU that says so.

    None where the matrix has no such GPU, or several that differ.
    """
    wanted, words = _SERIES.match(_key(name)), name.upper().split()
    siblings = [
        gpu
        for gpu in matrix.gpus
        if (wanted and (own := _SERIES.match(_key(gpu.name))) and own.groups() == wanted.groups())
        or gpu.architecture.upper() in words
    ]
    capabilities = {gpu.cc for gpu in siblings}
    return (siblings[0].cc, siblings[0].name) if len(capabilities) == 1 else None


def _key(name: str) -> str:
    words = [word for word in re.split(r"[\s_/-]+", name.upper()) if word]
    if "MIG" in words[1:]:
        words = words[: words.index("MIG")]
    first, *rest = [word for word in words if word not in _MAKER] or [""]
    return "".join([first, *(word for word in rest if not _FORM.fullmatch(word))])
