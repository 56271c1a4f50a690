"""The typed form of matrix.yaml. Versions are strings, with their sort keys; a row of facts names its sources."""

import re
from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec

Dotted = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)*\Z")]
PythonVersion = Annotated[str, msgspec.Meta(pattern=r"^3\.[0-9]+t?\Z")]
Variant = Annotated[str, msgspec.Meta(pattern=r"^(cpu|cu[0-9]{3})\Z")]
HostArch = Literal["x86_64", "aarch64"]
Target = Literal["runtime", "devel", "train", "jupyter"]

# The one index that is written down (https://pytorch.org/get-started/locally/); `TorchVariant.index` is a path below.
PYTORCH: Final = "https://download.pytorch.org"

_CELL: Final = r"^torch(?P<torch>[0-9]+\.[0-9]+\.[0-9]+)-(?P<variant>cpu|cu[0-9]{3})-py(?P<python>3[0-9]+t?)$"


class MatrixRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every row."""


class Fact(MatrixRow, frozen=True, kw_only=True):
    """Something true of the world. `source` holds keys of `Matrix.sources`; `verified` is false for one weak source."""

    source: Annotated[list[str], msgspec.Meta(min_length=1)]
    verified: bool = True
    note: str | None = None


class CudaFamily(Fact, frozen=True, kw_only=True):
    """A CUDA major and the lowest driver any of its minors runs on (minor-version compatibility)."""

    major: Dotted
    floor: Dotted


class CudaMinor(Fact, frozen=True, kw_only=True):
    """A CUDA minor: its GA driver, and the driver branches its cuda-compat package works on (data-centre GPUs)."""

    cuda: Dotted
    native_driver: Dotted
    forward_compat_branches: list[Dotted] = []


class Capability(Fact, frozen=True, kw_only=True):
    """A compute capability and the first CUDA that can emit code for it."""

    cc: Dotted
    architecture: str
    min_cuda: Dotted


class CodeTarget(Fact, frozen=True, kw_only=True):
    """The devices that SASS `sm` runs on: `at_least` <= cc < `below` less `excluded`, or exactly `only`.

    `excluded` holds below CUDA `excluded_below_cuda`, or always when that is None.
    """

    sm: Dotted
    at_least: Dotted | None = None
    below: Dotted | None = None
    excluded: list[Dotted] = []
    excluded_below_cuda: Dotted | None = None
    only: list[Dotted] = []


class BaseImage(Fact, frozen=True, kw_only=True):
    """What nvidia/cuda:`image` demands through NVIDIA_REQUIRE_CUDA before its container may start.

    A driver passes if its own CUDA is `cuda` or newer, or if its branch is listed for the kind of GPU.
    `complete` is false when the end of the lists could not be read.
    """

    image: Dotted
    cuda: Dotted
    datacenter_branches: list[Dotted] = []
    geforce_branches: list[Dotted] = []
    complete: bool = True


class Cuda(MatrixRow, frozen=True, kw_only=True):
    """The facts about CUDA releases."""

    families: list[CudaFamily]
    minors: list[CudaMinor]
    capabilities: list[Capability]
    code: list[CodeTarget]
    base_images: list[BaseImage] = []


class GpuModel(Fact, frozen=True, kw_only=True):
    """A GPU model. `first_driver` maps a branch to its first driver that supports the model.

    `min_driver` is the lowest driver that supports it; `driver_verified` is false where these two are weak.
    """

    name: str
    architecture: str
    cc: Dotted
    memory_gb: list[int]
    datacenter: bool
    host_arch: HostArch
    min_driver: Dotted | None = None
    first_driver: dict[Dotted, Dotted] = {}
    driver_verified: bool = True
    aliases: list[str] = []


class DriverBranch(Fact, frozen=True, kw_only=True):
    """A driver branch; `drops` are the architectures that this and every later branch no longer support."""

    branch: Dotted
    cuda: Dotted
    kind: str | None = None
    end_of_life: str | None = None
    drops: list[str] = []


class Build(Fact, frozen=True, kw_only=True):
    """The wheels of one release and variant for one host arch. `sass` is None when unknown; for cpu it is [].

    `verified` is about `python`, `sass_verified` about `sass` and `ptx`.
    """

    arch: HostArch
    python: Annotated[list[PythonVersion], msgspec.Meta(min_length=1)]
    sass: list[Dotted] | None = None
    ptx: list[Dotted] = []
    sass_verified: bool = True


class TorchVariant(Fact, frozen=True, kw_only=True):
    """One variant of one torch release. `index` is the path below a PyTorch index ("whl/cu128").

    `unseen` are host archs that were never looked up: no build is listed, but there may be one.
    `libraries_verified` is about cudnn, nccl and triton.
    """

    variant: Variant
    cuda: Dotted | None = None
    index: str
    unseen: list[HostArch] = []
    builds: list[Build]
    cudnn: str | None = None
    nccl: str | None = None
    triton: str | None = None
    libraries_verified: bool = True


class TorchRelease(Fact, frozen=True, kw_only=True):
    """A torch release. `pypi` maps a host arch to the variant of the wheel on the Python index.

    `pypi_unverified` are host archs for which that is weak. `complete` is false when there may be variants not listed.
    """

    torch: Dotted
    released: str
    complete: bool = True
    pypi: dict[HostArch, Variant]
    pypi_unverified: list[HostArch] = []
    torchvision: Dotted | None = None
    torchaudio: Dotted | None = None
    variants: list[TorchVariant]

    def variant(self, name: str) -> TorchVariant | None:
        """Return the variant called `name`, or None."""
        return next((v for v in self.variants if v.variant == name), None)


class Base(MatrixRow, frozen=True, kw_only=True):
    """The distribution that ships this Python, so that apt alone provides it. `digest` is None until it is known."""

    python: PythonVersion
    distro: Literal["debian", "ubuntu"]
    suite: Annotated[str, msgspec.Meta(pattern=r"^[a-z]+\Z")]
    image: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][A-Za-z0-9._/:-]*\Z")]
    digest: Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")] | None = None


class Cell(MatrixRow, frozen=True, kw_only=True):
    """torch x variant x Python; `str()` is the one identifier: directory, CI job, selector, report key."""

    torch: Dotted
    variant: Variant
    python: PythonVersion

    def __str__(self) -> str:
        """Return e.g. torch2.8.0-cu128-py312."""
        return f"torch{self.torch}-{self.variant}-py{self.python.replace('.', '')}"

    @staticmethod
    def parse(name: str) -> "Cell | None":
        """Return the cell called `name`, or None when `name` is not a cell name."""
        axes = re.match(_CELL, name)
        if axes is None:
            return None
        python = axes["python"]
        return Cell(torch=axes["torch"], variant=axes["variant"], python=f"{python[0]}.{python[1:]}")


class ImageChoice(MatrixRow, frozen=True, kw_only=True):
    """Cells published for x86_64 and `more_archs`: a torch in each variant, for each Python, as each target."""

    torch: Dotted
    variants: list[Variant]
    python: list[PythonVersion]
    targets: list[Target]
    more_archs: list[HostArch] = []

    def cells(self) -> list[Cell]:
        """Return the cells of this row, in its order."""
        return [Cell(torch=self.torch, variant=v, python=p) for v in self.variants for p in self.python]


class Matrix(MatrixRow, frozen=True, kw_only=True):
    """The whole matrix.yaml: facts first, choices (`bases`, `images`) last."""

    schema: Literal["envcheck/matrix/1"]
    sources: dict[str, str]
    cuda: Cuda
    drivers: list[DriverBranch]
    gpus: list[GpuModel]
    torch: list[TorchRelease]
    bases: list[Base]
    images: list[ImageChoice]

    def release(self, torch: str) -> TorchRelease | None:
        """Return the release, or None."""
        return next((r for r in self.torch if r.torch == torch), None)

    def base(self, python: str) -> Base | None:
        """Return the distribution base for a Python, or None."""
        return next((b for b in self.bases if b.python == python), None)

    def targets(self, cell: Cell) -> list[Target]:
        """Return the targets that a cell is published as; none for a cell that is not published."""
        return next((row.targets for row in self.images if cell in row.cells()), [])

    def cells(self) -> list[Cell]:
        """Return every published cell, in the order of `images`."""
        return [cell for choice in self.images for cell in choice.cells()]

    def archs(self, cell: Cell) -> list[HostArch]:
        """Return the host architectures that a cell is published for; none where it is not published."""
        more = [choice.more_archs for choice in self.images if cell in choice.cells()]
        return ["x86_64", *more[0]] if more else []


@lru_cache(maxsize=4096)
def key(version: str) -> tuple[int, ...]:
    """Return the sort key: 570.26 < 570.124, and 12.8 < 12.10. Raises ValueError unless it is dotted digits 0-9."""
    if not version.isascii():
        message = f"{version!r} is no version: only the digits 0 to 9 count"
        raise ValueError(message)
    return tuple(int(field) for field in version.split("."))


def python_key(version: str) -> tuple[int, ...]:
    """Return the sort key of a Python: 3.9 < 3.10 < 3.13 < 3.13t < 3.14."""
    return (*key(version.rstrip("t")), int(version.endswith("t")))


# From R430 on branches are multiples of 5, and Windows counts on within one: in WSL nvidia-smi says
# "NVIDIA-SMI 580.82.10, Driver Version: 581.29" (see also microsoft/WSL#11277).
_BY_FIVE: Final = re.compile(r"4[3-9][0-9]|[5-9][0-9]{2}")


def branch(driver: str) -> str:
    """Return the branch of a driver: 570 of 570.124.06, and of Windows' 572.16."""
    name = driver.split(".", 1)[0]
    return str(int(name) // 5 * 5) if _BY_FIVE.fullmatch(name) else name
