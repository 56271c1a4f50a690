"""Read which Linux wheels of torch the indexes of a profile list: releases, variants, host architectures, Pythons."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag
from packaging.version import InvalidVersion, Version
from wheel_metadata import read_requirements

from envcheck.errors import UnavailableError
from envcheck.mirrors.index import IndexFile, parse_file_name, read_project, unavailable
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.profiles.model import Profile

ARCHS: Final = ("x86_64", "aarch64")
_AT_ONCE: Final = 8
_CPYTHON: Final = re.compile(r"cp(?P<major>\d)(?P<minor>\d+)")
# How a wheel says its CUDA: by the runtime that it requires, or since 2.13 by the toolkit.
_CUDA: Final = re.compile(r"(?:nvidia-cuda-runtime(?:-cu\d+)?|cuda-toolkit)\b[^;]*?==\s*(\d+)\.(\d+)")
_NVIDIA: Final = re.compile(r"(?:nvidia-|cuda-)")
_TORCH: Final = re.compile(r"torch\s*\(?==\s*([0-9.]+)\)?\s*(?:;.*)?")
_RELEASE_PARTS: Final = 3

T = TypeVar("T")
U = TypeVar("U")


class TorchWheel(NamedTuple):
    """One wheel of torch for Linux. `variant` is None on the Python index, whose file names do not have it."""

    torch: str
    variant: str | None
    arch: str
    python: str
    file: IndexFile


class TorchListing(NamedTuple):
    """What the indexes list.

    `pypi_variants` has the variant of the Python index's wheel of a new release and host architecture, None if its
    requirements do not say it. `torchvision` maps a new release to its companion. `absent` are variants that the
    PyTorch index has no page of.
    """

    wheels: list[TorchWheel]
    pypi_variants: dict[tuple[str, str], str | None]
    torchvision: dict[str, str]
    absent: list[str]


def read_torch_wheels(
    client: Client,
    profile: Profile,
    variants: Sequence[str],
    *,
    releases: Collection[str],
    torchvisions: Collection[str],
) -> TorchListing:
    """Return the wheels of torch on the Python index and on the PyTorch index's pages of these variants.

    `known` are the releases that are not looked up further, and `torchvisions` their companions.
    Raises UnavailableError if an index cannot be read, or has no page of torch at all.
    """
    on_pypi = read_project(client, profile.pypi, profile, "pypi", "", "torch")
    if on_pypi is None:
        message = f"the Python index of the profile {profile.name} has no page of torch"
        raise UnavailableError(message, fix="choose a mirror that has it (--mirror)")
    pages = in_parallel(lambda name: read_project(client, profile.pytorch, profile, "pytorch", name, "torch"), variants)
    if not any(pages):
        message = f"the PyTorch index of the profile {profile.name} has a page of no variant"
        raise UnavailableError(message, fix="choose a mirror that has it (--mirror)")
    wheels = [*parse_wheels(on_pypi, None)]
    for variant, page in zip(variants, pages, strict=True):
        wheels += parse_wheels(page or [], variant)
    new = [wheel for wheel in wheels if wheel.torch not in releases]
    absent = [variant for variant, page in zip(variants, pages, strict=True) if page is None]
    companions = _companions(client, profile, torchvisions) if new else {}
    return TorchListing(wheels, _pypi_variants(client, new), companions, absent)


def parse_wheels(files: Iterable[IndexFile], variant: str | None) -> Iterator[TorchWheel]:
    """Yield the wheels of stable releases that a page lists, by their names."""
    for file in files:
        try:
            project, version, tags = parse_file_name(file.name)
        except ValueError:
            continue
        if project != "torch" or file.yanked or not _is_stable(version):
            continue
        for python, arch in sorted({combination for tag in tags if (combination := _platform(tag)) is not None}):
            if _is_variant(version, variant, arch):
                yield TorchWheel(version.base_version, variant, arch, python, file)


def _is_stable(version: Version) -> bool:
    plain = not version.is_prerelease and not version.is_postrelease
    return plain and len(version.release) == _RELEASE_PARTS and not version.epoch


def _is_variant(version: Version, variant: str | None, arch: str) -> bool:
    """Tell whether a wheel on a variant's page is of it: cpu wheels for aarch64 had no local version before 2.6."""
    return version.local == variant or (variant == "cpu" and arch == "aarch64" and version.local is None)


def _platform(tag: Tag) -> tuple[str, str] | None:
    """Return the Python and the host architecture of a wheel's tag, or None if it is not a CPython's on Linux."""
    python = _CPYTHON.fullmatch(tag.interpreter)
    arch = next((name for name in ARCHS if tag.platform.endswith(name) and "linux" in tag.platform), None)
    if python is None or arch is None or not tag.abi.startswith("cp"):
        return None
    return f"{python['major']}.{python['minor']}{'t' if tag.abi.endswith('t') else ''}", arch


def variant_of(requirements: Iterable[str], arch: str) -> str | None:
    """Return the variant of a wheel with these requirements; None if they name NVIDIA's libraries but no CUDA."""
    lines = [line for line in requirements if _applies(line, arch)]
    cuda = next((match for line in lines if (match := _CUDA.match(line))), None)
    if cuda is not None:
        return f"cu{cuda[1]}{cuda[2]}"
    return None if any(_NVIDIA.match(line) for line in lines) else "cpu"


def _applies(line: str, arch: str) -> bool:
    """Tell whether a requirement without extras applies on Linux of this architecture."""
    try:
        marker = Requirement(line).marker
    except InvalidRequirement:
        return False
    machine = {"platform_machine": arch, "platform_system": "Linux", "sys_platform": "linux", "extra": ""}
    return marker is None or marker.evaluate(machine)


def _pypi_variants(client: Client, new: Iterable[TorchWheel]) -> dict[tuple[str, str], str | None]:
    first = {(wheel.torch, wheel.arch): wheel.file for wheel in new if wheel.variant is None}
    requirements = in_parallel(lambda file: _requirements(client, file), list(first.values()))
    return {
        key: None if lines is None else variant_of(lines, key[1])
        for key, lines in zip(first, requirements, strict=True)
    }


def _companions(client: Client, profile: Profile, releases: Collection[str]) -> dict[str, str]:
    """Map each torch that an unknown torchvision requires to it; those older than all known ones are of no interest."""
    page = read_project(client, profile.pypi, profile, "pypi", "", "torchvision") or []
    oldest = min(map(Version, releases), default=Version("0"))
    unknown: dict[Version, IndexFile] = {}
    for file in page:
        version = _torchvision(file)
        if version is not None and version > oldest and str(version) not in releases:
            unknown.setdefault(version, file)
    requirements = in_parallel(lambda file: _requirements(client, file), list(unknown.values()))
    pairs = zip(unknown, requirements, strict=True)
    return {match[1]: str(v) for v, lines in pairs for line in lines or [] if (match := _TORCH.fullmatch(line))}


def _torchvision(file: IndexFile) -> Version | None:
    try:
        project, version, tags = parse_file_name(file.name)
    except (ValueError, InvalidVersion):
        return None
    usable = project == "torchvision" and not file.yanked and _is_stable(version)
    return version if usable and any(_platform(tag) for tag in tags) else None


def _requirements(client: Client, file: IndexFile) -> list[str] | None:
    try:
        return read_requirements(client, file)
    except NetworkError as error:
        raise unavailable(file.url, f"{file.name}: {error}") from error


def in_parallel(call: Callable[[T], U], items: Sequence[T]) -> list[U]:
    """Return the results of the calls, in the order of the items; a few run at once."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(call, items))
