"""Docker: builds by its command line, which speaks BuildKit; everything else by the SDK."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from envcheck.errors import UnavailableError
from envcheck.images.build.plan import PLATFORMS, BuildPlan
from envcheck.images.engines import Compression, cannot_run, docker_sdk, subprocesses
from envcheck.images.engines import bootstrap as bases
from envcheck.images.engines.containers import ImageInfo
from envcheck.images.engines.subprocesses import CommandResult
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.profiles.model import Profile

_PULL_TIMEOUT: Final = 1800.0
_IMPORT_TIMEOUT: Final = 600.0
# --load with another compression, for which only OCI has a media type.
_ZSTD: Final = "--output=type=docker,compression=zstd,oci-mediatypes=true"


class Docker:
    """The docker engine of DOCKER_HOST or the current context."""

    name: Final = "docker"

    def __init__(self) -> None:
        try:
            docker_sdk.client().close()
        except UnavailableError as error:
            raise UnavailableError(error.message, fix=f"{error.fix}, or use --engine venv") from error

    def answers(self) -> bool:
        """Tell whether the engine still answers."""
        try:
            docker_sdk.client().close()
        except UnavailableError:
            return False
        return True

    def frontend(self, compression: Compression = "gzip") -> list[str]:
        """Return the build command: buildx where there is such a plugin, else the client's own BuildKit."""
        if _has_buildx():
            # Provenance would make an index of the image, and tell of the machine that built it.
            command = ["docker", "buildx", "build", *_builder(), "--progress=plain", "--provenance=false"]
            return [*command, "--load" if compression == "gzip" else _ZSTD]
        if compression != "gzip":
            message = f"--compression {compression} needs the buildx plugin"
            raise UnavailableError(message, fix="install docker-buildx, or leave --compression out")
        return ["docker", "build", "--progress=plain"]

    def demand_contexts(self) -> None:
        """Raise UnavailableError where there is no buildx: the client's own builder takes no named context."""
        if not _has_buildx():
            message = "--prefetch needs a named build context, which docker supports only with the buildx plugin"
            raise UnavailableError(message, fix="install docker-buildx, or leave --prefetch out")

    def demand_platform(self, platform: str) -> None:
        """Raise UnavailableError where BuildKit lists no such platform: neither this machine's nor an emulated one."""
        listed = subprocesses.stream(["docker", "buildx", "inspect", *_builder_name()], timeout=60)
        if listed.status != 0 or platform not in platforms(listed.output):
            raise cannot_run(platform, self.name)

    def inspect(self, reference: str) -> ImageInfo | None:
        """Return what this engine holds under a reference, or None."""
        return docker_sdk.inspect(reference)

    def has_remote(self, reference: str) -> bool:
        """Tell whether a registry that answers within ten seconds has the image."""
        return docker_sdk.registry_has(reference)

    def pull(self, reference: str) -> None:
        """Fetch an image from its registry."""
        result = subprocesses.stream(["docker", "pull", "--quiet", reference], timeout=_PULL_TIMEOUT)
        if result.status != 0:
            message = f"{reference} could not be pulled{subprocesses.last_line(result)}"
            raise UnavailableError(message, fix="try `docker pull` by hand, or --base bootstrap")

    def import_base(self, spec: ImageSpec, packages: Sequence[str], profile: Profile) -> str:
        """Bootstrap the spec's base with these packages, import it and return its reference."""
        with tempfile.TemporaryDirectory(prefix="envcheck-base-") as scratch:
            tar = Path(scratch) / "rootfs.tar"
            how = bases.bootstrap(spec.base, spec.arch, packages, profile, tar)
            foreign = [] if spec.arch == os.uname().machine else [f"--platform={PLATFORMS[spec.arch]}"]
            subprocesses.output(["docker", "import", *foreign, str(tar), how.reference], timeout=_IMPORT_TIMEOUT)
        return how.reference

    def build(
        self, plans: Sequence[BuildPlan], *, on_line: Callable[[str], None], timeout: float
    ) -> list[CommandResult]:
        """Run the plans' commands at once, handing over each line of BuildKit's plain progress.

        BuildKit runs a step that is the same in builds under way once, for all of them.
        """
        argvs = [plan.argv for plan in plans]
        return subprocesses.stream_all(argvs, timeout=timeout, on_line=on_line, env={"DOCKER_BUILDKIT": "1"})

    def tag(self, image: str, reference: str) -> None:
        """Give an image one more reference."""
        docker_sdk.tag(image, reference)

    def untag(self, reference: str) -> None:
        """Take a reference away."""
        docker_sdk.untag(reference)


def _has_buildx() -> bool:
    return subprocesses.stream(["docker", "buildx", "version"], timeout=30).status == 0


def platforms(listed: str) -> list[str]:
    """Return the platforms that `docker buildx inspect` lists; a preferred one has a star."""
    lines = [line.partition(":")[2] for line in listed.splitlines() if line.startswith("Platforms:")]
    return [name.strip().rstrip("*") for line in lines for name in line.split(",")]


def _builder() -> list[str]:
    """Choose the engine's own builder, named like its context: only that one sees a base that is in no registry."""
    return [f"--builder={name}" for name in _builder_name()]


def _builder_name() -> list[str]:
    result = subprocesses.stream(["docker", "context", "show"], timeout=30)
    return [result.output.strip()] if result.status == 0 else []
