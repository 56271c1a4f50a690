"""What a target adds to a cell, as a function of the cell's CUDA."""

import re

from envcheck.images.lockfile import version_of
from envcheck.images.spec import load_specs
from envcheck.images.targets import cuda_compilers, requirements_of
from envcheck.matrix.facts.lookup import nvcc_in_wheels
from envcheck.matrix.file.load import load
from tests.tables import each


@each(
    "cuda, wheels",
    [
        ("11.8", {"nvidia-cuda-nvcc-cu11", "nvidia-cuda-cccl-cu11"}),
        ("12.1", {"nvidia-cuda-nvcc-cu12", "nvidia-cuda-cccl-cu12"}),
        ("12.9", {"nvidia-cuda-nvcc-cu12", "nvidia-cuda-cccl-cu12"}),
        ("13.0", {"nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl"}),
        ("13.2", {"nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl"}),
        ("14.0", set()),
    ],
)
def test_compilers_are_those_of_the_same_minor_cuda(cuda: str, wheels: set[str]) -> None:
    assert set(cuda_compilers(cuda)) == {f"{name}=={cuda}.*" for name in wheels}
    assert nvcc_in_wheels(cuda) == ("nvidia-nvvm" in wheels or not wheels)


def test_devel_wants_a_cuda_compiler_only_for_a_wheel_with_cuda() -> None:
    without = requirements_of("devel", None)
    assert not any(name.startswith("nvidia-") for name in without)
    assert requirements_of("devel", "13.0") == [*without, *cuda_compilers("13.0")]
    assert requirements_of("runtime", "13.0") == []


def test_every_published_devel_holds_the_compilers_of_its_own_cuda() -> None:
    facts = load()
    specs = [spec for cell in facts.cells() for spec in load_specs(facts, cell) if spec.target == "devel"]
    assert specs
    for spec in (spec for spec in specs if spec.promises["cuda"] != "none"):
        for wheel in (requirement.partition("==")[0] for requirement in cuda_compilers(spec.promises["cuda"])):
            version = version_of(spec.locks, re.escape(wheel))
            assert version is not None, (spec.cell, wheel)
            # The headers of CCCL go by their own version where torch itself asks for newer ones.
            assert "cccl" in wheel or version.startswith(f"{spec.promises['cuda']}."), (spec.cell, wheel, version)
