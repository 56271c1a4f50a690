"""Locking asks a real uv, against an index on the loopback."""

import hashlib
import runpy
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envcheck.errors import UnavailableError
from envcheck.images import lock_on_top
from envcheck.images.lock_on_top import uv_for
from envcheck.images.lock_with_uv import lock_cell, parse_pylock, platform_of
from envcheck.images.lockfile import Lock, Pin, parse_lock
from envcheck.images.spec import make_spec
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.mirrors.profiles.model import Index, Profile
from tests.http_server import Server
from tests.tables import each
from tests.wheels import wheel

CELL = Cell(torch="2.8.0", variant="cu128", python="3.11")
CPU = Cell(torch="2.8.0", variant="cpu", python="3.11")
IndexOf = Callable[[Path], str]


@pytest.fixture
def index(torch_wheels: Path, index_of: IndexOf) -> str:
    return index_of(torch_wheels)


def _profile(url: str, *torch: Index) -> Profile:
    return Profile(name="test", pypi=[Index(url=url)], pytorch=list(torch))


def test_a_cell_is_locked_with_what_the_index_serves(matrix: Matrix, index: str, torch_wheels: Path) -> None:
    locks = lock_cell(matrix, CELL, _profile(index))
    assert [(lock.group, lock.index, [pin.name for pin in lock.pins]) for lock in locks] == [
        ("nvidia", "pypi", ["nvidia-cudnn-cu12", "nvidia-nccl-cu12"]),
        ("torch", "pypi", ["torch", "torchvision"]),
        ("base", "pypi", ["numpy", "pip", "setuptools", "sympy"]),
    ]
    wheel = torch_wheels / "torch-2.8.0-py3-none-any.whl"
    assert locks[1].pins[0].sha256 == [hashlib.sha256(wheel.read_bytes()).hexdigest()]
    assert make_spec(matrix, CELL, locks).promises["cudnn"] == "9.10.2"


def test_a_companion_without_a_wheel_is_left_out(matrix: Matrix, torch_wheels: Path, index_of: IndexOf) -> None:
    (torch_wheels / "torchvision-0.23.0-py3-none-any.whl").unlink()
    assert [pin.name for pin in lock_cell(matrix, CELL, _profile(index_of(torch_wheels)))[1].pins] == ["torch"]


def test_a_local_cpu_file_never_stands_in_for_the_indexs_cuda_torch(matrix: Matrix, index: str, tmp_path: Path) -> None:
    wheel(tmp_path / "links", "torch", "2.8.0+cpu")
    links = Index(url=str(tmp_path / "links"), kind="find-links")
    assert lock_cell(matrix, CELL, _profile(index, links))[1].pins[0].version == "2.8.0"
    cpu = lock_cell(matrix, CPU, _profile(index, links))
    assert [(lock.group, lock.index) for lock in cpu] == [("torch", "pytorch/cpu"), ("base", "pypi")]
    assert cpu[0].pins[0].version == "2.8.0+cpu"


def test_a_dead_index_is_passed_over_and_only_dead_ones_are_an_error(matrix: Matrix, index: str) -> None:
    dead = Index(url="http://127.0.0.1:9/simple")
    alive = Profile(name="test", pypi=[dead, Index(url=index)])
    assert lock_cell(matrix, CELL, alive)[1].pins[0].version == "2.8.0"
    with pytest.raises(UnavailableError, match=r"cu128-py311 cannot be locked: .*127"):
        lock_cell(matrix, CELL, Profile(name="test", pypi=[dead]))


def test_another_architecture_has_the_versions_of_the_first_where_it_can(
    matrix: Matrix, torch_wheels: Path, index_of: IndexOf
) -> None:
    wheel(torch_wheels, "numpy", "2.6.0")
    wheel(torch_wheels, "sympy", "1.15.0")
    profile = _profile(index_of(torch_wheels))
    first = [Lock(group="base", index="pypi", pins=[Pin(name="numpy", version="2.5.5", sha256=[])])]
    arm = _with_aarch64(matrix)
    assert _versions(lock_cell(arm, CELL, profile, "aarch64", first)) == ["2.5.5", "1.15.0"]
    missing = [Lock(group="base", index="pypi", pins=[Pin(name="numpy", version="2.5.4", sha256=[])])]
    assert _versions(lock_cell(arm, CELL, profile, "aarch64", missing)) == ["2.6.0", "1.15.0"]


def _versions(locks: list[Lock]) -> list[str]:
    return [pin.version for pin in locks[-1].pins if pin.name in ("numpy", "sympy")]


def _with_aarch64(matrix: Matrix) -> Matrix:
    (release,) = matrix.torch
    cpu, cu128 = release.variants
    build = msgspec.structs.replace(cu128.builds[0], arch="aarch64")
    both = msgspec.structs.replace(cu128, builds=[*cu128.builds, build])
    pypi = {**release.pypi, "aarch64": "cu128"}
    return msgspec.structs.replace(matrix, torch=[msgspec.structs.replace(release, variants=[cpu, both], pypi=pypi)])


def test_the_tools_lock_has_one_version_and_the_files_of_every_python(index: str) -> None:
    lock_tool = runpy.run_path(str(Path(__file__).parents[2] / ".ci/matrix/lock_tool.py"))["lock_tool"]
    lock = lock_tool(["numpy"], ["3.10", "3.12"], _profile(index))
    assert [(pin.name, pin.version, len(pin.sha256)) for pin in lock.pins] == [("numpy", "2.5.5", 1)]


def test_a_file_without_a_hash_is_refused() -> None:
    package = b'[[packages]]\nname = "six"\nversion = "1.17.0"\n'
    good = package + b'wheels = [{ url = "x", hashes = { sha256 = "%s" } }]\n' % (b"a" * 64)
    assert parse_pylock(good)[0].sha256 == ["a" * 64]
    for bad in (package, good.replace(b"sha256", b"md5")):
        with pytest.raises(UnavailableError, match=r"no sha256 for six 1\.17\.0"):
            parse_pylock(bad)


@each(
    "glibc, platform",
    [
        ("2.35", "x86_64-manylinux_2_35"),
        ("2.41", "x86_64-manylinux_2_40"),  # the newest that uv knows
        (None, "x86_64-manylinux_2_28"),
    ],
)
def test_wheels_are_taken_for_the_c_library_of_the_base(glibc: str | None, platform: str) -> None:
    assert platform_of(glibc, "x86_64") == platform


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a wheel of a made-up uv, whose hash is the one of the lock."""
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "home"))
    path = wheel(
        tmp_path / "wheels", "uv", "9.9.9", files={"uv-9.9.9.data/scripts/uv": "#!/bin/sh\necho uv of arm64\n"}
    )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/uv.lock").write_text(f"# index: pypi\nuv==9.9.9 \\\n    --hash=sha256:{digest}\n")
    monkeypatch.setattr(lock_on_top, "data_path", lambda name: tmp_path / name)
    return path


def test_it_is_fetched_by_hash_and_kept(
    made: Path, index_of: IndexOf, serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, own = index_of(made.parent), serve(tmp_path)
    monkeypatch.setenv("UV_INDEX", f"{own.url}/simple")  # of the person, whom a closed profile asks nothing
    profile = Profile(name="t", closed=True, pypi=[Index(url=served)])
    program = uv_for("aarch64", profile)
    assert "uv of arm64" in program.read_text()
    assert own.requests == []
    assert program == tmp_path / "home/tools/uv-9.9.9-aarch64/bin/uv"
    assert uv_for("aarch64", Profile(name="nowhere", closed=True)) == program


def test_other_bytes_are_refused_and_not_kept(made: Path, index_of: IndexOf, tmp_path: Path) -> None:
    other = wheel(made.parent, "uv", "9.9.9", files={"uv-9.9.9.data/scripts/uv": "#!/bin/sh\necho another\n"})
    profile = Profile(name="t", closed=True, pypi=[Index(url=index_of(other.parent))])
    with pytest.raises(UnavailableError, match=r"uv 9\.9\.9 for aarch64, which the build runs, could not be fetched:"):
        uv_for("aarch64", profile)
    assert list((tmp_path / "home/tools").iterdir()) == []


def test_a_closed_profile_without_an_index_says_so(made: Path) -> None:
    assert made.is_file()
    with pytest.raises(UnavailableError, match="t is closed and names no Python index; pass --mirror"):
        uv_for("aarch64", Profile(name="t", closed=True))


def test_the_shipped_lock_has_a_file_for_each_architecture() -> None:
    text = (Path(__file__).resolve().parents[2] / "templates/uv.lock").read_text()
    (pin,) = parse_lock(text, "base", "uv.lock").pins
    assert (pin.name, len(pin.sha256)) == ("uv", 2)
