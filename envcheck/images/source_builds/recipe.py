"""What a build from source is made of, as data: its key, its GPUs, its jobs, and what the compilers are given."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final

import msgspec

from envcheck.errors import ConfigError
from envcheck.images.locks.model import Pin
from envcheck.images.spec import ImageSpec
from envcheck.matrix.facts.lookup import Facts, nvcc_in_wheels
from envcheck.matrix.facts.versions import key as version_key

_GIB: Final = 1 << 30
# GiB of memory for each compiler. nvcc: flash-attn's setup.py counts 9 GB a job, and its README takes 4 jobs for 96 GB
# of RAM as too many; 8 is what its issues #968 and #945 report for one job. g++ with torch's headers: 2.1 GB measured
# for segment_coo_cpu.cpp of torch-scatter 2.1.2, rounded up.
_GIB_OF_NVCC: Final = 8
_GIB_OF_GXX: Final = 3
_FORMAT: Final = 1


class Sdist(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a release. `requires` is what its build needs besides the target devel, with hashes."""

    name: str
    version: str
    sha256: str
    requires: list[Pin]


class ExtensionBuild(msgspec.Struct, frozen=True, kw_only=True):
    """One build: the sdist, the `devel` of a cell, and compute capabilities ("9.0"), none for a cell of the CPU."""

    sdist: Sdist
    devel: ImageSpec
    gpus: tuple[str, ...]

    @property
    def what(self) -> str:
        """Return what is built, for people."""
        gpus = f" and GPUs of {', '.join(self.gpus)}" if self.gpus else ""
        return f"{self.sdist.name} {self.sdist.version} for {self.devel.cell}{gpus}"

    @property
    def local_version(self) -> str:
        """Return the label of the wheel's version: cu130torch2.14. No index has a file of that version."""
        return f"{self.devel.cell.variant}torch{'.'.join(self.devel.cell.torch.split('.')[:2])}"

    @property
    def key(self) -> str:
        """Return what identifies the wheel: the sdist, what builds it, the cell with its torch, and the GPUs."""
        parts = {
            "format": _FORMAT,
            "sdist": self.sdist.sha256,
            "requires": sorted(digest for pin in self.sdist.requires for digest in pin.sha256),
            "cell": str(self.devel.cell),
            "arch": self.devel.arch,
            "base": self.devel.base.image,
            "lock": self.devel.promises["lock"],
            "gpus": self.gpus,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def environment(self, jobs: int, epoch: int) -> dict[str, str]:
        """Return the variables that torch.utils.cpp_extension, CMake and setup.py scripts read. Dates are `epoch`."""
        variables = {"MAX_JOBS": str(jobs), "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs), "SOURCE_DATE_EPOCH": str(epoch)}
        if self.gpus:
            # FORCE_CUDA: many a setup.py leaves the GPU code out where it sees no GPU.
            variables |= {"TORCH_CUDA_ARCH_LIST": ";".join(self.gpus), "FORCE_CUDA": "1"}
        return variables


def capabilities(facts: Facts, names: Sequence[str], cuda: str | None, what: str) -> tuple[str, ...]:
    """Return the compute capabilities to compile for, oldest first; none for a cell without CUDA.

    Raise ConfigError if no GPU is named, if the cell's `devel` has no nvcc, or if its nvcc cannot compile for a GPU.
    """
    if cuda is None:
        return ()
    if not nvcc_in_wheels(cuda):
        message = f"{what} must be compiled, and NVIDIA's wheels of CUDA {cuda.partition('.')[0]} hold no nvcc"
        raise ConfigError(message, fix="take a cell of CUDA 13, or build its wheel elsewhere and add it to your index")
    if not names:
        message = f"{what} must be compiled, and no GPU is named to compile it for"
        raise ConfigError(message, fix="add --gpu, e.g. --gpu H100; repeat it for several")
    devices = [facts.device(name) for name in names]
    for device in devices:
        if not facts.nvcc_compiles(device.cc, cuda):
            row = facts.capability(device.cc)
            needs = f"which needs CUDA {row.min_cuda}" if row and version_key(row.min_cuda) > version_key(cuda) else ""
            why = needs or f"which CUDA {cuda} no longer compiles for"
            message = f"nvcc of CUDA {cuda} cannot compile {what} for {device.label} ({device.cc}), {why}"
            raise ConfigError(message, fix="take a cell of another CUDA: `envcheck resolve --gpu` names those that fit")
    return tuple(sorted({device.cc for device in devices}, key=version_key))


def jobs(available: float, cores: int, *, cuda: bool, most: int | None = None) -> int:
    """Return how many compilers run at once: min(cores, memory / memory of one compiler), at least 1.

    `available` is in bytes: what the machine or the container may still use. One nvcc takes 8 GiB, one g++ 3 GiB.
    `most` is the user's own limit.
    """
    by_memory = int(available / _GIB) // (_GIB_OF_NVCC if cuda else _GIB_OF_GXX)
    return max(1, min(cores, by_memory, most or cores))
