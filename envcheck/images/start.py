"""What it takes to start a finished image: its name, and what GPUs, loaders of data and servers need."""

from __future__ import annotations

import re
from typing import Final

from envcheck.images.build import tags
from envcheck.images.spec import ImageSpec

# Worker processes of a DataLoader pass tensors through /dev/shm, of which a container has 64 MB by default.
SHM: Final = "8g"
JUPYTER_PORT: Final = 8888
SSH_PORT: Final = 2222
_HOST: Final = re.compile(r"(?:localhost|[^/]*[.:][^/]*)/")


def title(spec: ImageSpec) -> str:
    """Return a name for people."""
    return f"PyTorch {spec.promises['torch']}, Python {spec.cell.python}, {spec.target}"


def image(spec: ImageSpec, repository: str) -> str:
    """Return the image's full tag."""
    return tags.full(repository, spec)


def of_a_registry(repository: str) -> bool:
    """Tell whether the name begins with a registry's host; a name without one is an image of the local engine."""
    return bool(_HOST.match(repository))


def ports(spec: ImageSpec) -> list[int]:
    """Return the ports on which a target can listen once it was asked to."""
    return [JUPYTER_PORT, SSH_PORT] if spec.target == "jupyter" else []
