"""A `docker buildx bake` file that any machine builds: each cell's context lies beside it, in a directory of its name.

`envcheck render CELL --mirror PROFILE -o DIR/CELL` writes such a context; the file itself is DIR/docker-bake.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from envcheck.images.build.plan import PLATFORMS
from envcheck.images.formats.registry import CellFormat, FormatOptions
from envcheck.images.render.dockerfile import base_reference
from envcheck.images.spec import ImageSpec


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
        "target": {name: _target(same) for name, same in _named(specs).items()},
    }
    return json.dumps(document, indent=1) + "\n"


def _groups(specs: Sequence[ImageSpec]) -> dict[str, dict[str, list[str]]]:
    """Return a group of all, one of each cell and one of each kind of target."""
    members: dict[str, list[str]] = {"default": list(_named(specs))}
    for name, (spec, *_) in _named(specs).items():
        members.setdefault(_plain(str(spec.cell)), []).append(name)
        members.setdefault(spec.target, []).append(name)
    return {group: {"targets": names} for group, names in members.items()}


def _named(specs: Sequence[ImageSpec]) -> dict[str, list[ImageSpec]]:
    """Return the specs of each of bake's targets: one target has all platforms of an image."""
    named: dict[str, list[ImageSpec]] = {}
    for spec in specs:
        named.setdefault(_plain(f"{spec.cell}-{spec.target}"), []).append(spec)
    return named


def _plain(name: str) -> str:
    """Return a name as bake takes it: without dots, which it reads as a path into a target."""
    return name.replace(".", "_")


def _target(same: Sequence[ImageSpec]) -> dict[str, Any]:
    spec = same[0]
    return {
        "context": str(spec.cell),
        "dockerfile": "Dockerfile",
        "target": spec.target,
        "platforms": [PLATFORMS[one.arch] for one in same],
        "args": {
            "BASE": base_reference(spec),
            "REVISION": "${REVISION}",
            "SOURCE_DATE_EPOCH": "${SOURCE_DATE_EPOCH}",
        },
        # No option of bake sets it: `host` is for a mirror on the builder's own loopback.
        "network": "${NETWORK}",
        "tags": [f"${{REPOSITORY}}:{spec.tag}"],
    }


FORMAT: Final = CellFormat(bake)
