"""Index the matrix by the keys that the resolver looks up; the order of its rows does not matter."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final, NamedTuple

from envcheck.errors import ConfigError
from envcheck.matrix.facts.gpu_names import capability_of_series, find_gpu, suggest
from envcheck.matrix.facts.model import (
    Base,
    Capability,
    CodeTarget,
    CudaFamily,
    CudaMinor,
    DriverBranch,
    GpuModel,
    Matrix,
)
from envcheck.matrix.facts.versions import branch, key

READ_CC: Final = "`nvidia-smi --query-gpu=compute_cap --format=csv,noheader`"
_UNNAMED: Final = re.compile(r"NVIDIA Corporation Device [0-9a-f]{4}", re.IGNORECASE)
# NVIDIA's wheels of CUDA 13 and later hold nvcc with all that it starts; those of 11 and 12 lack cicc and cudafe++.
_WHEELS_WITH_NVCC: Final = 13
_SM: Final = re.compile(r"(?:sm_|compute_)?(?:(?P<dotted>\d+\.\d)|(?P<digits>\d{2,3}))(?P<exact>[a-z]?)")


class Device(NamedTuple):
    """A GPU to resolve for. `architecture` and `datacenter` are None when only its compute capability is known."""

    label: str
    cc: str
    architecture: str | None
    datacenter: bool | None
    gpu: GpuModel | None
    verified: bool


class Facts:
    """The lookups that verdicts use."""

    def __init__(self, matrix: Matrix) -> None:
        cuda = matrix.cuda
        self.matrix = matrix
        self.minors: dict[str, CudaMinor] = {row.cuda: row for row in cuda.minors}
        self.families: dict[str, CudaFamily] = {row.major: row for row in cuda.families}
        self.code: dict[str, CodeTarget] = {row.sm: row for row in cuda.code}
        self.capabilities: list[Capability] = sorted(cuda.capabilities, key=lambda row: key(row.cc))
        self.drivers: list[DriverBranch] = sorted(matrix.drivers, key=lambda row: key(row.branch))

    def capability(self, cc: str) -> Capability | None:
        """Return the row of `cc`, or of the nearest one below it in the same major, or None."""
        below = [row for row in self.capabilities if key(row.cc) <= key(cc) and key(row.cc)[0] == key(cc)[0]]
        return below[-1] if below else None

    @cached_property
    def _built(self) -> dict[str, str]:
        """For each capability, the oldest CUDA of a well-sourced wheel that has code for it."""
        oldest: dict[str, str] = {}
        for variant in (variant for release in self.matrix.torch for variant in release.variants if variant.cuda):
            for build in (build for build in variant.builds if build.sass_verified):
                for sm in build.sass or []:
                    oldest[sm] = min(variant.cuda or "", oldest.get(sm, variant.cuda or ""), key=key)
        return oldest

    @cached_property
    def _oldest_code(self) -> dict[str, str]:
        """For each CUDA major, the oldest capability that a wheel of it has code for."""
        oldest: dict[str, str] = {}
        for variant in (variant for release in self.matrix.torch for variant in release.variants if variant.cuda):
            major = (variant.cuda or "").partition(".")[0]
            for sm in (sm for build in variant.builds for sm in build.sass or []):
                oldest[major] = min(sm, oldest.get(major, sm), key=key)
        return oldest

    def nvcc_compiles(self, cc: str, cuda: str) -> bool:
        """Return whether nvcc of `cuda` compiles for `cc`: it is new enough, and its major's wheels go back as far."""
        row = self.capability(cc)
        if row is None or key(row.min_cuda) > key(cuda):
            return False
        return key(cc) >= key(self._oldest_code.get(cuda.partition(".")[0], cc))

    def can_build(self, row: Capability, cuda: str) -> bool:
        """Return whether a well-sourced row or wheel shows that `cuda` can build for the capability."""
        return row.verified or (row.cc in self._built and key(cuda) >= key(self._built[row.cc]))

    def dropped_by(self, architecture: str | None) -> DriverBranch | None:
        """Return the first branch that no longer drives `architecture`, or None."""
        return next((row for row in self.drivers if architecture in row.drops), None)

    def newest_branch(self, devices: list[Device]) -> str | None:
        """Return the newest driver branch that still drives every GPU, or None when no branch dropped any of them."""
        dropping = [row.branch for device in devices if (row := self.dropped_by(device.architecture)) is not None]
        older = [row.branch for row in self.drivers if dropping and key(row.branch) < min(map(key, dropping))]
        return older[-1] if older else None

    def branch(self, driver: str) -> DriverBranch | None:
        """Return the branch of `driver`, or None when it is not in the matrix."""
        return next((row for row in self.drivers if row.branch == branch(driver)), None)

    def minor(self, cuda: str) -> CudaMinor:
        """Return the row of a CUDA minor. Raises ConfigError when there is none."""
        if cuda not in self.minors:
            minors = ", ".join(sorted(self.minors, key=key))
            message = f"CUDA {cuda} is not in the matrix"
            raise ConfigError(message, fix=f"use one of {minors}")
        return self.minors[cuda]

    def family(self, cuda: str) -> CudaFamily:
        """Return the family row of a CUDA minor. Raises ConfigError when there is none."""
        major = cuda.split(".", maxsplit=1)[0]
        if major not in self.families:
            message = f"CUDA {major}.x has no driver floor in the matrix"
            raise ConfigError(message, fix="add it to cuda.families")
        return self.families[major]

    def device(self, name: str) -> Device:
        """Return the GPU called `name`. Raises ConfigError, with near misses, when there is none."""
        gpu = find_gpu(self.matrix, name)
        if gpu is None:
            near = suggest(self.matrix, name)
            hint = f"did you mean {' or '.join(near)}?" if near else "`envcheck matrix show --list-gpus` lists them"
            if _UNNAMED.search(name):
                hint = "lspci's PCI database does not list this GPU: run `update-pciids`, or use nvidia-smi's name"
            series = capability_of_series(self.matrix, name)
            cc = f"--cc {series[0]}, as {series[1]} has" if series else "--cc"
            message = f"no GPU named {name!r} in the matrix"
            raise ConfigError(message, fix=f"{hint} (or give {cc}; {READ_CC} prints it)")
        return Device(gpu.name, gpu.cc, gpu.architecture, gpu.datacenter, gpu, gpu.verified)

    def device_of(self, cc: str) -> Device:
        """Return a GPU of which only the compute capability is known."""
        row = self.capability(cc)
        listed = row is not None and row.cc == cc
        return Device(f"compute capability {cc}", cc, row.architecture if row else None, None, None, listed)


def nvcc_in_wheels(cuda: str) -> bool:
    """Return whether NVIDIA's wheels of a CUDA ("12.8"), of which the target devel is made, hold an nvcc."""
    return key(cuda)[0] >= _WHEELS_WITH_NVCC


def sass_runs(facts: Facts, sm: str, cc: str, cuda: str) -> bool:
    """Return whether SASS `sm` ("sm_90", "9.0", "sm_90a") of a build with `cuda` runs on a device of `cc`."""
    name = _SM.fullmatch(sm)
    if name is None:
        return False
    target = _dotted(name)
    if name["exact"]:
        return target == cc
    row = facts.code.get(target)
    if row is None:
        return target == cc
    if row.only:
        return cc in row.only
    lifted = row.excluded_below_cuda is not None and key(cuda) >= key(row.excluded_below_cuda)
    if cc in row.excluded and not lifted:
        return False
    return (row.at_least is None or key(cc) >= key(row.at_least)) and (row.below is None or key(cc) < key(row.below))


def ptx_runs(ptx: str, cc: str) -> bool:
    """Return whether a new enough driver can compile PTX `ptx` ("12.0", "compute_120") for a device of `cc`."""
    name = _SM.fullmatch(ptx)
    return name is not None and not name["exact"] and key(cc) >= key(_dotted(name))


def _dotted(name: re.Match[str]) -> str:
    return name["dotted"] or f"{name['digits'][:-1]}.{name['digits'][-1]}"


# Their packages libc6: 2.35-0ubuntu3, 2.36-9, 2.39-0ubuntu8 and 2.41-12.
_GLIBC: Final = {"jammy": "2.35", "bookworm": "2.36", "noble": "2.39", "trixie": "2.41"}


def glibc_of(base: Base) -> str | None:
    """Return the glibc of a base; None where it is not known."""
    return _GLIBC.get(base.suite)


def glibc(matrix: Matrix, python: str) -> str | None:
    """Return the glibc of the base with this Python; without such a base that of the oldest one. None: not known."""
    base = matrix.base(python)
    if base is not None:
        return glibc_of(base)
    return min((_GLIBC[each.suite] for each in matrix.bases if each.suite in _GLIBC), key=key, default=None)
