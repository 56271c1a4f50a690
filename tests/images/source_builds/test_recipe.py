"""What a build from source is given: GPUs that its nvcc can compile for, jobs by memory, and a key for all of it."""

import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.images import source_recipe as recipe
from envcheck.images.lockfile import Pin
from envcheck.images.source_compile import relabelled, require
from envcheck.images.source_recipe import ExtensionBuild, capabilities, jobs
from envcheck.images.wheels import sha256
from envcheck.matrix.facts.lookup import Facts
from envcheck.mirrors.store.objects import Store
from tests.elf_files import CUBIN, MadeLibrary, library
from tests.tables import beside, each
from tests.wheels import wheel

CASES = beside(__file__)

GIB = 1 << 30
CPU, CUDA = "torch2.13.0-cpu-py311", "torch2.14.1-cu130-py311"


@each("gib, cores, compiler, most, number", CASES["jobs"])
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


MakeBuild = Callable[..., ExtensionBuild]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def build(make_build: MakeBuild, store: Store, tmp_path: Path) -> ExtensionBuild:
    build = make_build("torch2.13.0-cpu-py311")
    path = wheel(tmp_path, "scatter-ops")
    recipe.keep(store, build, path, sha256(path))
    return build


@pytest.mark.parametrize("change", ["cut", "another build's", "a path", "no hash", "evicted", "other bytes"])
def test_what_is_not_whole_is_not_used(store: Store, build: ExtensionBuild, change: str) -> None:
    kept = recipe.kept_wheel(store, build)
    assert kept is not None
    (path,) = (path for path in (store.root / "built").iterdir() if path.suffix == ".json")
    record = json.loads(path.read_text())
    changes = {"another build's": {"key": "b" * 64}, "a path": {"name": "../x.whl"}, "no hash": {"sha256": None}}
    if change == "cut":
        path.write_text(path.read_text()[:50])
    elif change == "evicted":
        store.evict(kept.sha256)
    elif change == "other bytes":
        store.path(kept.sha256).chmod(0o644)
        store.path(kept.sha256).write_bytes(b"x")
    else:
        path.write_text(json.dumps(record | changes[change]))
    assert recipe.kept_wheel(store, build) is None


def test_a_store_that_cannot_be_written_is_refused_before_anything_is_compiled(store: Store) -> None:
    recipe.require_writable(store)
    (store.root / "built").rename(store.root / "moved")
    (store.root / "built").write_text("")
    with pytest.raises(UnavailableError, match="a wheel that is compiled is kept there; give a store that this user"):
        recipe.require_writable(store)
