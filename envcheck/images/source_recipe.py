"""What a build of an extension from source is made of: its sdist, key, GPUs and jobs, and what compilers are given.

The sdist is found on the profile's indexes and pinned; nothing of it runs here.
"""

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envcheck import safe_files
from envcheck.data import data_path, state_path
from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.images import wheels
from envcheck.images.lock_on_top import lock_build_requirements
from envcheck.images.lockfile import MADE_ANEW, Lock, Pin, format_lock, read_kept
from envcheck.images.spec import ImageSpec
from envcheck.images.wheels import StoredWheel
from envcheck.matrix.facts.lookup import Facts, nvcc_in_wheels
from envcheck.matrix.facts.model import key as version_key
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.index import LockedPackage, local_files, parse_file_name, read_project
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.store.objects import Store
from envcheck.node import host

_GIB: Final = 1 << 30
# GiB of memory for each compiler. nvcc: flash-attn's setup.py counts 9 GB a job, and its README takes 4 jobs for 96 GB
# of RAM as too many; 8 is what its issues #968 and #945 report for one job. g++ with torch's headers: 2.1 GB measured
# for segment_coo_cpu.cpp of torch-scatter 2.1.2, rounded up.
_GIB_OF_NVCC: Final = 8
_GIB_OF_GXX: Final = 3
_FORMAT: Final = 1
_SCRIPTS: Final = ("Dockerfile", "build_wheel.sh", "torch_symbols.py")
_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_FOLDER: Final = "built"
_DIGEST_LENGTH: Final = 64
_PYPROJECT: Final = "pyproject.toml"
# Bytes; the longest known ones have some tens of kB.
_LARGEST: Final = 1 << 20


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


def most_jobs() -> int | None:
    """Return the user's own limit of compilers at once, $MAX_JOBS, None without one. Raises ConfigError."""
    text = os.environ.get("MAX_JOBS", "").strip()
    if text and (not text.isdecimal() or int(text) < 1):
        refuse(f"MAX_JOBS is {text!r}, which is no number of jobs", "set it to 1 or more, or unset it")
    return int(text) if text else None


def required(build: ExtensionBuild) -> list[Lock]:
    """Return the lock of what a build needs besides `devel`, nothing where it needs nothing."""
    pins = build.sdist.requires
    return [Lock(group="devel", index="pypi", pins=pins)] if pins else []


def write(build: ExtensionBuild, store: Store, directory: Path, epoch: int) -> int:
    """Write the context of a build, whose files are in the store, into a new directory; return the number of jobs."""
    (directory / "sdist").mkdir(parents=True)
    (directory / "wheels").mkdir()
    for name in _SCRIPTS:
        shutil.copyfile(data_path("templates") / "context/extension" / name, directory / name)
    sdist = store.name(build.sdist.sha256) or f"{build.sdist.name}-{build.sdist.version}.tar.gz"
    store.view(build.sdist.sha256, directory / "sdist" / sdist)
    for lock in required(build):
        (directory / "build.lock").write_text(format_lock(lock, f"what builds {build.what}"))
    for wheel in wheels.held(store, required(build), build.devel.cell.python):
        store.view(wheel.sha256, directory / "wheels" / wheel.name)
    number = jobs(available_memory(), len(os.sched_getaffinity(0)), cuda=bool(build.gpus), most=most_jobs())
    lines = [f"{name}={value}\n" for name, value in build.environment(number, epoch).items()]
    (directory / "environment").write_text("".join(lines))
    # Who builds may be another user's daemon, and compiles as the image's user.
    for path in [directory, *directory.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    return number


def available_memory() -> float:
    """Return the bytes that processes may still use here: the kernel's estimate, or the container's limit; 0 unread."""
    amounts = [host.meminfo(_text("/proc/meminfo")).get("MemAvailable", 0)]
    limits = [text for text in map(_text, _LIMITS) if text]
    amounts += [limit for limit in map(host.memory_limit, limits) if isinstance(limit, int)]
    return min(amounts)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def kept_wheel(store: Store, build: ExtensionBuild) -> StoredWheel | None:
    """Return the wheel of a build whose bytes still have their hash; None if there is none, or none that is intact."""
    try:
        record = json.loads(_record(store, build).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("key") != build.key:
        return None
    name, sha256 = record.get("name"), record.get("sha256")
    if not isinstance(name, str) or not isinstance(sha256, str) or len(sha256) != _DIGEST_LENGTH or "/" in name:
        return None
    if not store.sound(sha256):
        return None
    store.touch(sha256, name)
    return StoredWheel(name, sha256)


def keep(store: Store, build: ExtensionBuild, wheel: Path, sha256: str) -> StoredWheel:
    """Put a wheel that was compared with its promises into the store; its record is written last, and whole."""
    store.adopt(wheel, sha256)
    record = {"key": build.key, "what": build.what, "sdist": build.sdist.sha256, "name": wheel.name, "sha256": sha256}
    path = _record(store, build)
    path.parent.mkdir(parents=True, exist_ok=True)
    safe_files.replace(path, json.dumps(record, indent=1).encode() + b"\n")
    return StoredWheel(wheel.name, sha256)


def require_writable(store: Store) -> None:
    """Raise UnavailableError where the wheel could not be kept: better before an hour of compiling than after."""
    try:
        (store.root / _FOLDER).mkdir(parents=True, exist_ok=True)
        safe_files.put(store.root / _FOLDER / ".writable", b"", durable=False)
    except OSError as error:
        message = f"{store.root}: {error.strerror}; a wheel that is compiled is kept there"
        raise UnavailableError(message, fix="give a store that this user may write to with --store") from error


def _record(store: Store, build: ExtensionBuild) -> Path:
    return store.root / _FOLDER / f"{build.key}.json"


class _BuildSystem(msgspec.Struct, frozen=True):
    requires: tuple[str, ...] = ("setuptools", "wheel")  # what pip assumes where a project says nothing (PEP 518)


class _Pyproject(msgspec.Struct, frozen=True):
    build_system: _BuildSystem = msgspec.field(default=_BuildSystem(), name="build-system")


def bring(
    store: Store, devel: ImageSpec, name: str, version: str, profile: Profile, means: Callable[[str], TransferOptions]
) -> Sdist:
    """Return a release's source, which is in the store then: as pinned by an earlier build, else as the index says.

    The index is trusted on first use: the sdist's hash and what builds it are kept for all later builds. Raise
    NotFoundError or UnavailableError if no index has it, PromiseError if its bytes have another hash.
    """
    known = pinned(devel, name, version)
    digest = known.sha256 if known else _listed(name, version, profile, means("asking the indexes").client)
    if not store.sound(digest):
        pin = Pin(name=name, version=version, sha256=[digest])
        lock = Lock(group="devel", index="pypi", pins=[pin])
        wheels.bring(store, [lock], devel.cell.python, profile, means)
    if known is not None:
        return known
    source = store.path(digest)
    requires = lock_build_requirements(devel, build_requires(source, f"{name} {version}"), profile, f"{name} {version}")
    pins = [Pin(name=name, version=version, sha256=[digest]), *requires]
    path = _kept(devel, name, version)
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{name} {version}: its sdist, and what builds it on {devel.cell}"
    safe_files.replace(path, format_lock(Lock(group="devel", index="pypi", pins=pins), title).encode())
    return Sdist(name=name, version=version, sha256=digest, requires=requires)


def pinned(devel: ImageSpec, name: str, version: str) -> Sdist | None:
    """Return a release's source as an earlier build pinned it; None if there was none. Raises ConfigError."""
    path = _kept(devel, name, version)
    return _read(path, name, version) if path.is_file() else None


def _kept(devel: ImageSpec, name: str, version: str) -> Path:
    return state_path("sdist-locks", f"{devel.cell}-{devel.arch}-{name}-{version}.lock")


def _read(path: Path, name: str, version: str) -> Sdist:
    pins = read_kept(path, "devel").pins
    own = next((pin for pin in pins if pin.name == name and Version(pin.version) == Version(version)), None)
    if own is None or len(own.sha256) != 1:
        refuse(f"{path} pins no sdist of {name} {version}", MADE_ANEW)
    return Sdist(name=name, version=version, sha256=own.sha256[0], requires=[pin for pin in pins if pin.name != name])


def _listed(name: str, version: str, profile: Profile, client: Client) -> str:
    """Return the hash of the sdist that a directory of this machine or the first index with a page has."""
    files = local_files(LockedPackage(name, (), version=version), {"pypi": profile.pypi})
    local = next((path for path in files if _is_sdist(path.name, name, version)), None)
    if local is not None:
        return wheels.sha256(local)
    page = read_project(client, profile.pypi, profile, "pypi", "", name) or []
    fitting = [file for file in page if _is_sdist(file.name, name, version)]
    # A withdrawn one only if it is the only one.
    file = next((file for file in fitting if not file.yanked), next(iter(fitting), None))
    if file is None or file.sha256 is None:
        lacking = "no sdist" if file is None else "no sha256 of the sdist"
        refuse(f"the index lists {lacking} of {name} {version}", "pass a --mirror that has it", UnavailableError)
    return file.sha256


def _is_sdist(file: str, name: str, version: str) -> bool:
    try:
        project, its_version, _ = parse_file_name(file)
    except ValueError:
        return False
    return file.endswith(".tar.gz") and canonicalize_name(project) == name and its_version == Version(version)


def build_requires(sdist: Path, what: str) -> list[str]:
    """Return what pyproject.toml of an sdist requires to build it, without torch; ConfigError for a damaged sdist."""
    try:
        with tarfile.open(sdist, "r:gz") as archive:
            project = msgspec.toml.decode(_pyproject(archive), type=_Pyproject)
        requirements = [Requirement(line) for line in project.build_system.requires]
    except (tarfile.TarError, OSError, EOFError, msgspec.DecodeError, InvalidRequirement, ValueError) as error:
        message = f"the sdist of {what} is damaged: {' '.join(str(error).split())[:200] or type(error).__name__}"
        raise ConfigError(message, fix="take another version or another mirror") from error
    # The cell's torch is what it is built against, whichever one it would build against in isolation.
    return [str(each) for each in requirements if canonicalize_name(each.name) != "torch"]


def _pyproject(archive: tarfile.TarFile) -> bytes:
    for member in archive:
        _, _, rest = member.name.removeprefix("./").partition("/")
        if rest == _PYPROJECT and member.isfile():
            stream = archive.extractfile(member)
            return stream.read(_LARGEST) if stream else b""
    return b""
