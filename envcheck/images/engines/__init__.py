"""What builds and holds images, behind one interface; `venv` is the way without any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, Protocol

from envcheck.errors import ConfigError, UnavailableError
from envcheck.images.engines.subprocesses import CommandResult
from envcheck.images.plan import BuildPlan
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.profiles.model import Profile

if TYPE_CHECKING:
    from envcheck.images.engines.containers import BindMount, ImageInfo

EngineName = Literal["docker", "podman", "venv"]


class Engine(Protocol):
    """Builds images and answers for them. Errors are envcheck's."""

    @property
    def name(self) -> Literal["docker", "podman"]:
        """Return what --engine calls it."""

    def answers(self) -> bool:
        """Tell whether the engine still answers."""

    def frontend(self) -> list[str]:
        """Return the build command; the plan adds the options."""

    def demand_contexts(self) -> None:
        """Raise UnavailableError where the build command takes no named context (--build-context)."""

    def demand_platform(self, platform: str) -> None:
        """Raise UnavailableError where the engine runs no program of a platform ("linux/arm64")."""

    def inspect(self, reference: str) -> ImageInfo | None:
        """Return what the engine holds under a reference or id, or None."""

    def has_remote(self, reference: str) -> bool:
        """Tell whether a registry that answers within ten seconds has the image."""

    def pull(self, reference: str) -> None:
        """Fetch an image from its registry."""

    def import_base(self, spec: ImageSpec, packages: Sequence[str], profile: Profile) -> str:
        """Bootstrap the spec's base with these packages, import it and return its reference."""

    def build(
        self, plans: Sequence[BuildPlan], *, on_line: Callable[[str], None], timeout: float
    ) -> list[CommandResult]:
        """Run each plan's command, handing over each line it writes: at once where that runs a shared step only once.

        `timeout` is for all of them. Return their results in order.
        """

    def tag(self, image: str, reference: str) -> None:
        """Give an image one more reference."""

    def untag(self, reference: str) -> None:
        """Take a reference away."""


class RunningContainer(Protocol):
    """A started container. When this process dies it reads end of file."""

    def wait(self, timeout: float) -> int | None:
        """Return the exit status, or None when it still runs after `timeout` seconds."""

    def out_of_memory(self) -> bool:
        """Tell whether the kernel ended it for its memory limit."""

    def logs(self) -> str:
        """Return the last lines it wrote."""

    def close(self) -> None:
        """End it if it still runs, and remove it."""


class Containers(Protocol):
    """Runs containers of local images: the SDK for docker, the command line for podman."""

    def inspect(self, image: str) -> ImageInfo | None:
        """Return what is held under a reference or id, or None."""

    def history(self, image: str) -> list[str]:
        """Return how a local image was made: the instruction of each layer, the last one first."""

    def run_container(
        self,
        image: str,
        *,
        argv: Sequence[str],
        mounts: Sequence[BindMount],
        shm_size: str | None,
        gpus: bool,
        user: str | None,
    ) -> RunningContainer:
        """Start a container; `argv` replaces the image's entrypoint and command."""


def cannot_run(platform: str, engine: str) -> UnavailableError:
    """Return the error of an engine that runs no program of a platform, with what to do."""
    message = f"{engine} runs no {platform} programs here"
    fix = "install qemu-user-static, or build on such a machine"
    return UnavailableError(message, fix=fix)


# What makes an engine pass a node's GPUs in.
GPUS: Final = {"docker": "--gpus all", "podman": "--device nvidia.com/gpu=all"}


def local_name(engine: str, image: str) -> str:
    """Return an image's name as this engine alone has it: podman keeps what it built under localhost/."""
    first = image.partition("/")[0]
    hosted = "." in first or ":" in first or first == "localhost"
    return f"localhost/{image}" if engine == "podman" and not hosted else image


def holder(image: str) -> tuple[Containers, ImageInfo]:
    """Return what can run a local image, and what it says of it: docker where it holds it, else podman."""
    from envcheck.images.engines import docker, podman  # noqa: PLC0415 (the SDK takes a third of a second)

    silent: UnavailableError | None = None
    try:
        image_info = docker.inspect(image)
    except UnavailableError as error:
        silent = error
    else:
        if image_info is not None:
            return docker, image_info
    with suppress(UnavailableError):
        image_info = podman.inspect(image)
        if image_info is not None:
            return podman, image_info
        silent = None
    if silent is not None:
        raise silent
    message = f"no image {image} in this machine's engine"
    raise ConfigError(message, fix=f"build it (envcheck build) or `docker pull {image}`")


def find(name: str = "auto") -> EngineName:
    """Return the engine meant by a name. `auto`: docker when one answers, else podman, else venv; none is started."""
    if name == "auto":
        return next((engine for engine in ("docker", "podman") if _works(engine)), "venv")
    if name in {"docker", "podman"}:
        connect(name)
    return name  # type: ignore[return-value]  # the command line allows no other


def connect(name: str) -> Engine:
    """Return the docker or podman engine; UnavailableError says what is missing."""
    if name == "docker":
        from envcheck.images.engines.docker import Docker  # noqa: PLC0415 (its SDK takes a third of a second)

        return Docker()
    from envcheck.images.engines.podman import Podman  # noqa: PLC0415 (imports the SDK too)

    return Podman()


def _works(name: str) -> bool:
    try:
        connect(name)
    except UnavailableError:
        return False
    return True
