"""What holds for every question, not only for the ones we thought of."""

import random
import re
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.matrix.facts.model import Cell, Matrix, branch, key
from envcheck.matrix.file.load import loads
from envcheck.matrix.resolver.resolve import Query, resolve
from envcheck.matrix.resolver.verdict import LEGAL
from tests.tables import each

MATRIX = loads((Path(__file__).parents[3] / "matrix.yaml").read_bytes())
CUDA_CELLS = [(release.torch, v.variant) for release in MATRIX.torch for v in release.variants if v.cuda]
THRESHOLDS = sorted(
    {row.floor for row in MATRIX.cuda.families}
    | {row.native_driver for row in MATRIX.cuda.minors if row.native_driver.count(".")}
    | {first for gpu in MATRIX.gpus for first in gpu.first_driver.values()},
    key=key,
)
DRIVERS = st.sampled_from(
    [*THRESHOLDS, *(f"{row.branch}.{patch}" for row in MATRIX.drivers for patch in ("10", "99.99", "250.01"))]
)
CELLS = st.sampled_from(CUDA_CELLS)
GPUS = st.sampled_from(MATRIX.gpus)


@settings(max_examples=200, deadline=None)
@given(cell=CELLS, gpu=GPUS, drivers=st.tuples(DRIVERS, DRIVERS))
def test_a_newer_driver_takes_nothing_away_but_a_dropped_generation(
    cell: tuple[str, str], gpu: Any, drivers: tuple[str, str]
) -> None:
    older, newer = sorted(drivers, key=key)
    query = Query(torch=cell[0], variant=cell[1], gpus=[gpu.name], driver=older)
    before, after = resolve(MATRIX, query), resolve(MATRIX, query.replace(driver=newer))
    if before.verdict not in LEGAL or after.verdict in LEGAL:
        return
    # Two facts of NVIDIA's own are not monotone: a later branch may have been cut before a GPU was added to an earlier
    # one, and the branches that a cuda-compat package works on have gaps.
    listed = sorted(gpu.first_driver, key=key)
    first = gpu.first_driver.get(branch(newer))
    cut_before = first is not None and key(newer) < key(first)
    skipped = first is None and bool(listed) and key(branch(newer)) < key(listed[-1])
    needed_package = before.verdict == "forward-compat-required"
    assert after.verdict == "gpu-dropped-by-driver" or cut_before or skipped or needed_package


@each("cell", [str(cell) for cell in MATRIX.cells()])
def test_every_published_cell_resolves(cell: str) -> None:
    parsed = Cell.parse(cell)
    assert parsed is not None
    resolution = resolve(MATRIX, Query(torch=parsed.torch, variant=parsed.variant, python=parsed.python, arch="x86_64"))
    assert (resolution.verdict, resolution.cell) == ("ok", cell)


@settings(max_examples=100, deadline=None)
@given(
    cell=CELLS, gpus=st.lists(GPUS, max_size=2), driver=DRIVERS, python=st.sampled_from([None, "3.8", "3.11", "3.14"])
)
def test_every_alternative_is_legal_when_asked_for(
    cell: tuple[str, str], gpus: list[Any], driver: str, python: str | None
) -> None:
    names = [gpu.name for gpu in gpus]
    query = Query(torch=cell[0], variant=cell[1], gpus=names, driver=driver, python=python, arch="x86_64")
    for offer in resolve(MATRIX, query).alternatives:
        parsed = Cell.parse(offer.cell)
        assert parsed is not None
        changed = query.replace(torch=parsed.torch, variant=parsed.variant, python=parsed.python)
        version = re.search(r"driver (?:>= )?([0-9.]+)$", offer.change)
        if version:
            changed = changed.replace(driver=version[1])
        if offer.change.startswith("without the "):
            missing = offer.change.removeprefix("without the ")
            changed = changed.replace(gpus=[name for name in names if name != missing])
        resolution = resolve(MATRIX, changed)
        assert (resolution.verdict, resolution.cell) == (offer.verdict, offer.cell)
        assert resolution.verdict in LEGAL


def _shuffled(matrix: Matrix, seed: int) -> Matrix:
    order = random.Random(seed)  # noqa: S311 (an order, no secret)

    def mixed(value: Any) -> Any:
        if isinstance(value, dict):
            names = list(value)
            order.shuffle(names)
            return {name: mixed(value[name]) for name in names}
        if isinstance(value, list):
            order.shuffle(rows := [mixed(item) for item in value])
            return rows
        return value

    return msgspec.convert(mixed(msgspec.to_builtins(matrix)), Matrix)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    gpus=st.lists(GPUS, max_size=2),
    driver=DRIVERS,
    torch=st.sampled_from([None, "2.8", "<2.7"]),
)
def test_the_answer_does_not_depend_on_the_order_of_facts(
    seed: int, gpus: list[Any], driver: str, torch: str | None
) -> None:
    query = Query(torch=torch, gpus=[gpu.name for gpu in gpus], driver=driver, arch="x86_64")
    assert resolve(_shuffled(MATRIX, seed), query) == resolve(MATRIX, query)
