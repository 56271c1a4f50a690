"""Options that several commands of the store have, and how they print a size and a version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from envcheck.cli.shared import completion

if TYPE_CHECKING:
    from envcheck.mirrors.store.usage import VersionSummary

_UNITS: Final = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}

json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
cells_argument = click.argument("cells", nargs=-1, metavar="[CELL]...", shell_complete=completion.cells)
models_option = click.option(
    "--model-lock", "models", multiple=True, type=click.Path(path_type=Path), help="Every file of a model's lock."
)
mirror_option = click.option(
    "--mirror", default="user", show_default=True, help="Where what is not there is fetched from."
)
keep_option = click.option(
    "--keep", default=5, show_default=True, type=click.IntRange(1), help="Versions that are kept."
)


def format_bytes(size: int) -> str:
    """Return bytes as people read them, in powers of a thousand."""
    for unit, factor in _UNITS.items():
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def format_version(version: VersionSummary) -> str:
    """Return a version in a line."""
    if version.error:
        return f"version {version.number:<4} {'current' if version.current else '':<8} cannot be read: {version.error}"
    held = f"{version.wheels} wheel(s), {version.models} model(s), {format_bytes(version.bytes)}"
    return f"version {version.number:<4} {'current' if version.current else '':<8} {held}"
