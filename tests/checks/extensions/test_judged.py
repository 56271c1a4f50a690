"""Each failure that users of extensions report is found by what is on disk: the symptom in, cause and remedy out."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Outcome, View, installed_judge
from envcheck.checks.env import extensions
from envcheck.checks.extensions.installed import KNOWN, nvcc
from envcheck.matrix.extensions.file import load
from tests import index_wheels
from tests.elf_files import CUBIN, PTX, MadeLibrary, library
from tests.tables import each

Node = Callable[..., View]
PYTHON = {"name": "cpython", "version": [3, 12], "free_threaded": False, "machine": "x86_64"}
SYMBOL = "_ZN3c1013MessageLoggerC1EPKciib"
OLD = "_ZN3c105ErrorC2ENS_14SourceLocationESs"
LIBRARY = {"path": "x/_C.so", "missing": [], "undefined": [], "glibc": "2.17", "sass": ["8.0", "9.0"], "ptx": []}


def row(name: str = "flash-attn", library: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return what was measured of an extension that fits, with changes."""
    base = {"name": name, "version": "1.0", "listed": True, "tags": ["cp312-cp312-linux_x86_64"], "requires": []}
    more = {"other_python": [], "unread": {}, "undefined": {"count": 0, "symbols": {}}}
    return {**base, **more, "libraries": [{**LIBRARY, **(library or {})}], **changes}


def outcome(view: View, *rows: dict[str, Any], **changes: Any) -> Outcome:
    environment = {"rank": 0, "interpreter": PYTHON, "glibc": "2.36", "torch": "2.13.0+cu130", "installed": {}}
    return extensions.judge(view, [{**environment, "extensions": list(rows), **changes}])


def undefined(symbol: str, shown: str) -> dict[str, Any]:
    return {"library": {"undefined": [symbol]}, "undefined": {"count": 3, "symbols": {symbol: shown}}}


@pytest.fixture
def gpu(node: Node) -> View:
    """Return eight H100 with a torch for CUDA 13."""
    view = node("h100x8")
    return dataclasses.replace(view, environment={**view.environment, "torch": "2.13.0+cu130", "cuda": "13.0"})


FAILURES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "1 undefined symbol": (
        row("torchcodec", **undefined(SYMBOL, "c10::MessageLogger::MessageLogger(char const*, int, int, bool)")),
        "torch-abi",
        "x/_C.so needs c10::MessageLogger::MessageLogger(char const*, int, int, bool) and 2 more",
        "built for another torch: install torchcodec==",
    ),
    "2 old C++ strings": (
        row(**undefined(OLD, "c10::Error::Error(c10::SourceLocation, std::string)")),
        "torch-abi",
        "c10::Error::Error",
        "old C++ string ABI (cxx11abi=0)",
    ),
    "3 libcudart.so.12 is not there": (
        row("xformers", {"missing": ["libcudart.so.12"]}),
        "cuda-major",
        "needs libcudart.so.12, which nothing here brings: torch 2.13.0+cu130 is for CUDA 13.0",
        "built for another CUDA than torch",
    ),
    "4 no kernel image": (
        row("faiss-gpu-cu12", {"sass": ["7.0", "8.0"]}, libraries=[{**LIBRARY, "sass": ["7.0", "7.5"]}]),
        "no-gpu-code",
        "no code runs on compute capability 9.0: it has code for 7.0 7.5",
        "install a faiss-gpu-cu12 with code for 9.0",
    ),
    "5 torch was replaced": (
        row("vllm", requires=["torch==2.14.0"]),
        "pins",
        "vllm 1.0 requires torch==2.14.0, and 2.13.0+cu130 is installed",
        "a later install moved torch",
    ),
    "7 another triton": (
        row("mamba-ssm", requires=["triton>=3.5.0"]),
        "pins",
        "requires triton>=3.5.0, and 3.4.0 is installed",
        "a later install moved triton",
    ),
    "8 a wheel for another Python": (
        row(tags=["cp311-cp311-linux_x86_64"]),
        "no-python",
        "its wheel is for cp311-cp311, and this is Python 3.12",
        "flash-attn",
    ),
    "9 built against another torch": (
        row("mamba-ssm", tags=[], **undefined(SYMBOL, "c10::MessageLogger")),
        "torch-abi",
        "which torch 2.13.0+cu130 does not define",
        "built for another torch",
    ),
    "10 an import error that is swallowed": (
        row("torchao", **undefined(SYMBOL, "c10::MessageLogger")),
        "torch-abi",
        "torchao 1.0: x/_C.so needs c10::MessageLogger",
        "install torchao==",
    ),
    "11 GLIBC_2.32 is not found": (
        row(library={"glibc": "2.38"}),
        "glibc",
        "needs GLIBC_2.38, and this system has 2.36",
        "use a base with glibc 2.38",
    ),
}


@pytest.mark.parametrize("symptom", FAILURES)
def test_a_known_failure_has_its_cause_and_its_remedy(gpu: View, symptom: str) -> None:
    measured, word, cause, remedy = FAILURES[symptom]
    result = outcome(gpu, measured, installed={"torch": "2.13.0+cu130", "triton": "3.4.0"})
    assert (result.status, result.code, result.value is not None) == (FAIL, f"extensions.{word}", True), result
    assert cause in result.summary
    assert remedy in result.remedy


def compiler(cuda: str = "", why: str = "") -> dict[str, str]:
    return {"path": "/opt/cuda/bin/nvcc", "cuda": cuda, "why": why}


@pytest.mark.parametrize(
    ("actual", "status", "says"),
    [
        (compiler(why="there is no nvcc"), WARN, "compiled at first use: nvcc and ninja are needed at run time; there"),
        (compiler("12.8"), WARN, "/opt/cuda/bin/nvcc is of CUDA 12.8, and torch is for CUDA 13.0"),
        (compiler("13.2"), PASS, "deepspeed 0.19.8"),
        (compiler("130"), WARN, "is of CUDA 130"),
    ],
)
def test_what_compiles_at_first_use_is_named_where_nvcc_does_not_fit(
    gpu: View, actual: dict[str, str], status: str, says: str
) -> None:
    result = outcome(gpu, row("deepspeed", version="0.19.8", libraries=[], tags=[]), nvcc=actual)
    assert (result.status, says in result.summary) == (status, True), result
    if status == WARN:
        assert (result.code, result.culprit) == ("extensions.jit", "deepspeed")
        assert result.remedy == "use the target `devel`, or install nvcc 13.0"


def test_what_holds_its_kernels_compiles_nothing_at_first_use(gpu: View) -> None:
    lacking, flashinfer = compiler(why="there is no nvcc"), row("flashinfer-python", version="0.7.2", libraries=[])
    assert outcome(gpu, flashinfer, nvcc=lacking).code == "extensions.jit"
    assert outcome(gpu, flashinfer, nvcc=lacking, installed={"flashinfer-jit-cache": "0.7.2"}).status == PASS
    assert outcome(gpu, row("deepspeed", version="0.19.8"), nvcc=lacking).status == PASS  # DS_BUILD_OPS=1
    assert outcome(gpu, row("sglang", version="0.5.14", libraries=[]), nvcc=lacking).status == PASS
    for version in ("0.17", "0.30"):  # not on record: as the nearest release that is
        assert outcome(gpu, row("deepspeed", version=version, libraries=[]), nvcc=lacking).status == WARN


def test_what_compiles_for_cuda_at_first_use_is_skipped_beside_a_torch_for_the_cpu(node: Node) -> None:
    view = dataclasses.replace(node("cpu"), environment={"torch": "2.13.0+cpu", "cuda": None})
    assert not view.environment.get("cuda")
    lacking = compiler(why="there is no nvcc")
    result = outcome(view, row("deepspeed", version="0.19.8", libraries=[], tags=[]), nvcc=lacking, torch="2.13.0+cpu")
    assert (result.status, result.code) == (SKIP, "extensions.cpu-torch")


@pytest.mark.parametrize(
    ("script", "cuda", "why"),
    [
        ("echo 'Cuda compilation tools, release 12.8, V12.8.93'", "12.8", ""),
        ("echo 'release 13.0, V13.0.88'; exit 1", "", "does not say its version"),
        ("echo nonsense", "", "does not say its version"),
        (None, "", "does not exist"),
    ],
)
def test_nvcc_is_the_one_that_torch_would_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, cuda: str, why: str
) -> None:
    path = tmp_path / "bin/nvcc"
    path.parent.mkdir()
    if script is not None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    by_home = nvcc()
    assert (by_home.path, by_home.cuda, why in by_home.why) == (str(path), cuda, True), by_home
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    if script is not None:
        assert nvcc() == by_home


def test_a_release_whose_libraries_are_gone_is_an_error(gpu: View) -> None:
    result = outcome(gpu, row("torchcodec", version="0.13.0+cu130", libraries=[]))
    assert (result.status, result.code) == (ERROR, "extensions.not-looked-at")
    assert "no library of it was found, and its wheels have some" in result.summary
    bundled = [{**LIBRARY, "path": "torchcodec.libs/libpng16-37856f38.so.16"}]
    assert outcome(gpu, row("torchcodec", version="0.13.0", libraries=bundled)).status == ERROR
    assert outcome(gpu, row("torchcodec", version="0.13.0")).status == PASS
    assert outcome(gpu, row("numba-cuda", version="0.20.1", libraries=[])).status == PASS  # pure Python


def test_a_requirement_that_cannot_be_read_is_no_pass(gpu: View) -> None:
    result = outcome(gpu, row("vllm", requires=["torch (==2.9.1"]))
    assert (result.status, result.code) == (ERROR, "extensions.not-looked-at")
    assert outcome(gpu, row("vllm", requires=["torch (>=2.0)"]), installed={"torch": "2.13.0"}).status == PASS


def test_extensions_that_exclude_each_other_are_named(gpu: View) -> None:
    result = outcome(gpu, row("sglang", requires=["flashinfer-python==0.7.2"]), installed={"flashinfer-python": "0.6"})
    assert (result.status, result.code) == (WARN, "extensions.pins")
    assert "two environments" in result.remedy


def test_what_fits_is_no_finding(gpu: View, cpu: View) -> None:
    assert outcome(gpu, row()).status == PASS
    assert outcome(gpu, row(library={"glibc": "2.36"})).status == PASS
    result = outcome(cpu, row())
    assert (result.status, result.code) == (SKIP, "extensions.cpu-only")
    assert outcome(cpu, row(library={"sass": []})).status == PASS
    assert outcome(cpu).code == "extensions.none"


def test_one_library_of_several_for_cuda_is_enough(gpu: View) -> None:
    lacking = {**LIBRARY, "path": "x/libx_cuda118.so", "missing": ["libcudart.so.11.0"]}
    fitting = {**LIBRARY, "path": "x/libx_cuda130.so"}
    assert outcome(gpu, row("bitsandbytes", libraries=[lacking, fitting])).status == PASS
    assert outcome(gpu, row("bitsandbytes", libraries=[lacking])).code == "extensions.cuda-major"


def test_a_lazy_package_on_a_torch_for_the_cpu_is_skipped(cpu: View) -> None:
    result = outcome(cpu, row("torchao", {"missing": ["libcudart.so.13"]}), torch="2.13.0+cpu")
    assert (result.status, result.code) == (SKIP, "extensions.cpu-torch")
    assert outcome(cpu, row("torchaudio", {"missing": ["libcudart.so.13"]}), torch="2.13.0+cpu").status == FAIL


@pytest.mark.parametrize(("driver", "status"), [("580.65.06", PASS), ("550.54.15", FAIL)])
def test_ptx_counts_only_where_the_driver_compiles_it(
    gpu: View, put: Callable[..., View], driver: str, status: str
) -> None:
    view = put(gpu, **{"driver.version": driver})
    result = outcome(view, row(library={"sass": ["8.0"][:0], "ptx": ["8.0"]}))
    assert result.status == status, result
    assert result.code == ("" if status == PASS else "extensions.ptx")


@pytest.mark.parametrize("broken", [{}, {"extensions": None}, {"extensions": [3]}, {"extensions": [{}]}])
def test_what_was_not_measured_is_no_pass(gpu: View, broken: dict[str, Any]) -> None:
    result = extensions.judge(gpu, [{"rank": 0, **broken}])
    assert (result.status, result.code) == (ERROR, "extensions.unmeasured")
    assert extensions.judge(gpu, []).status == ERROR


@pytest.mark.parametrize("field", [*row(), "interpreter", "glibc", "torch", "installed"])
def test_an_extension_of_which_something_was_not_measured_is_no_pass(gpu: View, field: str) -> None:
    assert outcome(gpu, row()).status == PASS
    whole = row()
    whole.pop(field, None)
    complete = {"interpreter": PYTHON, "glibc": "2.36", "torch": "2.13.0+cu130", "installed": {}}
    complete.pop(field, None)
    result = extensions.judge(gpu, [{"rank": 0, **complete, "extensions": [whole]}])
    assert (result.status, result.code) == (ERROR, "extensions.unmeasured")
    assert field in result.summary


def test_a_library_that_was_not_read_is_an_error(gpu: View) -> None:
    result = outcome(gpu, row(unread={"x/_C.so": "a 32-bit ELF file"}))
    assert (result.status, result.code) == (ERROR, "extensions.not-looked-at")
    assert "a 32-bit ELF file" in result.summary


@each(
    "tag, free, taken",
    [
        ("cp312-cp312-linux_x86_64", False, True),
        ("cp312-cp312-linux_x86_64", True, False),
        ("cp312-cp312t-linux_x86_64", True, True),
        ("cp311-cp311-linux_x86_64", False, False),
        ("cp39-abi3-linux_x86_64", False, True),
        ("cp39-abi3-linux_x86_64", True, False),
        ("cp313-abi3-linux_x86_64", False, False),
        ("py3-none-any", True, True),
        ("py39-none-linux_x86_64", False, True),
        ("py313-none-any", False, False),
        ("pp310-pypy310_pp73-linux_x86_64", False, False),
    ],
)
def test_a_tag_is_for_this_python_or_not(tag: str, *, free: bool, taken: bool) -> None:
    assert installed_judge.takes(tag, {**PYTHON, "free_threaded": free}) is taken


def test_the_known_names_are_those_of_the_facts() -> None:
    facts = {name for each in load().extensions for name in (each.name, *each.aliases)}
    assert facts - {"triton"} == KNOWN


MEASURE = """
import json, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from envcheck.checks import Rank
from envcheck.checks.env import extensions
print(json.dumps(extensions.measure(Rank(0, 1, 0, "cpu", "gloo", ""))))
"""


def measured(python: str | Path, site: Path) -> dict[str, Any]:
    """Return what a Python measures with one more directory of packages."""
    root = Path(__file__).parents[3]
    command = [str(python), "-c", MEASURE, str(root), str(site)]
    environment = {**os.environ, "LD_LIBRARY_PATH": ""}
    completed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=120)
    result: dict[str, Any] = json.loads(completed.stdout)
    return result


def install(site: Path, name: str, made: MadeLibrary, requires: str = "", tag: str = "py3-none-any") -> None:
    """Write an installed package with one library."""
    info = site / f"{name}-1.0.dist-info"
    (site / name).mkdir(parents=True)
    info.mkdir()
    (site / name / "_C.so").write_bytes(library(made))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}", encoding="utf-8")
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n", encoding="utf-8")
    (info / "RECORD").write_text(f"{name}/_C.so,,\n{name}-1.0.dist-info/METADATA,,\n", encoding="utf-8")


def test_an_installed_package_is_found_by_what_its_library_needs(tmp_path: Path) -> None:
    install(
        tmp_path,
        "ext",
        MadeLibrary(needed=["libcudart.so.99", "/opt/libnccl.so.2"], code=[(CUBIN, 90), (PTX, 90)]),
        "Requires-Dist: torch<2\n",
    )
    install(tmp_path, "plain", MadeLibrary(needed=["libc.so.6"]))
    [actual] = measured(sys.executable, tmp_path)["extensions"]
    assert (actual["name"], actual["requires"], actual["tags"]) == ("ext", ["torch<2"], ["py3-none-any"])
    assert actual["libraries"][0]["missing"] == ["libcudart.so.99", "/opt/libnccl.so.2"]
    assert (actual["libraries"][0]["sass"], actual["libraries"][0]["ptx"]) == (["9.0"], ["9.0"])


@pytest.mark.torch
def test_symbols_are_compared_with_the_real_torch(torch_python: Path, tmp_path: Path) -> None:
    real = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    install(tmp_path, "fits", MadeLibrary(needed=["libc10.so"], undefined=[real]))
    install(tmp_path, "misfit", MadeLibrary(needed=["libc10.so"], undefined=[real, SYMBOL]))
    by_name = {each["name"]: each["undefined"] for each in measured(torch_python, tmp_path)["extensions"]}
    assert by_name["fits"]["count"] == 0
    assert by_name["misfit"]["symbols"] == {SYMBOL: "c10::MessageLogger::MessageLogger(char const*, int, int, bool)"}


@pytest.mark.torch
@pytest.mark.tools
@pytest.mark.parametrize(
    ("version", "missing"), [("0.7.0", 3), ("0.9.1", 3), ("0.10.0", 3), ("0.11.1", 0), ("0.13.0", 0)]
)
def test_real_torchcodecs_beside_torch_2_13(
    torch_python: Path, tmp_path: Path, cpu: View, version: str, missing: int
) -> None:
    site = index_wheels.unpack(tmp_path, "torchcodec", version, "cp311-cp311")
    actual = measured(torch_python, site)
    assert actual["torch"] == "2.13.0+cpu"
    assert actual["extensions"][0]["undefined"]["count"] == missing
    result = extensions.judge(cpu, [actual])
    assert result.status == (FAIL if missing else PASS), result
    if missing:
        assert "c10::" in result.summary
        assert "install torchcodec==0.13.0" in result.remedy


@pytest.mark.torch
@pytest.mark.tools
def test_a_real_wheel_for_cuda_beside_a_torch_for_the_cpu(torch_python: Path, tmp_path: Path, cpu: View) -> None:
    actual = measured(torch_python, index_wheels.unpack(tmp_path, "torchaudio", "2.11.0", "cp311-cp311"))
    result = extensions.judge(cpu, [actual])
    assert (result.status, result.code) == (FAIL, "extensions.cuda-major")
    assert "which nothing here brings: torch 2.13.0+cpu is for the CPU" in result.summary
