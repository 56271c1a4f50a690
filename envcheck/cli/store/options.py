"""Options that several store commands share, and the format of a size and a version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from envcheck.cli.shared import completion
from envcheck.counting import counted

if TYPE_CHECKING:
    from envcheck.mirrors.store.usage import VersionSummary

_UNITS: Final = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
cells_argument = click.argument("cells", nargs=-1, metavar="[CELL]...", shell_complete=completion.cells)
models_option = click.option(
    "--model-lock",
    "models",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Lock of a model: add all of its files.",
)
mirror_option = click.option("--mirror", default="user", show_default=True, help="Mirror profile for missing files.")
keep_option = click.option(
    "--keep", default=5, show_default=True, type=click.IntRange(1), help="Number of versions to keep."
)


def format_bytes(size: int) -> str:
    """Return a size as text, in powers of a thousand."""
    for unit, factor in _UNITS.items():
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def format_version(version: VersionSummary) -> str:
    """Return one line about a version."""
    if version.error:
        return f"version {version.number:<4} {'current' if version.current else '':<8} cannot be read: {version.error}"
    content = f"{counted(version.wheels, 'wheel')}, {counted(version.models, 'model')}, {format_bytes(version.bytes)}"
    return f"version {version.number:<4} {'current' if version.current else '':<8} {content}"
