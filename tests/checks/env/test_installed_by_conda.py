"""Installed files against the ledger of conda, in the layout that it writes."""

import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import FAIL, PASS, WARN, Outcome, Rank, View
from envcheck.checks.env import installed_binaries, installed_files
from envcheck.checks.support import package_files
from envcheck.node.snapshot import Snapshot

RANK = Rank(0, 1, 0, "cpu", "gloo", ".")
VIEW = View(Snapshot(), {"torch": "9.9.0"})
CONDA_SITE = "lib/python3.11/site-packages"
PYTHON = {
    "torch/__init__.py": "from torch.version import __version__\n",
    "torch/version.py": "__version__ = '9.9.0'\n",
    "torch/nn.py": "EPS = 1e-5\n",
}
METADATA = "Metadata-Version: 2.1\nName: torch\nVersion: 9.9.0\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def conda_record(prefix: Path, name: str, files: list[str], *more: dict[str, Any]) -> None:
    """Write conda-meta/NAME.json, as conda does: digests of files before and after its prefix was written into them."""
    paths = [
        {
            "_path": file,
            "path_type": "hardlink",
            "sha256": "0" * 64 if file.startswith("bin/") else hashlib.sha256((prefix / file).read_bytes()).hexdigest(),
            "sha256_in_prefix": hashlib.sha256((prefix / file).read_bytes()).hexdigest(),
            "size_in_bytes": (prefix / file).stat().st_size,
        }
        for file in files
    ]
    record = {
        "build": "py3.11_cpu_0",
        "channel": "conda-forge",
        "files": [*files, *(row["_path"] for row in more)],
        "name": name,
        "paths_data": {"paths": [*paths, *more], "paths_version": 1},
        "version": "9.9.0",
    }
    write(prefix, {f"conda-meta/{name}-9.9.0-py3.11_cpu_0.json": json.dumps(record)})


@pytest.fixture
def conda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an environment of conda: Python files in `pytorch`, libraries in `libtorch`."""
    site = f"{tmp_path}/{CONDA_SITE}"
    info = f"{CONDA_SITE}/torch-9.9.0.dist-info"
    python = {f"{CONDA_SITE}/{name}": text for name, text in PYTHON.items()}
    script = {"bin/torchrun": f"#!{tmp_path}/bin/python3.11\nimport torch\n"}
    libraries = {"lib/libtorch_cpu.so.9.9": "not really\n"}
    about = {f"{info}/METADATA": METADATA, f"{info}/INSTALLER": "conda\n"}
    write(tmp_path, {**python, **script, **libraries, **about, "conda-meta/history": "==> today <==\n"})
    # RECORD is of before conda wrote its prefix into the script.
    write(
        tmp_path,
        {f"{info}/RECORD": f"torch/nn.py,sha256=AAAA,11\n../../../bin/torchrun,sha256=AAAA,9\n{info}/RECORD,,\n"},
    )
    made = [
        {"_path": f"{CONDA_SITE}/torch/__pycache__/nn.cpython-311.pyc", "path_type": "pyc_file"},
        {"_path": "bin/convert-onnx", "path_type": "unix_python_entry_point"},
    ]
    conda_record(tmp_path, "pytorch", [*python, *script, *about], *made)
    (tmp_path / "lib/libtorch_cpu.so").symlink_to("libtorch_cpu.so.9.9")
    empty = hashlib.sha256(b"").hexdigest()
    link = {"_path": "lib/libtorch_cpu.so", "path_type": "softlink", "sha256": empty, "sha256_in_prefix": empty}
    conda_record(tmp_path, "libtorch", [*libraries], link)
    write(tmp_path, {"lib/libz.so": "z"})
    conda_record(tmp_path, "zlib", ["lib/libz.so"])
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return alone(monkeypatch, Path(site), tmp_path)


def alone(monkeypatch: pytest.MonkeyPatch, site: Path, root: Path) -> Path:
    """Make a directory the only one on the path."""
    actual = importlib.metadata.distributions
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: actual(path=[str(site)]))
    monkeypatch.setattr(installed_files, "_imported", lambda: str(site / "torch/__init__.py"))
    monkeypatch.setattr(sys, "path", [str(site)])
    return root


def judged(check: Any) -> Outcome:
    outcome: Outcome = check.judge(VIEW, [check.measure(RANK)])
    return outcome


@pytest.mark.usefixtures("conda")
def test_a_sound_installation_passes_by_its_ledger() -> None:
    [torch] = package_files.packages()
    assert (torch.name, torch.ledger) == ("torch", "conda-meta")
    for check in (installed_files, installed_binaries):
        outcome = judged(check)
        assert (outcome.status, outcome.findings) == (PASS, ()), outcome


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_text("another\n"), "was changed"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "was changed"),
        (lambda path: path.unlink(), "is missing"),
    ],
)
def test_each_damaged_file_is_named_by_the_check_for_it(conda: Path, damage: Callable[[Path], Any], words: str) -> None:
    source, library = conda / CONDA_SITE / "torch/nn.py", conda / "lib/libtorch_cpu.so.9.9"
    damage(library)
    assert judged(installed_files).status == PASS
    outcome = judged(installed_binaries)
    assert (outcome.status, outcome.culprit) == (FAIL, str(library))
    assert words in outcome.summary
    damage(source)
    outcome = judged(installed_files)
    assert (outcome.status, outcome.culprit) == (FAIL, str(source))
    assert words in outcome.summary


def test_a_script_that_conda_wrote_its_prefix_into_is_held_against_the_result(conda: Path) -> None:
    assert judged(installed_binaries).status == PASS
    (conda / "bin/torchrun").write_text("#!/usr/bin/python3\nimport torch\n")
    outcome = judged(installed_binaries)
    assert (outcome.status, outcome.culprit) == (FAIL, str(conda / "bin/torchrun"))


def test_a_wheel_that_pip_put_into_a_conda_environment_is_held_against_its_own_record(conda: Path) -> None:
    info = conda / CONDA_SITE / "torch-9.9.0.dist-info"
    (info / "INSTALLER").write_text("pip\n")
    [torch] = package_files.packages()
    assert torch.ledger == "RECORD"


@pytest.mark.parametrize("text", ["conda-meta/pytorch-9.9.0-py3.11_cpu_0.json", "conda-meta"])
def test_without_a_ledger_nothing_passes(conda: Path, text: str) -> None:
    (conda / CONDA_SITE / "torch-9.9.0.dist-info/RECORD").unlink()
    for path in sorted((conda / text).glob("*.json")) or [conda / text]:
        path.unlink()
    assert judged(installed_files).status in (WARN, FAIL)


def test_files_without_a_digest_are_told(conda: Path) -> None:
    path = conda / "conda-meta/pytorch-9.9.0-py3.11_cpu_0.json"
    record = json.loads(path.read_text())
    for row in record["paths_data"]["paths"]:
        row.pop("sha256", None)
        row.pop("sha256_in_prefix", None)
    path.write_text(json.dumps(record))
    outcome = judged(installed_files)
    assert (outcome.status, outcome.code) == (WARN, "installed.without-digest")
