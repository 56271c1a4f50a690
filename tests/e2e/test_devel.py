"""The devel image of the CPU cell, on the layers of the main job's image: what is compiled in it works."""

import json
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
