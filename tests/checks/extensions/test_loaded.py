"""An extension that imports and computes is sound; one that crashes, hangs, falls back or is wrong is named."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Outcome, View
from envcheck.checks.env import extensions_loaded
from envcheck.checks.extensions import trials
from envcheck.checks.extensions.installed import KNOWN, import_name
from envcheck.checks.extensions.operations import OPERATIONS
from envcheck.checks.extensions.trials import cause, choice
from tests import index_wheels
from tests.checks.extensions.conftest import CASES, measure, write_package
from tests.tables import each

Compiler = Callable[..., dict[str, "str | bytes"]]
SYMBOL = "_ZN3c1013MessageLoggerC1EPKciib"
PYTHON = {"name": "cpython", "version": [3, 12], "free_threaded": False, "machine": "x86_64"}
RIGHT = {"name": "nms", "device": "cuda:0", "on": "cuda:0", "count": [2, 2], "off": 0.0, "tolerance": 0.01}
WHOLE = {"code": 0, "limit": 120.0, "step": "end", "done": True, "imported": True, "mapped": ["x/_C.so"]}
MISSING = {"text": "libx.so.1: cannot open shared object file", "library": "libx.so.1"}


def row(name: str = "torchvision", trial: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return what was measured of an extension that is sound on a GPU, with changes."""
    base = {"name": name, "version": "1.0", "libraries": 1, "gpu_code": True, "operation": True}
    return {**base, "trial": {**WHOLE, "operation": [RIGHT], **(trial or {})}, **changes}


def raised(step: str, kind: str, message: str, **named: Any) -> dict[str, Any]:
    error = {"type": kind, "text": message, **named}
    return {"step": step, "error": error, "mapped": [], "imported": step.startswith("run"), "operation": None}


def outcome(view: View, *rows: dict[str, Any], gpu: bool = True) -> Outcome:
    return extensions_loaded.judge(view, [{"rank": 0, "gpu": gpu, "interpreter": PYTHON, "extensions": list(rows)}])


@each("case", CASES["loaded"])
def test_a_fault_is_named_with_its_cause_and_its_remedy(gpu: View, case: dict[str, Any]) -> None:
    judged = outcome(gpu, row(**case["row"]))
    assert (judged.status, judged.code) == (FAIL, case["code"]), judged
    assert case["says"] in judged.summary
    assert case["remedy"] in judged.remedy


def test_what_is_sound_passes(gpu: View, cpu: View) -> None:
    judged = outcome(gpu, row())
    assert (judged.status, judged.summary) == (PASS, "torchvision 1.0: loaded and right")
    assert outcome(gpu, row(trial={"operation": [{**RIGHT, "off": 0.01}]})).status == PASS
    # TensorRT is optional for onnxruntime: its provider is refused, and the others are there.
    assert outcome(gpu, row("onnxruntime-gpu", {"refused": {"x/libtensorrt.so": MISSING}})).status == PASS
    # cupy loads CUDA's libraries of the environment first, and each of its own when it is used.
    later = {"text": "x", "library": "libcusolver.so.11"}
    assert outcome(gpu, row("cupy-cuda12x", {"refused": {"x/s.so": {**later, "brought": True}}})).status == PASS
    assert outcome(gpu, row("cupy-cuda12x", {"refused": {"x/s.so": later}})).status == FAIL
    nothing: dict[str, Any] = {"mapped": [], "operation": None, "refused": {"x/s.so": {**later, "brought": True}}}
    assert outcome(gpu, row("cupy-cuda12x", nothing)).status == FAIL
    on_cpu = {"operation": [{**RIGHT, "device": "cpu", "on": "cpu"}]}
    assert outcome(cpu, row(trial=on_cpu, gpu_code=False), gpu=False).status == PASS
    assert outcome(cpu, gpu=False).code == "extensions-loaded.none"


@each("case", CASES["not_proven"])
def test_what_could_not_be_run_is_no_pass(gpu: View, cpu: View, case: dict[str, Any]) -> None:
    judged = outcome(gpu if case["gpu"] else cpu, row(**case["row"]), gpu=case["gpu"])
    assert (judged.status, judged.code) == (SKIP, case["code"]), judged


def test_a_dependency_that_dropped_an_attribute_is_the_culprit(gpu: View) -> None:
    """numba-cuda 0.30.4 beside numpy 2.5.2, met on an H100."""
    message = "module 'numpy' has no attribute 'row_stack'"
    trial = raised("run its smallest operation", "AttributeError", message, dependency="2.5.2")
    found = outcome(gpu, row("numba-cuda", trial))
    assert (found.status, found.code, found.culprit) == (WARN, "extensions-loaded.dependency", "numpy")
    assert "numpy 2.5.2 has no numpy.row_stack" in found.summary
    imported = raised("import numba.cuda", "ImportError", "cannot import name 'row_stack' from 'numpy'")
    assert outcome(gpu, row("numba-cuda", imported)).status == FAIL


def test_a_trial_that_was_forked_from_a_process_with_cuda_is_no_fault_of_the_extension(gpu: View) -> None:
    trial = raised("run nms on cuda:0", "RuntimeError", "Cannot re-initialize CUDA in forked subprocess. To use CUDA")
    judged = outcome(gpu, row(trial=trial))
    assert (judged.status, judged.code) == (ERROR, "extensions-loaded.not-looked-at")


def test_a_package_that_runs_on_a_torch_for_the_cpu_is_skipped(cpu: View) -> None:
    lacking = {"mapped": [], "refused": {"x.so": {"text": "x", "library": "libcudart.so.13"}}}
    assert outcome(cpu, row("torchao", lacking), gpu=False).code == "extensions-loaded.cpu-torch"
    assert outcome(cpu, row("torchvision", lacking), gpu=False).code == "extensions-loaded.cuda-major"


@pytest.mark.parametrize(
    ("measured", "word"),
    [
        ({"rank": 0}, "unmeasured"),
        ({"rank": 0, "gpu": True, "extensions": [3]}, "unmeasured"),
        ({"rank": 0, "gpu": True, "extensions": [{"name": "x"}]}, "unmeasured"),
        ({"rank": 0, "gpu": True, "extensions": [row(trial={"operation": [{**RIGHT, "off": "nan"}]})]}, "unmeasured"),
        ({"rank": 0, "gpu": True, "extensions": [{**row(), "trial": None}]}, "not-looked-at"),
        ({"rank": 0, "gpu": True, "extensions": [row(trial={"done": False, "code": 1, "step": ""})]}, "not-looked-at"),
        ({"rank": 0, "gpu": True, "extensions": [row(trial={"done": False, "code": None, "step": "x"})]}, "hang"),
    ],
)
def test_what_was_not_measured_is_an_error(gpu: View, measured: dict[str, Any], word: str) -> None:
    judged = extensions_loaded.judge(gpu, [measured])
    assert (judged.status, judged.code) == (ERROR, f"extensions-loaded.{word}")
    assert extensions_loaded.judge(gpu, []).status == ERROR


def test_the_operations_and_names_are_of_known_extensions() -> None:
    assert OPERATIONS.keys() <= KNOWN.keys()
    assert import_name("flash-attn") == "flash_attn"
    assert import_name("faiss-gpu-cu12") == "faiss"


def test_libraries_of_which_one_is_loaded_are_a_choice() -> None:
    assert choice("b/libbitsandbytes_cuda118.so") == choice("b/libbitsandbytes_cuda130.so")
    assert choice("t/libtorchcodec_core4.so") == choice("t/libtorchcodec_core8.so")
    assert choice("s/sm90/common_ops.abi3.so") == choice("s/sm100/common_ops.abi3.so")
    assert choice("v/_vllm_fa2_C.abi3.so") != choice("v/_vllm_fa3_C.abi3.so")
    assert choice("x/_C.so") != choice("x/_C_stable.so")


def test_a_symbol_says_more_than_a_library_that_is_one_of_several() -> None:
    text = f"libavutil.so.60: cannot open shared object file\nx.so: undefined symbol: {SYMBOL}"
    assert cause(text) == ("symbol", SYMBOL)
    assert cause("/lib/libm.so.6: version `GLIBC_2.38' not found (required by x.so)") == ("version", "GLIBC_2.38")
    assert cause("x/_C.so: invalid ELF header") == ("invalid", "x/_C.so")
    assert cause("no such thing") is None


BODIES = {
    "sound": "from ctypes import CDLL\nCDLL(__file__.replace('__init__.py', '_C.so'))\n",
    "lazy": "",
    "swallows": "import ctypes\ntry:\n    ctypes.CDLL(__file__[:-11] + '_C.so')\nexcept OSError:\n    pass\n",
    "raises": "import ctypes\nctypes.CDLL(__file__.replace('__init__.py', '_C.so'))\n",
    "text": "import ctypes\nctypes.CDLL(__file__.replace('__init__.py', '_D.so'))\n",
    "crashes": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    "leaves": "import os\nprint('fine')\nos._exit(0)\n",
    "exits": "raise SystemExit\n",
    "hangs": "import time\ntime.sleep(3600)\n",
}


@pytest.fixture(scope="module")
def tried(compiled: Compiler, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the check measures of packages that were really made, each of which does one thing."""
    site = tmp_path_factory.mktemp("site")
    fitting, misfit = compiled(), compiled(f"void {SYMBOL}(void);\nvoid call(void) {{ {SYMBOL}(); }}")
    for name, body in BODIES.items():
        library = misfit if name in ("swallows", "raises") else fitting
        more: dict[str, str | bytes] = {"_D.so": "no library\n"} if name == "text" else {}
        files = {"__init__.py": body, **library, **more}
        write_package(site, name, {f"{name}/{file}": content for file, content in files.items()})
    # An interpreter without torch: what is imported there is imported quickly.
    return measure("extensions_loaded", sys.executable, site, site.parent / "scratch", seconds=8.0)


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("sound", PASS, "sound 1.0: loaded and right"),
        ("lazy", PASS, "lazy 1.0: loaded and right"),
        ("swallows", FAIL, f"imports, and goes on without swallows/_C.so: needs {SYMBOL}"),
        ("raises", FAIL, f"import raises: needs {SYMBOL}, which this torch does not define"),
        ("text", FAIL, "is no library of this machine"),
        ("crashes", FAIL, "import crashes ended the process: SIGSEGV"),
        ("leaves", FAIL, "import leaves ended the process: exit code 0"),
        ("exits", FAIL, "import exits: SystemExit"),
        ("hangs", ERROR, "import hangs did not end within 8 s"),
    ],
)
def test_a_real_package(tried: dict[str, Any], cpu: View, name: str, status: str, words: str) -> None:
    [measured] = [each for each in tried["extensions"] if each["name"] == name]
    judged = extensions_loaded.judge(cpu, [{**tried, "extensions": [measured]}])
    assert judged.status == status, judged
    assert words in judged.summary


WRONG = "import torch\ndef scatter(source, index, reduce):\n    return torch.tensor([4.0, 2.0, 5.0])\n"


@pytest.mark.torch
@pytest.mark.tools
def test_operations_beside_the_real_torch(torch_python: Path, tmp_path: Path, cpu: View, compiled: Compiler) -> None:
    site = index_wheels.unpack(tmp_path / "site", "torchao", "0.18.0", "cp310-abi3")
    files = {**compiled(), "__init__.py": WRONG}
    write_package(site, "torch_scatter", {f"torch_scatter/{file}": content for file, content in files.items()})
    found = measure("extensions_loaded", torch_python, site, tmp_path / "scratch")
    scatter, torchao = found["extensions"]
    assert torchao["trial"]["operation"][0]["off"] < 0.03
    # The wheel is for CUDA 13 and this torch for the CPU: torchao goes on without its native part, as documented.
    assert extensions_loaded.judge(cpu, [{**found, "extensions": [torchao]}]).code == "extensions-loaded.cpu-torch"
    judged = extensions_loaded.judge(cpu, [{**found, "extensions": [scatter]}])
    assert (judged.status, judged.code) == (FAIL, "extensions-loaded.operation")
    assert "scatter on cpu is wrong: 0.25 off" in judged.summary


def test_what_no_time_is_left_for_is_not_tried(tmp_path: Path) -> None:
    assert trials.run_all([], tmp_path, 0, gpu=False) == {}
