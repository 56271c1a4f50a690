"""Specs of published cells for the tests of formats."""

from envcheck.images.formats import written
from envcheck.images.spec import ImageSpec, load_spec, select
from envcheck.matrix.file.load import load

REPOSITORY = "registry.example/ml/torch"
CPU, CUDA = "torch2.13.0-cpu-py311", "torch2.8.0-cu128-py312"


def specs(*cells: str) -> list[ImageSpec]:
    matrix = load()
    return [load_spec(matrix, cell) for cell in select(matrix, cells)]


def text(name: str, cell: str, repository: str = REPOSITORY) -> str:
    return written(name, specs(cell), repository)
