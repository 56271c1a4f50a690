"""Podman: the same interface by its command line. Its builder is Buildah, so there is no BuildKit progress."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from envcheck.errors import UnavailableError
from envcheck.images.build.plan import PLATFORMS, BuildPlan
from envcheck.images.engines import Compression, cannot_run, digests, subprocesses
from envcheck.images.engines import bootstrap as bases
from envcheck.images.engines.containers import ImageInfo
from envcheck.images.engines.subprocesses import CommandResult
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.profiles.model import Profile

_PULL_TIMEOUT: Final = 1800.0
_IMPORT_TIMEOUT: Final = 600.0


class Podman:
    """The podman of this user."""

    name: Final = "podman"

    def __init__(self) -> None:
        result = subprocesses.stream(["podman", "info"], timeout=30)
        if result.status != 0:
            message = "podman does not work here (`podman info` fails)"
            raise UnavailableError(message, fix="run it by hand to see why, or use --engine docker or venv")

    def answers(self) -> bool:
        """Tell whether podman still answers."""
        return subprocesses.stream(["podman", "info"], timeout=30).status == 0

    def frontend(self, compression: Compression = "gzip") -> list[str]:
        """Return the build command; the docker format keeps what the OCI format has no place for.

        Buildah knows a RUN by its text and not by what is mounted: its cache would give one lock's layer for another's.
        """
        if compression != "gzip":
            message = f"--compression {compression}: podman compresses layers when it pushes them"
            raise UnavailableError(message, fix=f"leave it out, and `podman push --compression-format {compression}`")
        return ["podman", "build", "--format=docker", "--pull=missing", "--no-cache"]

    def demand_contexts(self) -> None:
        """Raise UnavailableError where this podman is older than 4.2 and takes no named context."""
        if "--build-context" not in subprocesses.stream(["podman", "build", "--help"], timeout=30).output:
            message = "--prefetch needs a named build context, which this podman does not support"
            raise UnavailableError(message, fix="use podman 4.2 or later, or leave --prefetch out")

    def demand_platform(self, platform: str) -> None:
        """Raise UnavailableError where the kernel starts no emulator for the platform's programs (binfmt_misc)."""
        machine = next(arch for arch, name in PLATFORMS.items() if name == platform)
        if machine != os.uname().machine and not _emulated(machine):
            raise cannot_run(platform, self.name)

    def inspect(self, reference: str) -> ImageInfo | None:
        """Return what podman holds under a reference, or None."""
        result = subprocesses.stream(["podman", "image", "inspect", reference], timeout=60)
        return image_info(json.loads(result.output)[0]) if result.status == 0 else None

    def has_remote(self, reference: str) -> bool:
        """Tell whether a registry that answers within ten seconds has the image."""
        return subprocesses.stream(["podman", "manifest", "inspect", reference], timeout=10).status == 0

    def pull(self, reference: str) -> None:
        """Fetch an image from its registry."""
        result = subprocesses.stream(["podman", "pull", "--quiet", reference], timeout=_PULL_TIMEOUT)
        if result.status != 0:
            message = f"{reference} could not be pulled{subprocesses.last_line(result)}"
            raise UnavailableError(message, fix="try `podman pull` by hand, or --base bootstrap")

    def import_base(self, spec: ImageSpec, packages: Sequence[str], profile: Profile) -> str:
        """Bootstrap the spec's base with these packages, import it and return its reference."""
        with tempfile.TemporaryDirectory(prefix="envcheck-base-") as scratch:
            tar = Path(scratch) / "rootfs.tar"
            how = bases.bootstrap(spec.base, spec.arch, packages, profile, tar)
            foreign = [] if spec.arch == os.uname().machine else [f"--arch={bases.DEB_ARCH[spec.arch]}"]
            argv = ["podman", "import", "--quiet", *foreign, str(tar), how.reference]
            subprocesses.output(argv, timeout=_IMPORT_TIMEOUT)
        return how.reference

    def build(
        self, plans: Sequence[BuildPlan], *, on_line: Callable[[str], None], timeout: float
    ) -> list[CommandResult]:
        """Run the plans' commands one after another, handing over each line they write: Buildah shares no step."""
        deadline = time.monotonic() + timeout
        return [
            subprocesses.stream(plan.argv, timeout=max(1.0, deadline - time.monotonic()), on_line=on_line)
            for plan in plans
        ]

    def tag(self, image: str, reference: str) -> None:
        """Give an image one more reference."""
        subprocesses.output(["podman", "tag", image, reference])

    def untag(self, reference: str) -> None:
        """Take a reference away."""
        subprocesses.stream(["podman", "untag", reference, reference], timeout=60)


def _emulated(machine: str) -> bool:
    entry = Path(f"/proc/sys/fs/binfmt_misc/qemu-{machine}")
    return entry.is_file() and entry.read_text(encoding="utf-8").startswith("enabled")


def image_info(inspected: dict[str, Any]) -> ImageInfo:
    """Read one entry of `podman image inspect`."""
    config = inspected.get("Config") or {}
    return ImageInfo(
        id=str(inspected.get("Id", "")),
        size=int(inspected.get("Size") or 0),
        tags=list(inspected.get("RepoTags") or []),
        labels=dict(inspected.get("Labels") or {}),
        env=dict(pair.split("=", 1) for pair in config.get("Env") or []),
        user=str(config.get("User") or ""),
        layers=list((inspected.get("RootFS") or {}).get("Layers") or []),
        command=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        digests=digests.of_podman(inspected),
    )
