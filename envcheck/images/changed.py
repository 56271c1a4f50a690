"""Which cells a change touches, decided from the paths that it changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final

# Folders of templates/ that no image is made from: mirror sites, and what other tools read.
NOT_OF_IMAGES: Final = frozenset({"site", "formats"})


def changed_cells(paths: Iterable[str], cells: Sequence[str]) -> list[str]:
    """Return the cells whose images these paths change, in the order given.

    A path is below the repository's top, as `git diff --name-only` writes it. images/<cell>/ and what is in it change
    that cell. A template changes every cell, unless its folder is known to be of no image. A change of matrix.yaml is
    seen in the rendered files, which `envcheck render --check` holds to it, so that it need not be read here.
    """
    parts = [PurePosixPath(path).parts for path in paths]
    if any(_is_template(path) for path in parts):
        return list(cells)
    touched = {path[1] for path in parts if path[:1] == ("images",) and path[1:]}
    return [cell for cell in cells if cell in touched]


def _is_template(path: tuple[str, ...]) -> bool:
    return path[:1] == ("templates",) and path[1:2] not in [(name,) for name in NOT_OF_IMAGES]
