"""A devcontainer.json that opens a folder in the finished image."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from envcheck.images.formats.registry import CellFormat, FormatOptions
from envcheck.images.spec import ImageSpec
from envcheck.images.start import SHM, image, ports, title


def devcontainer(specs: Sequence[ImageSpec], options: FormatOptions) -> str:
    """Return the JSON of one image, for .devcontainer/devcontainer.json."""
    (spec,) = specs
    document: dict[str, Any] = {
        "name": title(spec),
        "image": image(spec, options.repository),
        "runArgs": [f"--shm-size={SHM}"],
        "customizations": {
            "vscode": {
                "extensions": ["ms-python.python"],
                "settings": {"python.defaultInterpreterPath": "/opt/venv/bin/python"},
            }
        },
    }
    if spec.cuda:
        # The tools add `--gpus all` themselves, and say which machine lacks one.
        document["hostRequirements"] = {"gpu": True}
    if ports(spec):
        document["forwardPorts"] = ports(spec)
    return json.dumps(document, indent=2) + "\n"


FORMAT: Final = CellFormat(devcontainer, one=True)
