"""What a build is identified by: equal keys mean equal content, whichever mirror the bytes came through."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec

from envcheck.images.spec import LABEL_PREFIX
from envcheck.matrix.facts.model import HostArch

# Where bytes come from is no content: the locks' hashes hold them to the same bytes wherever that is.
_MIRROR: Final = "mirror"


def context_digest(context: Path) -> str:
    """Return the sha256 of what a context holds: names, executable bits and bytes, but no dates and no mirror."""
    total = hashlib.sha256()
    files = sorted(p for p in context.rglob("*") if p.is_file() and p.relative_to(context).parts[0] != _MIRROR)
    for path in files:
        executable = bool(path.stat().st_mode & 0o100)
        digest = hashlib.sha256(_content(path)).hexdigest()
        total.update(f"{digest} {int(executable)} {path.relative_to(context)}\n".encode())
    return total.hexdigest()


def _content(path: Path) -> bytes:
    """Return a file's bytes; the Dockerfile's without the base's name, whose content the key holds already."""
    if path.name != "Dockerfile":
        return path.read_bytes()
    return b"".join(line for line in path.read_bytes().splitlines(keepends=True) if not line.startswith(b"ARG BASE="))


def key(*, context: str, base: str, platform: str, target: str, secrets: Iterable[str]) -> str:
    """Return the build key. `secrets` are their ids: a value never reaches a key."""
    parts = {"context": context, "base": base, "platform": platform, "target": target, "secrets": sorted(secrets)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


Network = Literal["host", "default", "none"]
KEY_LABEL: Final = f"{LABEL_PREFIX}key"
# For an envcheck that has not the lock of the image.
PACKAGES_LABEL: Final = f"{LABEL_PREFIX}packages"
# What an image is called until it has been read back.
BUILDS: Final = "envcheck/build"
PLATFORMS: Final[dict[HostArch, str]] = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


class BuildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One image build. `key` is None while its base does not exist yet. `secrets` map ids to files, never values.

    `contexts` map names to directories that the Dockerfile's stages of those names stand for.

    `skipped`: the key has an image already, so that a build would only tag it.
    The image is built as `name`, which it loses for `tag` and `aliases` once it has been read back.
    """

    schema: Literal["envcheck/build-plan/1"] = "envcheck/build-plan/1"
    engine: Literal["docker", "podman"]
    cell: str
    target: str
    platform: str
    base: str
    key: str | None
    name: str = ""
    tag: str = ""
    aliases: list[str] = []
    context: str
    network: Network
    contexts: dict[str, str] = {}
    secrets: dict[str, str] = {}
    build_args: dict[str, str] = {}
    labels: dict[str, str] = {}
    argv: list[str] = []
    skipped: bool = False


def arguments(plan: BuildPlan) -> list[str]:
    """Return what follows the engine's build command."""
    named = {
        "build-arg": [f"{name}={value}" for name, value in plan.build_args.items()],
        "label": [f"{name}={value}" for name, value in plan.labels.items()],
        "build-context": [f"{name}={path}" for name, path in plan.contexts.items()],
        "secret": [f"id={name},src={path}" for name, path in plan.secrets.items()],
    }
    options = [f"--platform={plan.platform}", f"--target={plan.target}", f"--tag={plan.name}"]
    options += [f"--network={plan.network}"]
    return options + [f"--{option}={value}" for option, values in named.items() for value in values] + [plan.context]
