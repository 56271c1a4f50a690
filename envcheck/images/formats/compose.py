"""A compose file that starts the finished image with the GPUs and the shared memory that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from envcheck.images.formats.registry import CellFormat, FormatOptions
from envcheck.images.spec import ImageSpec
from envcheck.images.start import SHM, image, ports, title
from envcheck.templating import rendered


def compose(specs: Sequence[ImageSpec], options: FormatOptions) -> str:
    """Return the compose file of one image."""
    (spec,) = specs
    context = {
        "cell": str(spec.cell),
        "target": spec.target,
        "title": title(spec),
        "image": image(spec, options.repository),
        "gpus": spec.cuda is not None,
        "ports": ports(spec),
        "shm": SHM,
    }
    return rendered("formats/compose.yaml.j2", context)


FORMAT: Final = CellFormat(compose, one=True)
