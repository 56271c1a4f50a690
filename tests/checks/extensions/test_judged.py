"""Each failure that users of extensions report is found by what is on disk: the symptom in, cause and remedy out."""

import sys
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Outcome, View, installed_judge
from envcheck.checks.env import extensions
from envcheck.checks.extensions.installed import KNOWN
from envcheck.matrix.extensions.file import load
from tests import index_wheels
from tests.builders import put
from tests.checks.extensions.conftest import CASES, measure, write_package
from tests.elf_files import CUBIN, PTX, MadeLibrary, library
from tests.tables import each

PYTHON = {"name": "cpython", "version": [3, 12], "free_threaded": False, "machine": "x86_64"}
SYMBOL = "_ZN3c1013MessageLoggerC1EPKciib"
LIBRARY = {"path": "x/_C.so", "missing": [], "undefined": [], "glibc": "2.17", "sass": ["8.0", "9.0"], "ptx": []}


def row(name: str = "flash-attn", library: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return what was measured of an extension that fits, with changes."""
    base = {"name": name, "version": "1.0", "listed": True, "tags": ["cp312-cp312-linux_x86_64"], "requires": []}
    more = {"other_python": [], "unread": {}, "undefined": {"count": 0, "symbols": []}}
    return {**base, **more, "libraries": [{**LIBRARY, **(library or {})}], **changes}


def outcome(view: View, *rows: dict[str, Any], **changes: Any) -> Outcome:
    environment = {"rank": 0, "interpreter": PYTHON, "glibc": "2.36", "torch": "2.13.0+cu130", "installed": {}}
    return extensions.judge(view, [{**environment, "extensions": list(rows), **changes}])


@each("case", CASES["installed"])
def test_a_known_failure_has_its_cause_and_its_remedy(gpu: View, case: dict[str, Any]) -> None:
    result = outcome(gpu, row(**case["row"]), installed={"torch": "2.13.0+cu130", "triton": "3.4.0"})
    assert (result.status, result.code, result.value is not None) == (FAIL, case["code"], True), result
    assert case["says"] in result.summary
    assert case["remedy"] in result.remedy


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
def test_ptx_counts_only_where_the_driver_compiles_it(gpu: View, driver: str, status: str) -> None:
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
    assert facts - {"triton"} == KNOWN.keys()


def install(site: Path, name: str, made: MadeLibrary, requires: str = "") -> None:
    write_package(site, name, {f"{name}/_C.so": library(made)}, requires=requires)


def test_an_installed_package_is_found_by_what_its_library_needs(tmp_path: Path) -> None:
    made = MadeLibrary(needed=["libcudart.so.99", "/opt/libnccl.so.2"], code=[(CUBIN, 90), (PTX, 90)])
    install(tmp_path / "site", "ext", made, "Requires-Dist: torch<2\n")
    install(tmp_path / "site", "plain", MadeLibrary(needed=["libc.so.6"]))
    [actual] = measure("extensions", sys.executable, tmp_path / "site", tmp_path / "scratch")["extensions"]
    assert (actual["name"], actual["requires"], actual["tags"]) == ("ext", ["torch<2"], ["py3-none-any"])
    assert actual["libraries"][0]["missing"] == ["libcudart.so.99", "/opt/libnccl.so.2"]
    assert (actual["libraries"][0]["sass"], actual["libraries"][0]["ptx"]) == (["9.0"], ["9.0"])


@pytest.mark.torch
def test_symbols_are_compared_with_the_real_torch(torch_python: Path, tmp_path: Path) -> None:
    real = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    install(tmp_path / "site", "fits", MadeLibrary(needed=["libc10.so"], undefined=[real]))
    install(tmp_path / "site", "misfit", MadeLibrary(needed=["libc10.so"], undefined=[real, SYMBOL]))
    fits, misfit = measure("extensions", torch_python, tmp_path / "site", tmp_path / "scratch")["extensions"]
    assert (fits["name"], fits["undefined"]["count"], misfit["undefined"]["symbols"]) == ("fits", 0, [SYMBOL])


@pytest.mark.torch
@pytest.mark.tools
@pytest.mark.parametrize(
    ("version", "missing"), [("0.7.0", 3), ("0.9.1", 3), ("0.10.0", 3), ("0.11.1", 0), ("0.13.0", 0)]
)
def test_real_torchcodecs_beside_torch_2_13(
    torch_python: Path, tmp_path: Path, cpu: View, version: str, missing: int
) -> None:
    site = index_wheels.unpack(tmp_path / "site", "torchcodec", version, "cp311-cp311")
    actual = measure("extensions", torch_python, site, tmp_path / "scratch")
    assert actual["torch"] == "2.13.0+cpu"
    assert actual["extensions"][0]["undefined"]["count"] == missing
    result = extensions.judge(cpu, [actual])
    assert result.status == (FAIL if missing else PASS), result
    if missing:
        assert "needs _Z" in result.summary
        assert "install torchcodec==0.13.0" in result.remedy


@pytest.mark.torch
@pytest.mark.tools
def test_a_real_wheel_for_cuda_beside_a_torch_for_the_cpu(torch_python: Path, tmp_path: Path, cpu: View) -> None:
    site = index_wheels.unpack(tmp_path / "site", "torchaudio", "2.11.0", "cp311-cp311")
    actual = measure("extensions", torch_python, site, tmp_path / "scratch")
    result = extensions.judge(cpu, [actual])
    assert (result.status, result.code) == (FAIL, "extensions.cuda-major")
    assert "which nothing here brings: torch 2.13.0+cpu is for the CPU" in result.summary
