"""Libraries that compute wrongly in torch's process: each is seen to change a result first, and `kernels` finds it.

Each fault is a library in LD_PRELOAD, as a BLAS, a libm or an OpenMP from elsewhere is: no file of torch is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.checks.env.test_kernels import measured

HEAD = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stddef.h>\n"
TWICE = """float {0}(float x, float y) {{
  float (*real)(float, float) = dlsym(RTLD_NEXT, "{0}");
  return real(x, y) * 1.001f;
}}
"""
FLUSHES = """#include <xmmintrin.h>
__attribute__((constructor)) static void start(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }
"""
IDLE = "void GOMP_parallel(void (*work)(void *), void *data, unsigned n, unsigned flags) { }\n"


class NativeFault(NamedTuple):
    """C code, an expression whose value it changes, and a word of what is found."""

    code: str
    shows: str
    word: str


FAULTS = {
    "a power of another libm": NativeFault(HEAD + TWICE.format("powf"), "x ** x", "pow"),
    "a hypotenuse of another libm": NativeFault(HEAD + TWICE.format("hypotf"), "t.hypot(x, x)", "hypot"),
    "a BLAS that multiplies nothing": NativeFault("void sgemm_(void) { }\n", "x.view(-1, 3) @ x.view(3, -1)", "mm"),
    "a LAPACK that factors nothing": NativeFault("void spotrf_(void) { }\n", "t.linalg.cholesky(t.eye(3) * 2)", "chol"),
    "flush-to-zero": NativeFault(FLUSHES, "t.tensor([1e-40]) * 1", "1e-40 * 1 in float32"),
    "an OpenMP that does no work": NativeFault(IDLE, "t.ones(1 << 20).sum()", ""),
}
PROGRAM = """import torch as t
t.set_num_threads(2)
x = (t.arange(33) + 2).float() / 16
try:
    print(({0}).double().sum().item())
except RuntimeError as error:
    print(error)
"""


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler makes the library")
@pytest.mark.parametrize("name", FAULTS)
def test_a_library_that_computes_wrongly_is_found(torch_python: Path, tmp_path: Path, name: str) -> None:
    fault, library = FAULTS[name], tmp_path / "wrong.so"
    (tmp_path / "wrong.c").write_text(fault.code)
    command = ["cc", "-shared", "-fPIC", "-O1", "-fno-builtin", "-o", str(library), str(tmp_path / "wrong.c"), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    preloaded = {**os.environ, "LD_PRELOAD": str(library)}
    program = [str(torch_python), "-W", "ignore", "-c", PROGRAM.format(fault.shows)]
    sound, wrong = (subprocess.run(program, env=env, capture_output=True, check=False) for env in (None, preloaded))
    assert sound.stdout != wrong.stdout
    row = measured(tmp_path / "report.json", torch_python, "standard", preloaded)
    assert row["status"] == "fail", row["summary"]
    assert fault.word in " ".join([row["summary"], *(finding["summary"] for finding in row["findings"])])
