"""An image whose labels are not its spec's promises gets no tag, and the lie is named."""

import pytest

from envcheck.errors import PromiseError
from envcheck.images.lockfile import Lock
from envcheck.images.spec import ImageSpec, make_spec
from envcheck.images.tags import broken_labels, require_labels
from envcheck.matrix.facts.model import Cell, Matrix


@pytest.fixture
def spec(matrix: Matrix, locks: list[Lock]) -> ImageSpec:
    return make_spec(matrix, Cell(torch="2.8.0", variant="cu128", python="3.11"), locks)


@pytest.fixture
def labels(spec: ImageSpec) -> dict[str, str]:
    return {f"envcheck.{name}": value for name, value in spec.promises.items()}


def test_the_truth_passes_whatever_else_is_said(spec: ImageSpec, labels: dict[str, str]) -> None:
    more = {**labels, "maintainer": "site"}
    assert broken_labels(spec, more) == []
    require_labels(spec, more, "x:1")


@pytest.mark.parametrize("name", ["cell", "target", "torch", "cuda", "cudnn", "nccl", "python", "arch-list", "lock"])
def test_each_lie_is_named(spec: ImageSpec, labels: dict[str, str], name: str) -> None:
    with pytest.raises(PromiseError, match=rf"envcheck\.{name} is 0\.0, expected "):
        require_labels(spec, {**labels, f"envcheck.{name}": "0.0"}, "x:1")


def test_saying_nothing_is_a_lie(spec: ImageSpec, labels: dict[str, str]) -> None:
    del labels["envcheck.torch"]
    assert broken_labels(spec, labels) == ["envcheck.torch is absent, expected 2.8.0+cu128"]
    assert len(broken_labels(spec, {})) == len(spec.promises)
