"""An Apptainer definition that takes the finished image and proves it while it is converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from envcheck.images.formats.registry import CellFormat, FormatOptions
from envcheck.images.spec import LABEL_PREFIX, ImageSpec
from envcheck.images.start import image, of_a_registry, title
from envcheck.templating import rendered


def apptainer(specs: Sequence[ImageSpec], options: FormatOptions) -> str:
    """Return the definition of one image."""
    (spec,) = specs
    context = {
        "agent": "docker" if of_a_registry(options.repository) else "docker-daemon",
        "image": image(spec, options.repository),
        "labels": {f"{LABEL_PREFIX}{name}": value for name, value in sorted(spec.promises.items())},
        "title": title(spec),
        "file": f"{spec.cell}-{spec.target}",
        "nv": " --nv" if spec.cuda else "",
    }
    return rendered("formats/apptainer.def.j2", context)


FORMAT: Final = CellFormat(apptainer, one=True)
