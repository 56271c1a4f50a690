"""The devel image of the CPU cell, on the layers of the main job's image: what is compiled in it works."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.e2e.conftest import BUILD, Image, Machine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

SOURCE = """
#include <torch/extension.h>
torch::Tensor twice(torch::Tensor x) { return x * 2; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice); }
"""
# As documented: an extension of one's own, compiled against the image's torch by its setup.py, by the image's user.
SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
module = CppExtension("twice", ["twice.cpp"], extra_compile_args=["-O0"])
setup(name="twice", version="1", py_modules=[], ext_modules=[module], cmdclass={"build_ext": BuildExtension})
"""
INSTALL = """
set -eu
cp -r /source /tmp/twice
pip install --quiet --no-index --no-build-isolation --no-deps --target /tmp/site /tmp/twice
PYTHONPATH=/tmp/site python -c 'import torch, twice; print(twice.twice(torch.ones(2)).tolist())'
"""


@pytest.fixture(scope="module")
def devel(image: Image, machine: Machine) -> Image:
    done = machine.envcheck(*BUILD, "--target", "devel", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["base"] == image.result["base"]
    # Another module of tests may have built it: then there is no log.
    return Image(result["image"], result, Path(result["log"]).read_text() if result["log"] else "")


def test_devel_is_the_runtime_image_with_more_on_top(devel: Image, image: Image, machine: Machine) -> None:
    held = machine.docker("image", "inspect", image.reference, devel.reference).stdout
    below, above = (each["RootFS"]["Layers"] for each in json.loads(held))
    shared = len([1 for one, other in zip(below, above, strict=False) if one == other])
    # What only runtime has above is envcheck's code, its launcher, the promises and the home.
    assert shared >= len(below) - 4
    assert devel.result["promises"]["target"] == "devel"
    assert "envcheck: devel: used" in devel.log


def test_torch_compile_compiles_in_devel(devel: Image, machine: Machine, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = machine.envcheck("run", "--image", devel.reference, "--only", "compiled", "--output", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    (outcome,) = (each for each in json.loads(report.read_text())["outcomes"] if each["id"] == "compiled")
    assert outcome["status"] == "pass", outcome
    assert "were compiled and are right" in outcome["summary"]


def test_an_extension_is_installed_in_devel_by_its_user(devel: Image, machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "twice.cpp").write_text(SOURCE)
    (tmp_path / "setup.py").write_text(SETUP)
    tmp_path.chmod(0o755)
    mounted = ("--volume", f"{tmp_path}:/source:ro", "--user", "12345:12345")
    completed = machine.docker("run", "--rm", *mounted, devel.reference, "sh", "-c", INSTALL)
    assert (completed.returncode, completed.stdout.strip()) == (0, "[2.0, 2.0]"), completed.stderr


EXTENSION = """
#include <torch/library.h>
#include <Python.h>
at::Tensor twice(const at::Tensor& x) { return x.add(x); }
TORCH_LIBRARY(made_here, m) { m.def("twice(Tensor x) -> Tensor"); m.impl("twice", c10::DispatchKey::CPU, twice); }
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", "", -1, nullptr};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""
SETUP_OF_EXTENSION = """
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
    files = {"setup.py": SETUP_OF_EXTENSION, "ops.cpp": EXTENSION, "made_here/__init__.py": ""}
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
