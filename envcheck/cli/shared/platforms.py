"""The platforms of images, as engines write them, and the one of this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envcheck.matrix.facts.model import HostArch


def architecture(platform: str) -> HostArch:
    """Return the architecture of a platform as engines write it; "auto" is this machine's."""
    machine = os.uname().machine if platform == "auto" else platform
    return "aarch64" if machine in {"aarch64", "arm64", "linux/arm64"} else "x86_64"
