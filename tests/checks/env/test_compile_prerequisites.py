"""Each thing that torch.compile needs is found where it is looked for, and missed where it is not there."""

import ctypes.util
import getpass
import importlib.util
import os
import sysconfig
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.checks import WARN, Rank
from envcheck.checks.env import compile_prerequisites, compiled
from tests import builders
from tests.tables import beside, each

CASES = beside(__file__)

RANK = Rank(0, 1, 0, "cpu", "gloo", "")
VARIABLES = ("CC", "CXX", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH", "LD_LIBRARY_PATH")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that holds all there is: compilers, headers, triton with its ptxas, and libcuda."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for name in ("bin/gcc", "bin/g++", "include/Python.h", "triton/__init__.py", "lib/libcuda.so.1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch(mode=0o755)
    (tmp_path / "triton/backends/nvidia/bin").mkdir(parents=True)
    (tmp_path / "triton/backends/nvidia/bin/ptxas").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nonexistent:{tmp_path / 'lib'}")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path / "include")})
    monkeypatch.setattr(ctypes.util, "find_library", lambda _: None)
    origin = tmp_path / "triton/__init__.py"
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda _: SimpleNamespace(origin=str(origin)) if origin.exists() else None
    )
    return tmp_path


def missing() -> list[str]:
    return [name for name, path in compile_prerequisites.measure(RANK)["found"].items() if not path]


@each(
    "gone, variable, name",
    [
        ("", "", []),
        ("triton/backends/nvidia/bin/ptxas", "", ["ptxas"]),
        ("triton/__init__.py", "", ["triton", "ptxas", "setuptools"]),
        ("lib/libcuda.so.1", "", ["libcuda.so.1"]),
        ("", "CC", ["C compiler"]),
        ("", "TRITON_PTXAS_PATH", ["ptxas"]),
        ("", "TRITON_LIBCUDA_PATH", ["libcuda.so.1"]),
    ],
)
def test_each_is_missed_by_itself(
    machine: Path, monkeypatch: pytest.MonkeyPatch, gone: str, variable: str, name: list[str]
) -> None:
    if gone:
        (machine / gone).rename(machine / "gone")
    with monkeypatch.context() as patch:
        if variable:
            patch.setenv(variable, str(machine / "nothing"))
        assert missing() == name
    if gone:
        (machine / "gone").rename(machine / gone)
    monkeypatch.setenv("CC", f"{machine / 'bin/gcc'} -O2")
    assert missing() == []


def test_places_for_code_that_take_none_and_a_user_without_a_name_are_named(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfit() -> list[str]:
        return list(compile_prerequisites.measure(RANK)["unfit"])

    monkeypatch.setenv("TRITON_CACHE_DIR", str(machine / "made/later"))
    assert unfit() == []
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("HOME", "/proc/self")  # triton writes to ~/.triton where nothing is chosen
    assert len(unfit()) == 1
    monkeypatch.setenv("TRITON_CACHE_DIR", "/proc/self")
    [said] = unfit()
    assert said.startswith("/proc/self: ")
    outcome = compile_prerequisites.judge(builders.gpu_view("t4"), [compile_prerequisites.measure(RANK)])
    assert (outcome.status, outcome.code) == (WARN, "compile-prerequisites.cache")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(machine))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    assert [said.rpartition(": ")[2] for said in unfit()] == ["mounted noexec"] * 2
    monkeypatch.undo()

    def nameless() -> str:
        raise KeyError("uid not found")  # noqa: EM101, TRY003 (pwd's own words)

    monkeypatch.setattr(getpass, "getuser", nameless)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert "has no name" in unfit()[-1]


def test_a_place_below_a_directory_that_may_not_be_searched_is_looked_for_above(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, stat = machine / "closed", os.stat
    closed.mkdir()

    def denied(path: Any, *rest: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{closed}/cache"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *rest, **options)

    monkeypatch.setattr(os, "stat", denied)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(closed / "cache/triton"))
    assert compile_prerequisites.measure(RANK)["unfit"] == []
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: denied(f"{dir}/cache"))  # noqa: A006 (its name)
    assert f"{closed}: Permission denied" in compile_prerequisites.measure(RANK)["unfit"]


@each("kind, variable, gone", [("cpu", "CXX", "g++"), ("cuda", "CC", "gcc")])
def test_a_broken_compiler_that_a_variable_names_is_tried(
    machine: Path, monkeypatch: pytest.MonkeyPatch, kind: str, variable: str, gone: str
) -> None:
    torch = SimpleNamespace(compile=None, __version__="2.8.0")
    (machine / "bin" / gone).unlink()
    assert compiled._missing(torch, RANK, kind) == [f"{'C++' if kind == 'cpu' else 'C'} compiler"]  # noqa: SLF001
    with monkeypatch.context() as patch:
        patch.setenv(variable, str(machine / "nothing"))
        assert compiled._missing(torch, RANK, kind) == []  # noqa: SLF001 (its failure is the finding)


def test_variables_that_point_somewhere_are_followed(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(machine))
    (machine / "ptxas").touch()
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(machine / "ptxas"))
    actual = compile_prerequisites.measure(RANK)["found"]
    assert (actual["libcuda.so.1"], actual["ptxas"]) == (str(machine), str(machine / "ptxas"))


def test_the_loaders_cache_comes_before_the_path(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}.so.1")
    assert compile_prerequisites.measure(RANK)["found"]["libcuda.so.1"] == "libcuda.so.1"


@each("lines, told", CASES["broken compilations"])
def test_of_a_broken_compilation_the_compilers_own_line_is_told(lines: list[str], told: int) -> None:
    assert compiled._telling(RuntimeError("\n".join(lines))) == lines[told]  # noqa: SLF001
