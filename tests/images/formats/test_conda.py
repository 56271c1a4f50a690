"""The conda environment: the lock's own pins, and what conda must know of CUDA."""

from typing import Any

import yaml

from envcheck.images.lockfile import parse_requirements
from tests.images.formats.cells import CPU, CUDA, specs, text
from tests.tables import each


def read(cell: str) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the whole file, conda's own packages and the lines for pip."""
    document: dict[str, Any] = yaml.safe_load(text("conda", cell))
    *own, last = document["dependencies"]
    return document, own, last["pip"]


@each("cell", [CPU, CUDA])
def test_pip_gets_the_lock_itself(cell: str) -> None:
    """Read back with the parser of requirements: each pin, and each of its hashes."""
    document, _, lines = read(cell)
    # What pip reads: conda writes the lines into a file of requirements as they are.
    requirements = "\n".join(line.replace(" --hash", " \\\n    --hash") for line in lines)
    lock = parse_requirements(requirements.encode(), "base", "environment.yml")
    assert lock.pins == [pin for group in specs(cell)[0].locks for pin in group.pins if pin.name != "pip"]
    assert document["name"] == cell
    assert document["channels"] == ["conda-forge", "nodefaults"]


def test_only_a_lock_of_the_pytorch_index_names_an_index() -> None:
    assert [line for line in read(CPU)[2] if line.startswith("-")] == [
        "--extra-index-url https://download.pytorch.org/whl/cpu"
    ]
    assert not [line for line in read(CUDA)[2] if line.startswith("-")]


def test_conda_knows_the_cuda_of_the_wheel_and_its_lowest_gpu() -> None:
    assert read(CUDA)[1] == ["python=3.12", "pip", "cuda-version=12.8", "cuda-arch=7.0"]
    assert read(CPU)[1] == ["python=3.11", "pip"]
