"""Installed packages with native code, made by a compiler, and what a Python measures of them."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import View
from tests.builders import gpu_view, plant
from tests.tables import beside

ROOT = Path(__file__).parents[3]
CASES: dict[str, list[dict[str, Any]]] = beside(__file__, "cases.yaml")
MEASURE = """
import json, sys
sys.path[:0] = sys.argv[2:4]
from envcheck.checks import Rank
import envcheck.checks.env.extensions as extensions, envcheck.checks.env.extensions_loaded as extensions_loaded
from envcheck.checks.extensions import trials
trials.SECONDS = float(sys.argv[5])
result = {"extensions": extensions, "extensions_loaded": extensions_loaded}[sys.argv[1]]
result = result.measure(Rank(0, 1, 0, "cpu", "gloo", sys.argv[4]))
open(sys.argv[4] + "/measured.json", "w").write(json.dumps(result))
"""


def write_package(
    site: Path, name: str, files: Mapping[str, str | bytes], *, requires: str = "", tag: str = "py3-none-any"
) -> None:
    info = f"{name}-1.0.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}"
    whole = {**files, f"{info}/METADATA": meta, f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n"}
    whole[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in whole)
    plant(site, whole)


def measure(check: str, python: str | Path, site: Path, scratch: Path, seconds: float = 60) -> dict[str, Any]:
    """Return what a check measures in a Python with one more directory of packages; a trial may take so long."""
    scratch.mkdir(exist_ok=True)
    command = [str(python), "-c", MEASURE, check, str(ROOT), str(site), str(scratch), str(seconds)]
    subprocess.run(command, capture_output=True, check=True, env={**os.environ, "LD_LIBRARY_PATH": ""}, timeout=240)
    result: dict[str, Any] = json.loads((scratch / "measured.json").read_text(encoding="utf-8"))
    return result


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str | bytes]]:
    """Return what compiles _C.so, which calls what the source calls, and the libc10.so that it needs beside it."""
    directory = tmp_path_factory.mktemp("compiled")
    flags = ["cc", "-shared", "-fPIC", "-Wl,-rpath,$ORIGIN"]

    def build(source: str = "") -> dict[str, str | bytes]:
        (directory / "stub.c").write_text("int stub(void) { return 1; }\n", encoding="utf-8")
        (directory / "own.c").write_text(f"int stub(void);\n{source}\nint own(void) {{ return stub(); }}\n")
        for words in (["-o", "libc10.so", "-Wl,-soname,libc10.so", "stub.c"], ["-o", "_C.so", "own.c", "libc10.so"]):
            subprocess.run([*flags, *words], cwd=directory, check=True, capture_output=True, timeout=60)
        return {name: (directory / name).read_bytes() for name in ("_C.so", "libc10.so")}

    return build


@pytest.fixture
def gpu() -> View:
    view = gpu_view("h100x8")
    return dataclasses.replace(view, environment={**view.environment, "torch": "2.13.0+cu130", "cuda": "13.0"})
