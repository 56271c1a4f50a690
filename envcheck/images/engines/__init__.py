"""What builds and holds images, behind one interface; `venv` is the way without any."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

from envcheck.errors import UnavailableError
from envcheck.images.engines.command import Done
from envcheck.images.plan import BuildPlan
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.profile import Profile

if TYPE_CHECKING:
    from envcheck.images.engines.sdk import ImageInfo

EngineName = Literal["docker", "podman", "venv"]


class Engine(Protocol):
    """Builds images and answers for them. Errors are envcheck's."""

    @property
    def name(self) -> Literal["docker", "podman"]:
        """Return what --engine calls it."""

    def frontend(self) -> list[str]:
        """Return the build command; the plan adds the options."""

    def inspect(self, reference: str) -> ImageInfo | None:
        """Return what the engine holds under a reference or id, or None."""

    def has_remote(self, reference: str) -> bool:
        """Tell whether a registry that answers within ten seconds has the image."""

    def pull(self, reference: str) -> None:
        """Fetch an image from its registry."""

    def import_base(self, spec: ImageSpec, profile: Profile) -> str:
        """Bootstrap the spec's base, import it and return its reference."""

    def build(self, plan: BuildPlan, *, on_line: Callable[[str], None], timeout: float) -> Done:
        """Run the plan's command, handing over each line it writes."""

    def tag(self, image: str, reference: str) -> None:
        """Give an image one more reference."""

    def untag(self, reference: str) -> None:
        """Take a reference away."""


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
