"""The platforms of images, as engines write them, and the one of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envcheck.matrix.facts.model import HostArch


def architecture(platform: str) -> HostArch:
    """Return the architecture of a platform as engines write it; "auto" is this machine's."""
    machine = os.uname().machine if platform == "auto" else platform
    return "aarch64" if machine in {"aarch64", "arm64", "linux/arm64"} else "x86_64"


def refuse_without_engine(targets: Sequence[str], platform: str, tag: str | None, *, bake: bool) -> None:
    """Raise UnavailableError for what only docker or podman build, where neither answers."""
    from envcheck.errors import UnavailableError

    options = {
        f"--platform {platform}": architecture(platform) != architecture("auto"),
        "several --target": len(set(targets)) > 1,
        f"--tag {tag}": tag is not None,
        "--bake": bake,
    }
    option = next((option for option, given in options.items() if given), None)
    if option:
        message = f"{option}: only docker and podman build this, and neither answers"
        raise UnavailableError(message, fix="start docker or podman")


def refuse_platform(platform: str, engine: str, *, prefetch: bool, base: str) -> None:
    """Raise ConfigError for what cannot be built for a platform that is not this machine's."""
    from envcheck.errors import ConfigError

    reasons = {
        "an environment runs on this machine, and the engine is venv": engine == "venv",
        "--prefetch collects the files of this machine's platform": prefetch,
        "its base is bootstrapped, but --base is registry": base == "registry",
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if reason:
        message = f"--platform {platform}: {reason}"
        raise ConfigError(message, fix="leave that out, or build on a machine of that platform")
