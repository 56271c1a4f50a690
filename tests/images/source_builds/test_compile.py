"""Real sdists, compiled against a real torch with this machine's compiler: what is kept, and why another is not."""

import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from envcheck.errors import UnavailableError
from envcheck.images.build_log import FailedError
from envcheck.images.engines import subprocesses, venv
from envcheck.images.source_compile import Compiler, wheel_of
from envcheck.images.source_recipe import ExtensionBuild
from envcheck.images.wheels import sha256
from envcheck.matrix.facts.lookup import Facts
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.net.client import hub_client
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.store.objects import Store

pytestmark = pytest.mark.torch
MakeSdist = Callable[..., Path]
# torch/extension.h takes a quarter of a minute to compile; c10 alone binds to torch's C++ ABI as well.
SOURCE = """
#include <Python.h>
#include <c10/core/Device.h>
namespace at { void not_of_any_torch(); }
static PyObject* cpu(PyObject*, PyObject*) { BODY return PyUnicode_FromString(c10::Device("cpu").str().c_str()); }
static PyMethodDef methods[] = {{"cpu", cpu, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", "", -1, methods};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""
SETUP = """
import os, sys, urllib.request
FIRST
from setuptools import Extension, setup
from torch.utils.cpp_extension import include_paths, library_paths
linked = {"libraries": ["c10"], "library_dirs": library_paths()}
how = {"include_dirs": include_paths(), "extra_compile_args": ["-O0", "-std=c++20"], **linked}
module = Extension("scatter_ops._C", ["ops.cpp"], **how)
setup(name="scatter-ops", version="1.0", packages=["scatter_ops"], ext_modules=[module])
"""


class Compiling(NamedTuple):
    """A build of an sdist, the store, what is compiled with, and the lines that were printed."""

    build: ExtensionBuild
    store: Store
    compiler: Compiler
    lines: list[str]

    def wheel(self, facts: Facts) -> tuple[Path, bool]:
        """Return the wheel, and whether it was compiled now."""
        kept, new = wheel_of(self.build, self.store, facts, self.compiler, lambda _: MEANS)
        return self.store.path(kept.sha256), new


MEANS = TransferOptions(hub_client(Profile(name="t", closed=True)))
Start = Callable[..., Compiling]


@pytest.fixture
def start(
    torch_python: Path,
    make_sdist: MakeSdist,
    make_build: Callable[..., ExtensionBuild],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Start:
    """Return a function that makes an sdist; `devel` is the tests' own torch environment."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "home"))
    environment = venv.Environment(
        cell="", target="", path=str(torch_python.parents[1]), python=str(torch_python), key="", skipped=True,
        promises={}, sources=[], log=None, seconds=0,
    )  # fmt: skip
    monkeypatch.setattr(venv, "build", lambda *_, **__: environment)

    def make(first: str = "", body: str = "") -> Compiling:
        files = {
            "setup.py": SETUP.replace("FIRST", first),
            "ops.cpp": SOURCE.replace("BODY", body),
            "scatter_ops/__init__.py": "",
        }
        path = make_sdist(files=files)
        store = Store(tmp_path / "store")
        store.adopt(path, sha256(path))
        lines: list[str] = []
        monkeypatch.setenv("MAX_JOBS", "1")
        profile = Profile(name="t", closed=True)
        compiler = Compiler("venv", profile, "auto", 280.0, lambda _: None, lines.append)
        return Compiling(make_build("torch2.13.0-cpu-py311", sha256=sha256(path)), store, compiler, lines)

    return make


def test_a_source_becomes_a_wheel_that_works_and_two_builds_at_once_compile_once(
    start: Start, facts: Facts, torch_python: Path, tmp_path: Path
) -> None:
    run = start()
    results: list[tuple[Path, bool]] = []
    threads = [threading.Thread(target=lambda: results.append(run.wheel(facts))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(new for _, new in results) == [False, True]
    ((wheel, _), (other, _)) = results
    assert wheel == other
    assert "compiling scatter-ops 1.0 for torch2.13.0-cpu-py311, 1 at once" in run.lines
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import torch; from scatter_ops import _C"
    argv = [str(torch_python), "-c", f"{program}; print(_C.cpu())"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "cpu\n"
    # The next build needs no compiler any more.
    assert run._replace(compiler=run.compiler._replace(engine="none")).wheel(facts) == (wheel, False)


@pytest.mark.parametrize(
    ("first", "body", "says"),
    [
        ("", "at::not_of_any_torch();", "needs what neither torch nor the system has"),
        ("urllib.request.urlopen('http://192.0.2.1/kernels.tar')", "", "its build asks for a network, and has none"),
        ("sys.exit('c++: fatal error: Killed signal terminated program cc1plus')", "", "out of memory: the kernel kil"),
        ("os.kill(os.getppid(), 9)", "", "out of memory: the kernel killed a compiler"),
        ("sys.exit('No space left on device')", "", "the disk is full"),
        ("sys.exit('no')", "", "its source does not compile on this cell"),
    ],
)
def test_a_build_that_fails_says_why_and_leaves_nothing(
    start: Start, facts: Facts, first: str, body: str, says: str
) -> None:
    run = start(first, body)
    with pytest.raises(FailedError, match=says) as caught:
        run.wheel(facts)
    assert "\n" not in str(caught.value)
    assert not list((run.store.root / "built").glob("*.json"))
    assert [each.name for each in run.store.root.glob(".view-*")] == []
    if body:
        assert any("not_of_any_torch" in line for line in caught.value.detail)


def test_a_machine_without_a_compiler_or_headers_is_told(
    start: Start, facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start()
    monkeypatch.setattr(subprocesses, "output", lambda _: "/nonexistent\n")
    with pytest.raises(UnavailableError, match=r"/nonexistent has no Python\.h"):
        run.wheel(facts)
    monkeypatch.setattr(subprocesses, "which", lambda _: None)
    with pytest.raises(UnavailableError, match=r"this machine has no g\+\+"):
        run.wheel(facts)
