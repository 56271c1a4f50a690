"""What an environment of ours says of itself: by its file or its labels, and by the lock whose digest stands there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

import msgspec
from packaging.utils import canonicalize_name

from envcheck import safe_files
from envcheck.data import data_path, state_path
from envcheck.errors import ConfigError, refuse
from envcheck.images import lockfile
from envcheck.images.lockfile import Group, Lock
from envcheck.images.targets import RECIPES, extensions_of, groups_of
from envcheck.matrix.facts.model import Cell, HostArch

IMAGE_PROMISES: Final = Path("/etc/envcheck/promises.json")
IMAGE_PREFIX: Final = "/opt/venv"
_MOST: Final = 1 << 20  # bytes: it is as others left it, and may be a pipe or a device
_REBUILD: Final = "build the environment again, or remove the file"


def read_promises(prefix: str) -> dict[str, str]:
    """Return the promises of an environment made by envcheck, by its sys.prefix."""
    for promises in (Path(prefix) / "envcheck-promises.json", *([IMAGE_PROMISES] if prefix == IMAGE_PREFIX else [])):
        try:
            promised = msgspec.json.decode(safe_files.read_regular(promises, _MOST), type=dict[str, str])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            refuse(f"{promises} is not a JSON object of strings: {error}", _REBUILD)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in what it calls its prefix
            continue
        except OSError as error:
            refuse(f"{promises} cannot be read: {error.strerror}", _REBUILD)
        return {key.replace("-", "_"): value for key, value in promised.items()}
    return {}


def with_packages(promises: Mapping[str, str]) -> dict[str, str]:
    """Return the promises with `packages` ("filelock==3.20.0 …") as in the lock meant, shipped or of a build here.

    `target_packages` ("ipykernel …") are those that the promised target is made of, whatever their versions.
    Of a lock by another hand, or of another release of envcheck, only the digest is known; then `packages` are those
    that the environment promises itself, if it does.
    """
    target, cuda = promises.get("target", ""), promises.get("cuda")
    promised = dict(promises)
    if target in RECIPES and RECIPES[target].requirements:
        extensions = extensions_of(target, None if cuda in {"none", "unknown"} else cuda)
        names = map(canonicalize_name, (*RECIPES[target].requirements, *extensions))
        promised["target_packages"] = " ".join(names)
    groups = groups_of(target) if target in RECIPES else lockfile.GROUPS
    if pinned := _pins(promises.get("cell", ""), promises.get("lock", ""), groups):
        promised["packages"] = " ".join(pinned)
    return promised


def _pins(name: str, digest: str, groups: Sequence[Group]) -> list[str]:
    """Return what the lock with this digest pins: shipped, made by builds here, or both; of one architecture."""
    cell = Cell.parse(name)  # a label is anybody's: only a cell's name becomes a path
    for arch in get_args(HostArch) if cell else ():
        shipped, made = (_locks_in(place("images") / str(cell), groups, arch) for place in (data_path, state_path))
        for locks in (shipped, made, {**made, **shipped}):
            installed = [locks[group] for group in groups if group in locks]
            if lockfile.digest(installed) == digest:
                return [f"{pin.name}=={pin.version}" for lock in installed for pin in lock.pins]
    return []


def _locks_in(directory: Path, groups: Sequence[Group], arch: HostArch) -> dict[Group, Lock]:
    try:
        return {lock.group: lock for lock in lockfile.read_locks(directory, groups, arch)}
    except (ConfigError, OSError):
        return {}
