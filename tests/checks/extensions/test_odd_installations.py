"""What environments really look like: links, editable and half packages, sources in front of what is installed."""

import importlib.metadata
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, View
from envcheck.checks.env import extensions
from envcheck.checks.extensions import installed
from tests.builders import plant
from tests.checks.extensions.conftest import measure, write_package
from tests.elf_files import MadeLibrary, library
from tests.tables import each

LIBRARY = library(MadeLibrary(needed=["libc10.so", "libcudart.so.99"]))
EDITABLE = json.dumps({"url": "file:///src", "dir_info": {"editable": True}}, separators=(",", ":"))  # uv's


def unlisted(site: Path, name: str, kept: str) -> None:
    """Leave only those lines of RECORD that begin with `kept`; without any, no RECORD."""
    record = site / f"{name}-1.0.dist-info" / "RECORD"
    lines = [line for line in record.read_text().splitlines(keepends=True) if line.startswith(kept)] if kept else []
    record.write_text("".join(lines)) if lines else record.unlink()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the check measures of one environment with all of them, in a Python without torch."""
    directory = tmp_path_factory.mktemp("odd")
    site, cache = directory / "site", directory / "cache"
    cache.mkdir()
    for name in ("linked", "vllm", "torchao", "xformers", "torchvision", "torchaudio", "torchcodec"):
        write_package(site, name, {f"{name}/__init__.py": "", f"{name}/_C.so": LIBRARY, f"{name}/_C.so.1": LIBRARY})
    for name in ("_C.so", "_C.so.1"):
        (site / "linked" / name).rename(cache / name)
        (site / "linked" / name).symlink_to(cache / name)
    (site / "vllm" / "_C.so").unlink()
    (site / "vllm" / "_C.so").symlink_to("_C.so.1")
    unlisted(site, "torchao", "")
    unlisted(site, "xformers", "xformers-1.0.dist-info")
    (site / "xformers-1.0.dist-info" / "direct_url.json").write_text(EDITABLE)
    (site / "torchvision" / "_C.so").unlink()
    (site / "torchaudio" / "_C.so").write_text("INPUT(libc10.so)\n")
    headless = bytearray(LIBRARY)
    headless[40:48] = bytes(8)
    (site / "torchcodec" / "_C.so").write_bytes(headless)
    for name in ("torch_tensorrt", "mamba_ssm", "pyg_lib"):
        machine = 183 if name == "mamba_ssm" else 62
        foreign = library(MadeLibrary(needed=["libc10.so"], machine=machine))
        write_package(site, name, {f"{name}/__init__.py": "", f"{name}/_C.so": foreign})
    unlisted(site, "torch_tensorrt", "torch_tensorrt/__init__.py")
    shutil.copytree(site / "pyg_lib-1.0.dist-info", site / "pyg_lib-0.9.dist-info")
    (site / "half-1.0.dist-info").mkdir()
    plant(site / "torch", {"version.py": "__version__ = '2.99.0+cu999'\n", "__init__.py": ""})
    return measure("extensions", sys.executable, site, directory / "scratch")


def of(measured: dict[str, Any], name: str) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in measured["extensions"]}
    return rows[name]


BOTH = ["_C.so", "_C.so.1"]


# Links to a cache, a link inside of the package, no RECORD, editable, left out of RECORD.
@each(
    "name, libraries",
    [("linked", BOTH), ("vllm", BOTH[1:]), ("torchao", BOTH), ("xformers", BOTH), ("torch-tensorrt", BOTH[:1])],
)
def test_the_libraries_are_found(measured: dict[str, Any], name: str, libraries: list[str]) -> None:
    row = of(measured, name)
    folder = name.replace("-", "_")
    assert [library["path"] for library in row["libraries"]] == [f"{folder}/{library}" for library in libraries]
    assert row["libraries"][0]["missing"][0] == "libc10.so"


@each(
    "name, why",
    [("torchvision", "No such file"), ("torchaudio", "not an ELF file"), ("torchcodec", "no table of sections")],
)
def test_what_cannot_be_read_is_an_error(measured: dict[str, Any], cpu: View, name: str, why: str) -> None:
    row = of(measured, name)
    assert why in row["unread"][f"{name}/_C.so"]
    judged = extensions.judge(cpu, [{**measured, "extensions": [{**row, "libraries": []}]}])
    assert (judged.status, judged.code) == (ERROR, "extensions.not-looked-at")


def test_a_lost_library_stays_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 and later leave files that do not exist out of Distribution.files."""
    write_package(tmp_path, "torchvision", {"torchvision/_C.so": LIBRARY})
    (tmp_path / "torchvision" / "_C.so").unlink()
    monkeypatch.setattr(importlib.metadata.Distribution, "files", [])
    [dist] = importlib.metadata.distributions(path=[str(tmp_path)])
    [extension] = installed.extensions({"torchvision": dist})
    assert (extension.listed, [*extension.unread]) == (True, ["torchvision/_C.so"])


def test_a_library_for_another_machine_fails(measured: dict[str, Any], cpu: View) -> None:
    if measured["interpreter"]["machine"] != "x86_64":
        pytest.skip("the library is for aarch64")
    row = of(measured, "mamba-ssm")
    result = extensions.judge(cpu, [{**measured, "extensions": [row]}])
    assert (result.status, result.code) == (FAIL, "extensions.no-host")
    assert "mamba_ssm/_C.so is for aarch64, and this machine is x86_64" in result.summary


def test_two_versions_in_one_directory_are_an_error(measured: dict[str, Any], cpu: View) -> None:
    row = of(measured, "pyg-lib")
    result = extensions.judge(cpu, [{**measured, "extensions": [{**row, "libraries": []}]}])
    assert (result.status, result.code) == (ERROR, "extensions.not-looked-at")
    assert "METADATA of 0.9 and 1.0 lie in one directory" in result.summary
    assert of(measured, "vllm")["versions"] == ["1.0"]


def test_the_torch_that_is_imported_counts(measured: dict[str, Any]) -> None:
    assert measured["torch"] == "2.99.0+cu999"
