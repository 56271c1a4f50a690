"""A conda environment.yml: conda's Python, the lock's wheels with their hashes, and what conda must know of CUDA."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from envcheck.images.formats.registry import CellFormat, FormatOptions
from envcheck.images.spec import ImageSpec
from envcheck.images.start import title
from envcheck.matrix.facts.model import PYTORCH
from envcheck.templating import rendered

_SASS: Final = re.compile(r"sm_([0-9]+)([0-9])[a-z]?")


def conda(specs: Sequence[ImageSpec], _options: FormatOptions) -> str:
    """Return the environment of one target of a cell."""
    (spec,) = specs
    context = {
        "cell": str(spec.cell),
        "name": str(spec.cell) if spec.target == "runtime" else f"{spec.cell}-{spec.target}",
        "target": spec.target,
        "title": title(spec),
        "python": spec.cell.python,
        "cuda": spec.cuda,
        "cuda_major": spec.cuda.partition(".")[0] if spec.cuda else None,
        "capability": lowest_capability(spec.promises["arch-list"]),
        "driver": spec.promises["driver-floor"],
        "indexes": sorted({lock.index for lock in spec.locks} - {"pypi"}),
        "index_root": f"{PYTORCH}/whl",
        # pip is conda's own package there: what installs the rest does not replace itself on the way.
        "pins": [pin for lock in spec.locks for pin in lock.pins if pin.name != "pip"],
    }
    return rendered("formats/conda.yml.j2", context)


def lowest_capability(arch_list: str) -> str | None:
    """Return the lowest compute capability that a wheel has code for, "7.5"; None for none and for unknown."""
    capabilities = [(int(match[1]), int(match[2])) for name in arch_list.split() if (match := _SASS.fullmatch(name))]
    return "{}.{}".format(*min(capabilities)) if capabilities else None


FORMAT: Final = CellFormat(conda, one=True)
