"""What runs before torch and changes it is a failure: a start-up file by its place, a library by its numbers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# A file that Python runs at its start; it replaces a function as soon as its module is imported.
STARTUP = """
import importlib.abc, importlib.util, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.nn.functional":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            real = module.linear
            module.linear = lambda *given, **named: real(*given, **named) * 1.001
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""
LIBRARY = """
#define _GNU_SOURCE
#include <dlfcn.h>
double exp(double x) { double (*real)(double) = dlsym(RTLD_NEXT, "exp"); return real(x) * 1.001; }
double erf(double x) { double (*real)(double) = dlsym(RTLD_NEXT, "erf"); return real(x) * 1.001; }
float erff(float x) { float (*real)(float) = dlsym(RTLD_NEXT, "erff"); return real(x) * 1.001f; }
"""


def _outcomes(python: Path, tmp_path: Path, **environment: str) -> tuple[int, dict[str, Any]]:
    words = ["--only", "kernels", "--only", "environment-variables", "--only", "installed-files"]
    argv = [sys.executable, "-m", "envcheck", "run", "--python", str(python), *words, "--output", "report.json"]
    completed = subprocess.run(argv, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, check=False)
    report = json.loads((tmp_path / "report.json").read_text())
    return completed.returncode, {row["id"]: row for row in report["outcomes"]}


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_startup_file_that_changes_torch_fails_and_is_named(torch_python: Path, tmp_path: Path) -> None:
    """What patches torch's Python patches the reference too: the file is what is found, and it is a failure."""
    (tmp_path / "start").mkdir()
    (tmp_path / "start/sitecustomize.py").write_text(STARTUP)
    code, rows = _outcomes(torch_python, tmp_path, PYTHONPATH=str(tmp_path / "start"))
    assert code == 1
    for check, status in {"environment-variables": "warn", "installed-files": "fail"}.items():
        assert (rows[check]["status"], "sitecustomize.py" in rows[check]["summary"]) == (status, True)


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler makes the library")
def test_a_preloaded_library_that_changes_numbers_fails(torch_python: Path, tmp_path: Path) -> None:
    library = tmp_path / "wrong.so"
    (tmp_path / "wrong.c").write_text(LIBRARY)
    words = ["cc", "-shared", "-fPIC", "-fno-builtin", "-o", str(library), str(tmp_path / "wrong.c"), "-ldl"]
    subprocess.run(words, check=True)
    code, rows = _outcomes(torch_python, tmp_path, LD_PRELOAD=str(library))
    assert (code, rows["kernels"]["status"]) == (1, "fail")
    assert str(library) in rows["environment-variables"]["summary"]
