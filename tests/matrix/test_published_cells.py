"""The published cells are what was promised: each torch minor's newest patch from 2.4 on.

As plain pip gives it, and in every other variant whose hashes are known.
"""

from __future__ import annotations

from envcheck.images.known_wheels import known_cell
from envcheck.matrix.facts.model import Cell, TorchRelease, key
from envcheck.matrix.file.load import load

# Cells beyond the rule, and why.
OTHERS = {"torch2.13.0-cpu-py311": "what the tests and the demo run where there is no GPU"}
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def _known(release: TorchRelease, cell: Cell) -> bool:
    return known_cell(release, cell, {}, "x86_64") is not None


def test_the_cells_follow_from_the_facts() -> None:
    matrix = load()
    newest = {key(release.torch)[:2]: release for release in sorted(matrix.torch, key=lambda row: key(row.torch))}
    expected = {*OTHERS}
    for minor, release in newest.items():
        for variant in release.variants if minor >= (2, 4) else []:
            pythons = {python for build in variant.builds if build.arch == "x86_64" for python in build.python}
            cells = [Cell(torch=release.torch, variant=variant.variant, python=p) for p in PYTHONS if p in pythons]
            default = variant.variant == release.pypi["x86_64"]
            expected |= {str(c) for c in cells if matrix.base(c.python) and (default or _known(release, c))}
    assert {str(cell) for cell in matrix.cells()} == expected
