"""What a build from source is given: GPUs that its nvcc can compile for, jobs by memory, and a key for all of it."""

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.errors import ConfigError, NotFoundError, PromiseError, UnavailableError
from envcheck.images import source_recipe as recipe
from envcheck.images import source_recipe as sdist
from envcheck.images.lockfile import Pin
from envcheck.images.source_compile import relabelled, require
from envcheck.images.source_recipe import ExtensionBuild, Sdist, capabilities, jobs
from envcheck.images.spec import ImageSpec
from envcheck.images.wheels import sha256
from envcheck.matrix.facts.lookup import Facts
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.net.client import hub_client
from envcheck.mirrors.profiles.model import Index, Profile
from envcheck.mirrors.store.objects import Store
from tests.elf_files import CUBIN, MadeLibrary, library
from tests.tables import beside, each, one_line
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
    with pytest.raises(ConfigError, match=one_line(says)):
        capabilities(facts, gpus, cuda, "x 1")


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


C10, OF_13 = ("libc10.so",), ("libc10.so", "libcudart.so.13")


@each(
    "cell, gpus, needed, sass, says",
    [
        (CPU, (), C10, (), ""),
        (CUDA, ("9.0",), OF_13, (90,), ""),
        (CUDA, ("8.0", "9.0"), OF_13, (80, 90), ""),
        (CUDA, ("8.6",), OF_13, (80,), ""),  # SASS runs on later minors of its major
        (CPU, (), ("libc.so.6",), (), "its libraries have symbols of torch, and are linked with none of torch's"),
        (CPU, (), OF_13, (), "it needs libraries of CUDA 13, and cpu has none"),
        (CUDA, ("9.0",), (*C10, "libcudart.so.12"), (90,), "it needs libraries of CUDA 12, and cu130 has 13.0"),
        (CUDA, ("9.0",), OF_13, (80,), "it has code for 8.0: none runs on a GPU of 9.0"),
        (CUDA, ("8.0", "9.0"), OF_13, (90,), "it has code for 9.0: none runs on a GPU of 8.0"),
        (CUDA, ("9.0",), C10, (), "it has no GPU code: none runs on a GPU of 9.0"),
    ],
)
def test_a_wheel_that_is_not_what_was_asked_for_is_not_used(
    tmp_path: Path, facts: Facts, make_build: Callable[..., ExtensionBuild], cell: str, gpus: tuple[str, ...],
    needed: tuple[str, ...], sass: tuple[int, ...], says: str,
) -> None:  # fmt: skip
    refused = pytest.raises(PromiseError, match=f"is not used: {says}") if says else contextlib.nullcontext()
    with refused:
        require(made(tmp_path, needed, sass), make_build(cell, *gpus), facts)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def build(make_build: Callable[..., ExtensionBuild], store: Store, tmp_path: Path) -> ExtensionBuild:
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


MakeSdist = Callable[..., Path]
NEEDS = '[build-system]\nrequires = ["setuptools>=61", "torch", "builder"]\nbuild-backend = "setuptools.build_meta"\n'


def test_what_builds_it_is_read_without_torch(make_sdist: MakeSdist) -> None:
    path = make_sdist(files={"pyproject.toml": NEEDS})
    assert sdist.build_requires(path, "x 1") == ["setuptools>=61", "builder"]
    assert sdist.build_requires(make_sdist(), "x 1") == ["setuptools", "wheel"]
    # A file of that name further down is another project's.
    nested = make_sdist(files={"vendored/pyproject.toml": NEEDS})
    assert sdist.build_requires(nested, "x 1") == ["setuptools", "wheel"]


@pytest.mark.parametrize("text", ["[build-system", '[build-system]\nrequires = ["not a name"]\n', "build-system = 3\n"])
def test_a_damaged_pyproject_is_one_line(make_sdist: MakeSdist, text: str) -> None:
    with pytest.raises(ConfigError, match=r"the sdist of x 1 is damaged: .+; take another version"):
        sdist.build_requires(make_sdist(files={"pyproject.toml": text}), "x 1")


@pytest.fixture
def devel(make_build: Callable[..., ExtensionBuild], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ImageSpec:
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "home"))
    return make_build("torch2.13.0-cpu-py311").devel


@pytest.fixture
def index(
    make_sdist: MakeSdist,
    tmp_path: Path,
    devel: ImageSpec,
    simple_index: Callable[[Path], Path],
    serve: Callable[[Path], Any],
) -> tuple[Path, Profile]:
    """Return the root of an index with the sdist and what builds it, and its profile."""
    held = {pin.name: pin.version for lock in devel.locks for pin in lock.pins}
    wheel(tmp_path / "wheels", "builder", "2.0")
    wheel(tmp_path / "wheels", "setuptools", held["setuptools"])
    root = simple_index(tmp_path / "wheels").parent
    path = make_sdist(files={"pyproject.toml": NEEDS})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (root / path.name).write_bytes(path.read_bytes())
    (root / "simple/scatter-ops").mkdir()
    (root / "simple/scatter-ops/index.html").write_text(
        f'<a href="../../scatter_ops-0.9.tar.gz#sha256={"b" * 64}">x</a>'
        f'<a href="../../{path.name}#sha256={digest}">x</a>'
    )
    return root, Profile(name="t", pypi=[Index(url=f"{serve(root).url}/simple")], closed=True)


def bring(store: Store, devel: ImageSpec, profile: Profile, version: str = "1.0") -> Sdist:
    means = TransferOptions(hub_client(profile))
    return sdist.bring(store, devel, "scatter-ops", version, profile, lambda _: means)


def test_a_source_is_pinned_with_what_builds_it_and_kept(
    index: tuple[Path, Profile], devel: ImageSpec, tmp_path: Path
) -> None:
    root, profile = index
    store = Store(tmp_path / "store")
    first = bring(store, devel, profile)
    assert store.sound(first.sha256)
    assert [(pin.name, pin.version) for pin in first.requires] == [("builder", "2.0")]
    (root / "simple/scatter-ops/index.html").write_text("")  # the index is not asked again
    assert bring(store, devel, profile) == first == sdist.pinned(devel, "scatter-ops", "1.0")


def test_other_bytes_than_the_pinned_ones_are_refused(
    index: tuple[Path, Profile], devel: ImageSpec, tmp_path: Path
) -> None:
    root, profile = index
    first = bring(Store(tmp_path / "store"), devel, profile)
    file = root / "scatter_ops-1.0.tar.gz"
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(PromiseError, match=r"scatter_ops-1\.0\.tar\.gz"):
        bring(Store(tmp_path / "other"), devel, profile)
    assert not Store(tmp_path / "other").has(first.sha256)


def test_a_release_without_an_sdist_is_named(index: tuple[Path, Profile], devel: ImageSpec, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"the index lists no sdist of scatter-ops 3\.0"):
        bring(Store(tmp_path / "store"), devel, index[1], "3.0")
    with pytest.raises((UnavailableError, NotFoundError)):
        bring(Store(tmp_path / "store"), devel, index[1], "0.9")  # listed, but not served


def test_an_edited_pin_is_refused(index: tuple[Path, Profile], devel: ImageSpec, tmp_path: Path) -> None:
    bring(Store(tmp_path / "store"), devel, index[1])
    (kept,) = (tmp_path / "home/sdist-locks").iterdir()
    text = kept.read_text()
    for edited in (text.replace("scatter-ops==", "other-ops=="), text[:-20], "nothing"):
        kept.write_text(edited)
        with pytest.raises(ConfigError, match="delete it: the next build makes it anew"):
            bring(Store(tmp_path / "store"), devel, index[1])
