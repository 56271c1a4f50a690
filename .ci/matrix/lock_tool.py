"""lock_tool.py [PROFILE]: lock envcheck's own environment inside images, and the uv of a build for another platform.

Writes templates/envcheck.lock, of what pyproject.toml's dependency group `image` needs, and templates/uv.lock.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from envcheck import safe_files
from envcheck.images.lock_with_uv import lock_tool
from envcheck.images.lockfile import format_lock
from envcheck.matrix.file.load import load
from envcheck.mirrors.profiles.load import load as load_profile

ROOT = Path(__file__).parents[2]


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
