"""lock_tool.py [PROFILE]: lock envcheck's own environment inside images, and the uv of a build for another platform.

Writes templates/envcheck.lock, of what pyproject.toml's dependency group `image` needs, and templates/uv.lock.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from envcheck import safe_files
from envcheck.images.lock_with_uv import PLATFORMS, first_resolution, source_options
from envcheck.images.lockfile import Lock, Pin, format_lock
from envcheck.matrix.file.load import load
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.mirrors.profiles.model import Profile

ROOT = Path(__file__).parents[2]


def lock_tool(requirements: Sequence[str], pythons: Sequence[str], profile: Profile) -> Lock:
    """Return the lock of envcheck's own environment in an image: one version each, files for every one of `pythons`.

    One lock serves both architectures.
    """
    files: dict[tuple[str, str], set[str]] = {}
    for python, platform in itertools.product(pythons, PLATFORMS.values()):
        exact = [f"{name}=={version}" for name, version in files]
        options = ["--python-version", python, "--python-platform", platform]
        tries = [([*options, *source], [*requirements, *exact]) for source in source_options(profile, "pypi")]
        for pin in first_resolution(tries, "envcheck itself", profile):
            files.setdefault((pin.name, pin.version), set()).update(pin.sha256)
    pins = [Pin(name=name, version=version, sha256=sorted(hashes)) for (name, version), hashes in sorted(files.items())]
    return Lock(group="base", index="pypi", pins=pins)


def main(profile_name: str = "host") -> None:
    """Write both locks."""
    profile, pythons = load_profile(profile_name), [base.python for base in load().bases]
    groups = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["dependency-groups"]
    for name, requirements, versions, title in (
        ("envcheck.lock", groups["image"], pythons, "envcheck's own environment in an image"),
        ("uv.lock", ["uv"], pythons[:1], "uv of a build for another platform"),
    ):
        lock = lock_tool(requirements, versions, profile)
        safe_files.replace(ROOT / "templates" / name, format_lock(lock, title).encode())
        sys.stdout.write(f"{name}: {len(lock.pins)} packages for Python {', '.join(versions)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
