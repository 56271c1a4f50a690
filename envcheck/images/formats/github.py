"""A matrix of GitHub Actions: one job for each target of a cell, as `strategy.matrix` takes it from `fromJSON`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from envcheck.errors import ConfigError
from envcheck.images.build import tags
from envcheck.images.build.plan import PLATFORMS
from envcheck.images.formats.registry import CellFormat, FormatOptions
from envcheck.images.spec import ImageSpec
from envcheck.matrix.facts.model import HostArch

# A matrix of more jobs fails its whole workflow (docs.github.com, "Usage limits": 256 jobs a workflow run).
MOST_JOBS: Final = 256
# GitHub's own machines; a machine of one's own is chosen in the workflow.
_RUNNERS: Final[dict[HostArch, str]] = {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}


def github(specs: Sequence[ImageSpec], options: FormatOptions) -> str:
    """Return the matrix on one line, as a step's output needs it. No spec gives an empty `include`."""
    if len(specs) > MOST_JOBS:
        message = f"{len(specs)} jobs, and GitHub takes {MOST_JOBS} in one matrix"
        raise ConfigError(message, fix="select fewer cells, or one --platform or --target at a time")
    return json.dumps({"include": [_job(spec, options) for spec in specs]}, separators=(",", ":")) + "\n"


def _job(spec: ImageSpec, options: FormatOptions) -> dict[str, Any]:
    return {
        "cell": str(spec.cell),
        "target": spec.target,
        "platform": PLATFORMS[spec.arch],
        "runner": _RUNNERS[spec.arch],
        "tag": tags.full(options.repository, spec),
        "torch": spec.cell.torch,
        "variant": spec.cell.variant,
        "python": spec.cell.python,
    }


FORMAT: Final = CellFormat(github, lockless=True)
