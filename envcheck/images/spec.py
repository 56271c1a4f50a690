"""What an image or environment is to be: cell, target, base, locks and promises, as data."""

import difflib
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from envcheck.data import data_path
from envcheck.errors import ConfigError, refuse
from envcheck.images import lockfile as locking
from envcheck.images.lockfile import Group, Lock, Pin
from envcheck.images.targets import FABRIC_LIBRARIES, RECIPES, extensions_of, groups_of, requirements_of
from envcheck.matrix.facts.lookup import driver_floor
from envcheck.matrix.facts.model import Base, Build, Cell, HostArch, Matrix, Target, TorchRelease, TorchVariant, key

LABEL_PREFIX = "envcheck."
ARCH: Final[HostArch] = "x86_64"
_COMPANIONS: Final = {"triton": "(pytorch-)?triton", "torchvision": "torchvision", "torchaudio": "torchaudio"}
# Before it a wheel of the CPU for Arm says "2.5.1" (torch/version.py in the wheels of 2.4.1, 2.5.1 and 2.6.0).
_LABELLED_ON_ARM: Final = key("2.6.0")
# As many cells are named in an error.
_LISTED: Final = 4
_FIELDS: Final = 3  # of a library's version: what it says of itself when it runs


class ImageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One target of one cell. `locks` are in layer order and empty for a cell without a lock.

    `user_packages` names the pins of these locks that the user added.

    `promises` hold what the image says of itself, as strings, "none" where a variant does not have it and "unknown"
    where no fact says: cell, target, variant, torch ("2.13.0+cpu", as torch.__version__), cuda ("12.8"), cudnn
    ("9.10.2"), nccl ("2.27.5"), triton, torchvision and torchaudio (as locked), python ("3.11"), arch-list ("sm_80
    sm_90"), driver-floor ("525.60.13"), fabric ("libibverbs.so.1 …": the RDMA libraries that NCCL opens, the
    distribution's, of an image alone), lock (sha256 of the locks). They are its labels, under LABEL_PREFIX.
    """

    cell: Cell
    target: Target
    base: Base
    arch: HostArch
    locks: list[Lock]
    promises: dict[str, str]
    user_packages: list[str] = []

    @property
    def tag(self) -> str:
        """Return the full tag, e.g. 2.8.0-cu128-py312-runtime; a user's packages add their locks' digest."""
        tag = f"{str(self.cell).removeprefix('torch')}-{self.target}"
        return f"{tag}-with-{locking.digest(self.on_top)[:12]}" if self.on_top else tag

    @property
    def title(self) -> str:
        """Return a name for people."""
        return f"PyTorch {self.promises['torch']}, Python {self.cell.python}, {self.target}"

    @property
    def packages(self) -> str:
        """Return every locked package, e.g. "numpy==2.4.1 torch==2.8.0"."""
        return " ".join(f"{pin.name}=={pin.version}" for lock in self.locks for pin in lock.pins)

    @property
    def own_promises(self) -> dict[str, str]:
        """Return what an environment holds of itself: whoever has not its lock compares the packages with these."""
        return {**self.promises, "packages": self.packages}

    @property
    def on_top(self) -> list[Lock]:
        """Return the user's part of the locks: of extensions.lock, and user.lock, as far as there."""
        return [part for lock in self.locks if (part := _part(lock, self.user_packages)).pins]

    @property
    def cuda(self) -> str | None:
        """Return the wheel's CUDA, e.g. 12.8; None for a cell of the CPU."""
        return None if self.promises["cuda"] == "none" else self.promises["cuda"]

    @property
    def lacking(self) -> list[Group]:
        """Return the groups of what the target adds to its cell that have no lock."""
        own, groups = RECIPES[self.target].group, {lock.group for lock in self.locks}
        needed: list[Group] = [own] if own and requirements_of(self.target, self.cuda) else []
        needed += ["extensions"] if extensions_of(self.target, self.cuda) else []
        return [group for group in needed if group not in groups]

    @property
    def lacks_lock(self) -> bool:
        """Tell whether a lock must be made before this can be built: the cell's, or one of its target."""
        return not self.locks or bool(self.lacking)


def select(matrix: Matrix, selectors: Sequence[str]) -> list[Cell]:
    """Return the published cells the selectors name (a cell's name, or a glob), all of them for no selector."""
    cells = matrix.cells()
    names = [str(cell) for cell in cells]
    for selector in selectors:
        if not any(fnmatchcase(name, selector) for name in names):
            message = f"no published cell is named {selector!r}"
            raise ConfigError(message, fix=near(matrix, selector) or "`envcheck images` lists the cells")
    return [cell for cell in cells if not selectors or any(fnmatchcase(str(cell), s) for s in selectors)]


def near(matrix: Matrix, name: str) -> str:
    """Return which published cells may have been meant, as a question; nothing where none is near."""
    every = [str(cell) for cell in matrix.cells()]
    if of_release := [cell for cell in every if cell.startswith(f"{name}-")]:
        release = name.partition("-")[0].removeprefix("torch")
        more = f"`envcheck images '{name}-*'` marks which of its {len(of_release)} cells run here, "
        return (
            f"did you mean {', '.join(of_release)}?"
            if len(of_release) <= _LISTED
            else f"{more}`envcheck resolve --torch {release}` names the best"
        )
    names = difflib.get_close_matches(name, every, n=3, cutoff=0.5)
    return f"did you mean {', '.join(names)}?" if names else ""


def select_one(matrix: Matrix, selector: str, verb: str = "name") -> Cell:
    """Return the one published cell that the selector names; several, of which to `verb` one, are a ConfigError."""
    cells = select(matrix, [selector])
    if len(cells) != 1:
        refuse(f"{selector!r} names {len(cells)} cells", f"{verb} one at a time, e.g. {cells[0]}")
    return cells[0]


def no_lock(cell: Cell, arch: HostArch = ARCH) -> ConfigError:
    """Return the error of a cell that has no lock for an architecture, with the command that makes it."""
    where = "" if arch == ARCH else f" for {arch}"
    return ConfigError(f"{cell} has no lock{where}", fix=f"run `{_lock(cell, arch)}` where its index can be reached")


def _lock(cell: Cell, arch: HostArch) -> str:
    return f"envcheck lock {cell}" + ("" if arch == ARCH else f" --arch {arch}")


def load_spec(
    matrix: Matrix, cell: Cell, target: Target = "runtime", *, images_dir: Path | None = None, arch: HostArch = ARCH
) -> ImageSpec:
    """Return what one target of a cell is to be, with the locks of `images_dir/<cell>/` (the shipped ones).

    A cell of which some lock files are there and others are missing is a ConfigError; so is a target that needs a lock
    of its own and has none, in a cell that is locked.
    """
    directory = (images_dir or data_path("images")) / str(cell)
    where = str(directory) if images_dir else None
    lacking = locking.missing(directory, arch)
    if lacking:
        message = f"{where or f'images/{cell}'} lacks {' and '.join(lacking)}"
        raise ConfigError(message, fix=f"restore it, or run `{_lock(cell, arch)}` where its index can be reached")
    locks = locking.read_locks(directory, groups_of(target), arch)
    spec = make_spec(matrix, cell, locks, target=target, arch=arch, where=where)
    if locks and spec.lacking:
        name = locking.file_name(spec.lacking[0], arch)
        message = f"{where or f'images/{cell}'} lacks {name}, which the target {target} installs"
        raise ConfigError(message, fix=f"run `{_lock(cell, arch)} --target {target}` where its index can be reached")
    return spec


def load_specs(matrix: Matrix, cell: Cell, *, images_dir: Path | None = None, arch: HostArch = ARCH) -> list[ImageSpec]:
    """Return the specs of all targets that a cell is published as; of `runtime` where it is not published."""
    targets = matrix.targets(cell) if arch in matrix.archs(cell) else []
    targets = targets or ["runtime"]
    return [load_spec(matrix, cell, target, images_dir=images_dir, arch=arch) for target in targets]


def with_user_packages(spec: ImageSpec, lock: Lock, native: Collection[str] = ()) -> ImageSpec:
    """Return the spec with a user's lock on top, all promised; `native` packages are in extensions.lock."""
    names = [pin.name for pin in lock.pins]
    of_target = [pin for each in spec.locks if each.group == "extensions" for pin in each.pins]
    parts: dict[Group, list[Pin]] = {
        "extensions": [*of_target, *(pin for pin in lock.pins if pin.name in native)],
        "user": [pin for pin in lock.pins if pin.name not in native],
    }
    locks = [each for each in spec.locks if each.group != "extensions"]
    locks += [Lock(group=group, index=lock.index, pins=pins) for group, pins in parts.items() if pins]
    spec = msgspec.structs.replace(spec, locks=locks, user_packages=names)
    promises = {**spec.promises, "lock": locking.digest(locks), "packages": spec.packages}
    return msgspec.structs.replace(spec, promises=promises)


def _part(lock: Lock, names: Collection[str]) -> Lock:
    return msgspec.structs.replace(lock, pins=[pin for pin in lock.pins if pin.name in names])


def make_spec(
    matrix: Matrix,
    cell: Cell,
    locks: list[Lock],
    *,
    target: Target = "runtime",
    arch: HostArch = ARCH,
    where: str | None = None,
) -> ImageSpec:
    """Return the spec with these locks, which lie in `where`; refuse locks that contradict the facts."""
    where = where or f"images/{cell}"
    release, variant, build = facts(matrix, cell, arch)
    base = matrix.base(cell.python)
    if base is None:
        refuse(f"{cell}: no base image has Python {cell.python}", "add one under `bases:` of matrix.yaml")
    version = torch_version(release, variant.variant, arch)
    locked = locking.version_of(locks, "torch")
    if locks and locked != version:
        refuse(f"{where}: the lock holds torch {locked}, not {version}", f"run `envcheck lock {cell}`")
    unlabelled = arch == "aarch64" and cell.variant == "cpu" and key(cell.torch) < _LABELLED_ON_ARM
    promises = {
        "cell": str(cell),
        "target": target,
        "variant": cell.variant,
        # What torch calls itself, torch.__version__.
        "torch": cell.torch if unlabelled else f"{cell.torch}+{cell.variant}",
        "cuda": variant.cuda or "none",
        "cudnn": _library(cell, locks, "nvidia-cudnn(-cu[0-9]+)?", variant.cudnn, where),
        "nccl": _library(cell, locks, "nvidia-nccl(-cu[0-9]+)?", variant.nccl, where),
        # The lock may leave one out; without a lock nothing is known.
        **{n: (locking.version_of(locks, p) or "none") if locks else "unknown" for n, p in _COMPANIONS.items()},
        "python": cell.python,
        "arch-list": arch_list(cell, build),
        "driver-floor": driver_floor(matrix, variant.cuda),
        "fabric": " ".join(FABRIC_LIBRARIES) if variant.cuda else "none",
        "lock": locking.digest(locks) if locks else "none",
    }
    return ImageSpec(cell=cell, target=target, base=base, arch=arch, locks=locks, promises=promises)


def facts(matrix: Matrix, cell: Cell, arch: HostArch) -> tuple[TorchRelease, TorchVariant, Build]:
    """Return what the matrix knows of a cell's wheels; ConfigError when there are none."""
    release = matrix.release(cell.torch)
    variant = release.variant(cell.variant) if release else None
    build = next((b for b in variant.builds if b.arch == arch and cell.python in b.python), None) if variant else None
    if release is None or variant is None or build is None:
        message = f"{cell}: the matrix lists no such wheel for {arch}"
        raise ConfigError(message, fix=f"run `envcheck resolve --torch {cell.torch} --python {cell.python} --all`")
    return release, variant, build


def torch_index(release: TorchRelease, variant: str, arch: HostArch = ARCH) -> str:
    """Return where a cell's torch comes from: the Python index where its own wheel is this variant."""
    return "pypi" if release.pypi.get(arch) == variant else f"pytorch/{variant}"


def torch_version(release: TorchRelease, variant: str, arch: HostArch = ARCH) -> str:
    """Return the version to pin: the Python index's files have no local label in their names."""
    return release.torch if torch_index(release, variant, arch) == "pypi" else f"{release.torch}+{variant}"


def arch_list(cell: Cell, build: Build) -> str:
    """Return the architectures a wheel was built for, as torch._C._cuda_getArchFlags() names them."""
    if cell.variant == "cpu":
        return "none"
    if build.sass is None:
        return "unknown"
    names = [f"sm_{cc.replace('.', '')}" for cc in build.sass] + [f"compute_{cc.replace('.', '')}" for cc in build.ptx]
    return " ".join(names)


def _library(cell: Cell, locks: list[Lock], package: str, fact: str | None, where: str) -> str:
    """Return a library's version from the lock, cross-checked with the matrix; from the matrix without a lock."""
    if cell.variant == "cpu":
        return "none"
    pinned = locking.version_of(locks, package)
    if pinned is None:
        # A wheel of before the nvidia-* packages carries the library itself: only the matrix can know its version.
        return ".".join(fact.split(".")[:_FIELDS]) if fact else "unknown"
    version = ".".join(pinned.split(".")[:_FIELDS])
    if fact is not None and not f"{pinned}.".startswith(f"{fact}."):
        message = f"{where}: the lock holds {package.partition('(')[0]} {pinned}, the matrix says {fact}"
        raise ConfigError(
            message, fix=f"find out which is right; then correct matrix.yaml or run `envcheck lock {cell}`"
        )
    return version
