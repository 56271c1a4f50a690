"""The published cells are what was promised: each torch minor's newest patch from 2.4 on.

As plain pip gives it; up to 2.10 other variants too.
"""

from envcheck.matrix.facts.model import Cell, key
from envcheck.matrix.file.load import load

# Cells beyond the rule, and why.
OTHERS = {"torch2.13.0-cpu-py311": "what the tests and the demo run where there is no GPU"}
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def test_the_cells_follow_from_the_facts() -> None:
    matrix = load()
    newest = {key(release.torch)[:2]: release for release in sorted(matrix.torch, key=lambda row: key(row.torch))}
    defaults, others = {*OTHERS}, set[str]()
    for minor, release in newest.items():
        for variant in release.variants if minor >= (2, 4) else []:
            pythons = {python for build in variant.builds if build.arch == "x86_64" for python in build.python}
            cells = [Cell(torch=release.torch, variant=variant.variant, python=p) for p in PYTHONS if p in pythons]
            names = {str(cell) for cell in cells if matrix.base(cell.python)}
            if variant.variant == release.pypi["x86_64"]:
                defaults |= names
            elif minor <= (2, 10):
                others |= names
    published = {str(cell) for cell in matrix.cells()}
    assert defaults <= published <= defaults | others
