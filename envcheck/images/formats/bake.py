"""A `docker buildx bake` file that any machine builds: each cell's context lies beside it, in a directory of its name.

`envcheck render CELL --mirror PROFILE -o DIR/CELL` writes such a context; the file itself is DIR/docker-bake.json.
A context is of one platform: it holds that platform's locks, promises and uv. That for arm64 is written on an arm64
machine, to DIR/CELL-arm64, and its targets, groups and tags end in -arm64 too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from envcheck.images.build.plan import PLATFORMS
from envcheck.images.formats.registry import CellFormat, FormatOptions
from envcheck.images.render.dockerfile import base_reference
from envcheck.images.spec import ARCH, ImageSpec


def bake(specs: Sequence[ImageSpec], options: FormatOptions) -> str:
    """Return the JSON; its variables are what a machine may set in the environment of bake."""
    document = {
        "variable": {
            "REPOSITORY": {"default": options.repository},
            "REVISION": {"default": "unknown"},
            "SOURCE_DATE_EPOCH": {"default": "0"},
            "NETWORK": {"default": "default"},
        },
        "group": _groups(specs),
        "target": {name: _target(spec) for name, spec in _named(specs).items()},
    }
    return json.dumps(document, indent=1) + "\n"


def _groups(specs: Sequence[ImageSpec]) -> dict[str, dict[str, list[str]]]:
    """Return the groups of each platform: all of it, one of each cell, one of each kind of target.

    What bake builds when given no name is of one platform: no builder need have the other.
    """
    members: dict[str, list[str]] = {"default": []}
    for name, spec in _named(specs).items():
        suffix = _suffix(spec)
        everything = suffix.removeprefix("-") or "default"
        for group in (everything, _plain(f"{spec.cell}{suffix}"), f"{spec.target}{suffix}"):
            members.setdefault(group, []).append(name)
    members["default"] = members["default"] or list(_named(specs))
    return {group: {"targets": names} for group, names in members.items()}


def _named(specs: Sequence[ImageSpec]) -> dict[str, ImageSpec]:
    return {_plain(f"{spec.cell}-{spec.target}{_suffix(spec)}"): spec for spec in specs}


def _suffix(spec: ImageSpec) -> str:
    """Return what tells the names of this platform from those of amd64."""
    return "" if spec.arch == ARCH else f"-{PLATFORMS[spec.arch].rpartition('/')[2]}"


def _plain(name: str) -> str:
    """Return a name as bake takes it: without dots, which it reads as a path into a target."""
    return name.replace(".", "_")


def _target(spec: ImageSpec) -> dict[str, Any]:
    return {
        "context": f"{spec.cell}{_suffix(spec)}",
        "dockerfile": "Dockerfile",
        "target": spec.target,
        "platforms": [PLATFORMS[spec.arch]],
        "args": {
            "BASE": base_reference(spec),
            "REVISION": "${REVISION}",
            "SOURCE_DATE_EPOCH": "${SOURCE_DATE_EPOCH}",
        },
        # No option of bake sets it: `host` is for a mirror on the builder's own loopback.
        "network": "${NETWORK}",
        "tags": [f"${{REPOSITORY}}:{spec.tag}{_suffix(spec)}"],
    }


FORMAT: Final = CellFormat(bake)
