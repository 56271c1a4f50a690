"""A compiled wheel is used only if it is of its sdist, reads whole, and has code for the GPUs that were asked for."""

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from envcheck.errors import PromiseError
from envcheck.images.source_compile import relabelled, require
from envcheck.images.source_recipe import ExtensionBuild
from envcheck.matrix.facts.lookup import Facts
from tests.elf_files import CUBIN, MadeLibrary, library
from tests.wheels import wheel

CPU, CUDA = "torch2.13.0-cpu-py311", "torch2.14.1-cu130-py311"
TORCH = "_ZN3c106Device3strB5cxx11Ev"


def made(
    tmp_path: Path, needed: Sequence[str] = ("libc10.so",), sass: Sequence[int] = (), name: str = "scatter-ops"
) -> Path:
    code = library(MadeLibrary(needed, [TORCH], code=[(CUBIN, each) for each in sass]))
    return wheel(tmp_path, name, files={"scatter_ops/_C.so": code})


def test_a_wheel_gets_a_version_that_no_index_has(tmp_path: Path) -> None:
    path = relabelled(made(tmp_path), tmp_path, "cputorch2.13")
    assert path.name == "scatter_ops-1.0+cputorch2.13-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        metadata = archive.read("scatter_ops-1.0+cputorch2.13.dist-info/METADATA").decode()
        record = archive.read("scatter_ops-1.0+cputorch2.13.dist-info/RECORD").decode()
        assert "\nVersion: 1.0+cputorch2.13\n" in metadata
        assert {line.partition(",")[0] for line in record.splitlines()} == set(archive.namelist())
    (tmp_path / "again").mkdir()
    assert relabelled(made(tmp_path), tmp_path / "again", "cputorch2.13").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("cell", "gpus", "needed", "sass"),
    [
        (CPU, (), ("libc10.so",), ()),
        (CUDA, ("9.0",), ("libc10.so", "libcudart.so.13"), (90,)),
        (CUDA, ("8.0", "9.0"), ("libc10.so", "libcudart.so.13"), (80, 90)),
        (CUDA, ("8.6",), ("libc10.so", "libcudart.so.13"), (80,)),  # SASS runs on later minors of its major
    ],
)
def test_a_wheel_that_is_what_was_asked_for_is_used(
    tmp_path: Path, facts: Facts, make_build: Callable[..., ExtensionBuild], cell: str, gpus: tuple[str, ...],
    needed: tuple[str, ...], sass: tuple[int, ...],
) -> None:  # fmt: skip
    require(made(tmp_path, needed, sass), make_build(cell, *gpus), facts)


@pytest.mark.parametrize(
    ("cell", "gpus", "needed", "sass", "says"),
    [
        (CPU, (), ("libc.so.6",), (), "its libraries have symbols of torch, and are linked with none of torch's"),
        (CPU, (), ("libc10.so", "libcudart.so.13"), (), "it needs libraries of CUDA 13, and cpu has none"),
        (CUDA, ("9.0",), ("libc10.so", "libcudart.so.12"), (90,), "it needs libraries of CUDA 12, and cu130 has 13.0"),
        (CUDA, ("9.0",), ("libc10.so", "libcudart.so.13"), (80,), "it has code for 8.0: none runs on a GPU of 9.0"),
        (
            CUDA,
            ("8.0", "9.0"),
            ("libc10.so", "libcudart.so.13"),
            (90,),
            "it has code for 9.0: none runs on a GPU of 8.0",
        ),
        (CUDA, ("9.0",), ("libc10.so",), (), "it has no GPU code: none runs on a GPU of 9.0"),
    ],
)
def test_a_wheel_that_is_not_what_was_asked_for_is_not_used(
    tmp_path: Path, facts: Facts, make_build: Callable[..., ExtensionBuild], cell: str, gpus: tuple[str, ...],
    needed: tuple[str, ...], sass: tuple[int, ...], says: str,
) -> None:  # fmt: skip
    with pytest.raises(PromiseError) as caught:
        require(made(tmp_path, needed, sass), make_build(cell, *gpus), facts)
    assert f"is not used: {says}" in str(caught.value)
