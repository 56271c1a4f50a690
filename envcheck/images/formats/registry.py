"""The formats of cells: every other module of this folder is one, under its own name, and holds a `FORMAT`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from envcheck import data
from envcheck.errors import ConfigError
from envcheck.images import formats
from envcheck.images.spec import ImageSpec, no_lock


class FormatOptions(NamedTuple):
    """What a format may need beside the specs: the repository that the images' tags name."""

    repository: str


class CellFormat(NamedTuple):
    """How targets of cells are written in one format.

    `one` says that a file is of one target of one cell; `lockless` that cells without a lock may be left out.
    """

    render: Callable[[Sequence[ImageSpec], FormatOptions], str]
    one: bool = False
    lockless: bool = False


def names() -> tuple[str, ...]:
    """Return the name of each format, sorted; none of them is imported."""
    return data.names(formats)


def named(name: str) -> CellFormat:
    """Return the format of that name. Raises TypeError where its module has no FORMAT."""
    return data.named(formats, name, "FORMAT", CellFormat)


def written(name: str, specs: Sequence[ImageSpec], options: FormatOptions) -> str:
    """Return the text of the format, or raise ConfigError where it cannot hold these specs."""
    cell_format = named(name)
    unlocked = next((spec for spec in specs if not spec.locks), None)
    if unlocked is not None and not cell_format.lockless:
        raise no_lock(unlocked.cell, unlocked.arch)
    if cell_format.one and len(specs) != 1:
        chosen = ", ".join(f"{spec.cell} {spec.target}" for spec in specs[:3])
        message = f"--format {name} is of one target of one cell, and {len(specs)} are selected ({chosen} …)"
        raise ConfigError(message, fix="name one cell, and its --target")
    return cell_format.render([spec for spec in specs if spec.locks], options)
