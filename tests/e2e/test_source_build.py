"""An extension without a wheel: compiled in a stage on the devel image, kept, and put into an image and used there."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.e2e.conftest import BUILD, Machine
from tests.e2e.test_devel import devel  # noqa: F401 (a fixture: the stage stands on the same image)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

SOURCE = """
#include <torch/library.h>
#include <Python.h>
at::Tensor twice(const at::Tensor& x) { return x.add(x); }
TORCH_LIBRARY(made_here, m) { m.def("twice(Tensor x) -> Tensor"); m.impl("twice", c10::DispatchKey::CPU, twice); }
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", "", -1, nullptr};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""
SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
module = CppExtension("made_here._C", ["ops.cpp"], extra_compile_args=["-O0"])
setup(name="made-here", version="1.0", packages=["made_here"], install_requires=["torch"], ext_modules=[module],
      cmdclass={"build_ext": BuildExtension})
"""
# A site's own extension, as `--extensions` takes it.
FACTS = """
schema: envcheck/extensions/1
sources: {site: "our own sdist"}
extensions:
  - name: made-here
    source: [site]
    releases:
      - version: "1.0"
        built_from: {needs: torch, cpu: true, source: [site]}
        source: [site]
"""
USE = "import torch, made_here._C; print(torch.ops.made_here.twice(torch.ones(2)).tolist(), torch.__version__)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    (root / "files").mkdir()
    (root / "extensions.yaml").write_text(FACTS)
    files = {"setup.py": SETUP, "ops.cpp": SOURCE, "made_here/__init__.py": ""}
    files["PKG-INFO"] = "Metadata-Version: 2.1\nName: made-here\nVersion: 1.0\n"
    with tarfile.open(root / "files/made_here-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"made_here-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return root


@pytest.mark.usefixtures("devel")
def test_an_extension_without_a_wheel_is_compiled_once_and_works_in_the_image(machine: Machine, site: Path) -> None:
    argv = [*BUILD, "--with", "made-here", "--extensions", str(site / "extensions.yaml")]
    env = {"UV_FIND_LINKS": str(site / "files")}
    planned = machine.envcheck(*argv, "--dry-run", **env)
    assert "compile made-here 1.0: first, on the cell's devel" in planned.stdout, planned.stderr
    done = machine.envcheck(*argv, "--json", **env)
    assert done.returncode == 0, done.stderr
    assert "made_here-1.0+cputorch2.13-cp311-cp311-linux_x86_64.whl: compiled now" in done.stderr
    result = json.loads(done.stdout)
    assert "envcheck: extensions: used" in Path(result["log"]).read_text()
    torch = result["promises"]["torch"]
    used = machine.docker("run", "--rm", "--network", "none", result["image"], "python3", "-c", USE)
    assert (used.returncode, used.stdout.strip()) == (0, f"[2.0, 2.0] {torch}"), used.stderr
    again = machine.envcheck(*argv, "--json", **env)
    assert "compiled by an earlier build" in again.stderr
    assert json.loads(again.stdout)["skipped"] is True
    history = machine.docker("history", "--no-trunc", result["image"]).stdout
    assert "build_wheel" not in history  # no compiler and no source in the image
