"""Locks of what comes on top of a cell: a target's packages, and a user's own. Nothing of the cell moves."""

import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import uv
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envcheck import safe_files
from envcheck.data import data_path, state_path
from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.images.build_log import diagnose
from envcheck.images.engines import subprocesses
from envcheck.images.lock_with_uv import (
    PLATFORMS,
    SOURCE_VARIABLES,
    UnsatisfiableError,
    environment,
    first_resolution,
    platform_of,
    source_options,
)
from envcheck.images.lockfile import Group, Lock, Pin, group_of, parse_lock
from envcheck.images.spec import ARCH, ImageSpec, facts
from envcheck.images.targets import RECIPES, requirements_of
from envcheck.matrix.facts.lookup import GLIBC
from envcheck.matrix.facts.model import Cell, HostArch, Matrix, Target
from envcheck.mirrors.profiles.model import Profile, without_logins


def lock_target(
    matrix: Matrix,
    cell: Cell,
    target: Target,
    locks: Sequence[Lock],
    profile: Profile,
    arch: HostArch = ARCH,
    like: Sequence[Lock] = (),
    extensions: Sequence[str] = (),
) -> list[Lock]:
    """Return the locks of what a target adds to a cell with these locks; none for a target without Python packages.

    `extensions` are the requirements of its native extensions, whose lock is their own. With `like`, the versions are
    those of its locks of the target where the architecture has them.
    """
    _, variant, _ = facts(matrix, cell, arch)
    group, locked = (RECIPES[target].group, {pin.name for lock in locks for pin in lock.pins if lock.group == "nvidia"})
    # Of NVIDIA's packages the cell has what its torch asks for, be it of a later CUDA than the target would take.
    wishes = [*requirements_of(target, variant.cuda), *extensions]
    requirements = [wish for wish in wishes if canonicalize_name(Requirement(wish).name) not in locked]
    if not requirements or group is None:
        return []
    same = [f"{pin.name}=={pin.version}" for lock in like for pin in lock.pins if lock.group in (group, "extensions")]
    name, options = f"{cell}, target {target}", _for_python(cell, PLATFORMS[arch])
    pins = _on_top(options, requirements, locks, profile, name, same)
    native = {canonicalize_name(Requirement(each).name) for each in extensions}
    parts: dict[Group, list[Pin]] = {
        group: [pin for pin in pins if pin.name not in native],
        "extensions": [pin for pin in pins if pin.name in native],
    }
    return [Lock(group=group, index="pypi", pins=part) for group, part in parts.items() if part]


def lock_user_packages(
    spec: ImageSpec, requirements: Sequence[str], profile: Profile, wheels: Sequence[Path] = ()
) -> Lock | None:
    """Return the lock of a user's own packages on top of a spec; None where the spec holds all of them already.

    `wheels` are files of this machine that may be taken beside those of the index.
    Raise ConfigError, in one line, for packages that contradict what the cell holds or that no index has.
    """
    try:
        name = f"{', '.join(requirements)} on top of {spec.tag}"
        pins = _on_top(_for_base(spec), requirements, spec.locks, profile, name, wheels=wheels)
    except UnsatisfiableError as error:
        fix = "ask for another version, leave the package out, or take another cell: a build moves nothing of the cell"
        raise ConfigError(error.message, fix=fix) from error
    return Lock(group="user", index="pypi", pins=pins) if pins else None


def contradiction(spec: ImageSpec, lock: Lock, requirements: Iterable[str]) -> str | None:
    """Return what is wrong with a lock of these requirements on top of a spec: it moves a package, or lacks one."""
    held = {pin.name: Version(pin.version) for each in spec.locks for pin in each.pins}
    pinned = {pin.name: Version(pin.version) for pin in lock.pins}
    moved = sorted(held.keys() & pinned.keys())
    if moved:
        return f"pins {moved[0]}, which the cell holds"
    for each in map(Requirement, requirements):
        version = {**held, **pinned}.get(canonicalize_name(each.name))
        if version is None and each.marker is None:
            return f"lacks {each.name}"
        if version is not None and not each.specifier.contains(version, prereleases=True):
            return f"holds {each.name} {version}, which is not {each}"
    return None


def excluded(spec: ImageSpec, requirements: Iterable[str]) -> list[str]:
    """Return the requirements that the spec holds nothing of, which is so where their own marker excludes them."""
    held = {pin.name for lock in spec.locks for pin in lock.pins}
    return [line for line in requirements if canonicalize_name(Requirement(line).name) not in held]


def checked(requirements: Iterable[str]) -> list[str]:
    """Return NAME[SPEC] requirements as given; ConfigError for what is none, or names a place instead of an index."""
    return [_requirement(line, line) for line in requirements]


def read_requirements(path: Path) -> list[str]:
    """Return a file's requirements; ConfigError for other lines and for options, as a profile names the indexes."""
    try:
        lines = safe_files.read_whole(path, 1 << 20).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        refuse(f"{path}: {reason}", "give a file with one requirement a line")
    plain = ((number, line.partition(" #")[0].strip()) for number, line in enumerate(lines, 1))
    requirements = [_requirement(line, f"{path}:{n}") for n, line in plain if line and not line.startswith("#")]
    if not requirements:
        refuse(f"{path} names no package", "give a file with one requirement a line")
    return requirements


def _requirement(line: str, where: str) -> str:
    where = without_logins(where)
    if line.startswith("-"):
        refuse(f"{where!r} is an option, not a package", "leave it out: --mirror says where packages come from")
    try:
        url = Requirement(line).url
    except InvalidRequirement:
        refuse(f"{where!r} is not a requirement", "write NAME or NAME with a version, e.g. 'einops>=0.8'")
    if url:
        message = f"{where!r} names a URL; only packages of an index can be locked with hashes"
        raise ConfigError(message, fix="write NAME or NAME with a version, e.g. 'einops>=0.8'")
    return line


def lock_build_requirements(spec: ImageSpec, requirements: Sequence[str], profile: Profile, name: str) -> list[Pin]:
    """Return what building a package needs besides what a spec holds; ConfigError where that contradicts the spec."""
    try:
        return _on_top(_for_base(spec), requirements, spec.locks, profile, f"what {name} is built with")
    except UnsatisfiableError as error:
        raise ConfigError(error.message, fix="take another version of it, or another cell") from error


def _for_python(cell: Cell, platform: str) -> list[str]:
    return ["--python-version", cell.python, "--python-platform", platform]


def _for_base(spec: ImageSpec) -> list[str]:
    """Return uv's options for packages that run on this base only: what its C library allows, e.g. manylinux_2_31."""
    return _for_python(spec.cell, platform_of(GLIBC.get(spec.base.suite), spec.arch))


def _on_top(
    options: Sequence[str],
    requirements: Sequence[str],
    locks: Sequence[Lock],
    profile: Profile,
    name: str,
    same: Sequence[str] = (),
    wheels: Sequence[Path] = (),
) -> list[Pin]:
    """Return what `requirements` add to these locks, all of whose pins are constraints; those of `same` are wishes.

    The index need not have the cell's own torch and what belongs to it: empty wheels stand in for them, so that a
    package that wants another torch is refused. `wheels` are taken beside those of the index.
    """
    held = [pin for lock in locks for pin in lock.pins]
    constraints = [f"{pin.name}=={pin.version}" for pin in held]
    with tempfile.TemporaryDirectory(prefix="envcheck-lock-") as scratch:
        for pin in (pin for pin in held if group_of(pin.name) != "base"):
            _stand_in(Path(scratch), pin)
        for wheel in wheels:
            shutil.copyfile(wheel, Path(scratch) / wheel.name)
        local = [*options, "--find-links", scratch]
        tries = [([*local, *source], requirements) for source in source_options(profile, "pypi")]
        pins = first_resolution(tries, name, profile, constraints=constraints, wishes=same)
    ours = {pin.name for pin in held}
    return [pin for pin in pins if pin.name not in ours]


def _stand_in(directory: Path, pin: Pin) -> None:
    stem = f"{pin.name.replace('-', '_')}-{pin.version}"
    with zipfile.ZipFile(directory / f"{stem}-py3-none-any.whl", "w") as wheel:
        metadata = f"Metadata-Version: 2.1\nName: {pin.name}\nVersion: {pin.version}\n"
        wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


_TIMEOUT: Final = 600.0


def uv_for(arch: HostArch, profile: Profile) -> Path:
    """Return uv of templates/uv.lock for an architecture, fetched once; UnavailableError where no source has it."""
    lock = data_path("templates") / "uv.lock"
    (pin,) = parse_lock(lock.read_text(), "base", "templates/uv.lock").pins
    kept = state_path("tools", f"uv-{pin.version}-{arch}")
    program = kept / "bin/uv"
    if program.is_file():
        return program
    kept.parent.mkdir(parents=True, exist_ok=True)
    why = f"{profile.name} is closed and names no Python index"
    for source in source_options(profile, "pypi"):
        with tempfile.TemporaryDirectory(prefix=".uv-", dir=kept.parent) as scratch:
            target = Path(scratch) / "uv"
            # An interpreter is named because uv would otherwise look for one of that platform.
            # `stream` adds to this process' environment, whose own sources a closed profile does not ask.
            command = ["env", *(f"--unset={name}" for name in SOURCE_VARIABLES), uv.find_uv_bin()]
            command += ["pip", "install", "--no-config", "--quiet", "--python", sys.executable]
            command += ["--target", str(target), "--python-platform", PLATFORMS[arch], "--no-deps", "--require-hashes"]
            command += ["--only-binary", ":all:", *source, "--requirements", str(lock)]
            ended = subprocesses.stream(command, timeout=_TIMEOUT, env=environment(profile))
            if ended.status == 0:
                target.rename(kept)
                return program
        cause = diagnose(ended.output)
        why = cause.what if cause else (ended.output.strip().splitlines() or ["uv said nothing"])[-1]
    message = f"uv {pin.version} for {arch}, which the build runs, could not be fetched: {why}"
    raise UnavailableError(message, fix="pass --mirror with a profile whose Python index has it")
