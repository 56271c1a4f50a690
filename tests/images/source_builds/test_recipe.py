"""What a build from source is given: GPUs that its nvcc can compile for, jobs by memory, and a key for all of it."""

from collections.abc import Callable

import msgspec
import pytest

from envcheck.errors import ConfigError
from envcheck.images.lockfile import Pin
from envcheck.images.source_recipe import ExtensionBuild, capabilities, jobs
from envcheck.matrix.facts.lookup import Facts
from tests.tables import each

GIB = 1 << 30
CPU, CUDA = "torch2.13.0-cpu-py311", "torch2.14.1-cu130-py311"


@each(
    "gib, cores, compiler, most, number",
    [
        (64, 32, "nvcc", None, 8),
        (63.9, 32, "nvcc", None, 7),
        (64, 4, "nvcc", None, 4),
        (7, 4, "nvcc", None, 1),  # less than one compiler needs: one is tried all the same
        (0, 4, "nvcc", None, 1),  # not read
        (12, 8, "g++", None, 4),
        (11.9, 8, "g++", None, 3),
        (64, 32, "nvcc", 2, 2),
        (16, 32, "nvcc", 64, 2),
    ],
)
def test_jobs_are_what_memory_and_cores_allow(
    gib: float, cores: int, compiler: str, most: int | None, number: int
) -> None:
    assert jobs(gib * GIB, cores, cuda=compiler == "nvcc", most=most) == number


@each(
    "gpus, cuda, says",
    [
        ([], "13.0", "x 1 must be compiled, and no GPU is named to compile it for; add --gpu"),
        (["H100"], "12.8", "x 1 must be compiled, and NVIDIA's wheels of CUDA 12 hold no nvcc; take a cell of CUDA 13"),
        (["V100"], "13.0", "nvcc of CUDA 13.0 cannot compile x 1 for V100"),
        (["H1000"], "13.0", "no GPU named 'H1000' in the matrix"),
    ],
)
def test_gpus_that_nothing_can_be_compiled_for_are_refused(facts: Facts, gpus: list[str], cuda: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        capabilities(facts, gpus, cuda, "x 1")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gpu_that_is_newer_than_the_compiler_is_refused(facts: Facts) -> None:
    row = facts.capabilities[-1]
    newer = msgspec.structs.replace(row, min_cuda="13.9")
    matrix = msgspec.structs.replace(
        facts.matrix, cuda=msgspec.structs.replace(facts.matrix.cuda, capabilities=[*facts.capabilities[:-1], newer])
    )
    gpu = next(gpu.name for gpu in matrix.gpus if gpu.cc == row.cc)
    with pytest.raises(ConfigError, match=r"nvcc of CUDA 13.0 cannot compile x 1 for .*, which needs CUDA 13.9"):
        capabilities(Facts(matrix), [gpu], "13.0", "x 1")


def test_the_key_changes_with_whatever_changes_the_wheel(make_build: Callable[..., ExtensionBuild]) -> None:
    build = make_build(CUDA, "9.0")
    pin = Pin(name="ninja", version="1", sha256=["b" * 64])
    others = [
        make_build(CUDA, "9.0", sha256="c" * 64),
        make_build(CUDA, "8.0", "9.0"),
        make_build("torch2.14.1-cu130-py312", "9.0"),
        make_build("torch2.15.0-cu132-py311", "9.0"),
        msgspec.structs.replace(build, sdist=msgspec.structs.replace(build.sdist, requires=[pin])),
    ]
    assert build.key == make_build(CUDA, "9.0").key
    assert len({build.key, *(other.key for other in others)}) == len(others) + 1
