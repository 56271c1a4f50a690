"""The published cells are what was promised: each torch minor's newest patch from 2.4 on, as plain pip gives it."""

from __future__ import annotations

from envcheck.matrix.facts.versions import key
from envcheck.matrix.file.load import load

# Cells beyond the rule, and why.
OTHERS = {"torch2.13.0-cpu-py311": "what the tests and the demo run where there is no GPU"}
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def test_the_cells_follow_from_the_facts() -> None:
    matrix = load()
    newest = {key(release.torch)[:2]: release for release in sorted(matrix.torch, key=lambda row: key(row.torch))}
    expected = {*OTHERS}
    for minor, release in newest.items():
        variant = release.variant(release.pypi["x86_64"])
        assert variant is not None
        pythons = {python for build in variant.builds if build.arch == "x86_64" for python in build.python}
        chosen = [p for p in PYTHONS if p in pythons and matrix.base(p)] if minor >= (2, 4) else []
        expected |= {f"torch{release.torch}-{variant.variant}-py{p.replace('.', '')}" for p in chosen}
    assert {str(cell) for cell in matrix.cells()} == expected
