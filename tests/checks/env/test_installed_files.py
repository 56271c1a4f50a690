"""Installed files against what their installer wrote down: a package made by hand, then damaged in each way."""

import base64
import hashlib
import importlib.metadata
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, WARN, Outcome, Rank, View
from envcheck.checks.env import installed_binaries, installed_files
from envcheck.checks.support import package_files
from envcheck.node.snapshot import Snapshot
from tests.builders import plant
from tests.tables import each

RANK = Rank(0, 1, 0, "cpu", "gloo", ".")
VIEW = View(Snapshot(), {"torch": "9.9.0"})
FILES = {
    "torch/__init__.py": "from torch.version import __version__\n",
    "torch/version.py": "__version__ = '9.9.0+cpu'\n",
    "torch/nn.py": "EPS = 1e-5\n",
    "torch/lib/libtorch.so": "not really\n",
    "torch-9.9.0+cpu.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 9.9.0+cpu\n",
}
INFO = "torch-9.9.0+cpu.dist-info"


def line(path: Path, name: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{path.stat().st_size}\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with a small torch, as a wheel installs it, alone on the path."""
    plant(tmp_path, FILES)
    record = "".join(line(tmp_path / name, name) for name in FILES)
    (tmp_path / INFO / "RECORD").write_text(f"{record}torch/__pycache__/nn.cpython-311.pyc,,\n{INFO}/RECORD,,\n")
    return alone(monkeypatch, tmp_path, tmp_path)


def test_what_virtualenv_and_setuptools_start_passes(site: Path) -> None:
    shim = "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; "
    rewrite("_virtualenv.pth", "import _virtualenv\n")(site)
    rewrite("own.pth", "import os; os.getcwd()\n")(site)  # whoever it is, it leaves torch alone
    rewrite("distutils-precedence.pth", f"{shim}enabled and __import__('_distutils_hack').add_shim(); \n")(site)
    assert judged(installed_files).status == PASS


def rewrite(name: str, text: str) -> Callable[[Path], None]:
    return lambda site: plant(site, {name: text})


def checkout(site: Path) -> None:
    """Install torch as its README says, `pip install -e .`: pytorch/pytorch#195737."""
    (site / INFO / "direct_url.json").write_text('{"dir_info": {"editable": true}, "url": "file:///src"}')
    (site / INFO / "RECORD").write_text(line(site / INFO / "METADATA", f"{INFO}/METADATA"))
    (site / "torch/version.py").unlink()


DAMAGE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a package in place of a module": (rewrite("torch/nn/__init__.py", ""), FAIL, "in place of a file of its package"),
    "a planted file": (rewrite("torch/_x.py", ""), WARN, "torch/_x.py was added"),
    "a sitecustomize": (rewrite("sitecustomize.py", ""), WARN, "sitecustomize.py runs whenever Python starts"),
    "a sitecustomize that is a package": (rewrite("sitecustomize/__init__.py", ""), WARN, "sitecustomize runs"),
    "a .pth of a known name that runs more": (
        rewrite("_virtualenv.pth", "import _virtualenv; import torch\n"),
        FAIL,
        "_virtualenv.pth runs whenever Python starts",
    ),
    "a checkout": (checkout, WARN, "torch has no list of installed files"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_damage_is_named(site: Path, damage: str) -> None:
    change, status, message = DAMAGE[damage]
    change(site)
    outcome = judged(installed_files)
    assert outcome.status == status, outcome
    assert message in " ".join(finding.summary for finding in outcome.findings)
    assert all(finding.code for finding in outcome.findings)


def test_only_cutlass_puts_the_files_of_two_packages_in_one_place(site: Path) -> None:
    """Whichever came last is right: NVIDIA/cutlass#3170, vllm-project/vllm#40082, sgl-project/sglang#25938."""
    both = ("nvidia_both/mma.py", "nvidia_both/_ir.so")
    cases = (("cutlass_dsl_libs_base", "1", PASS), ("cutlass_dsl_x", "3", FAIL), ("nccl", "1", FAIL))
    for first, held, status in cases:
        for number, name in enumerate((f"nvidia_{first}", "nvidia_cutlass_dsl_libs_cu13"), 1):
            rewrite(f"{name}-4.5.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 4.5.0\n")(site)
            for file in both:
                rewrite(file, str(number))(site)
            rewrite(f"{name}-4.5.0.dist-info/RECORD", "".join(line(site / file, file) for file in both))(site)
        for file in both:
            rewrite(file, held)(site)
        assert (judged(installed_files).status, judged(installed_binaries).status) == (status, status)
        shutil.rmtree(site / f"nvidia_{first}-4.5.0.dist-info")


def test_nothing_measured_is_no_pass() -> None:
    assert installed_files.judge(VIEW, []).status == ERROR
    assert installed_binaries.judge(VIEW, [{"rank": 0}]).status == ERROR


@each(
    "damage",
    [{"changed_count": 3}, {"changed_count": True}, {"packages": [7]}, {"packages": [{"name": "torch", "ledger": 7}]}],
)
def test_a_measurement_that_contradicts_itself_is_no_pass(damage: dict[str, Any]) -> None:
    package = {"name": "torch", "version": "2.8.0", "ledger": "RECORD", "where": "/opt/torch"}
    counts = {f"{kind}_count": 0 for kind in installed_files.KINDS}
    sound = {"packages": [package], "files": 9, "listed": True, **counts}
    assert [finding.status for finding in installed_files.problems(sound)] == []
    assert ERROR in [finding.status for finding in installed_files.problems({**sound, **damage})]


CONDA_SITE = "lib/python3.11/site-packages"


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
    plant(prefix, {f"conda-meta/{name}-9.9.0-py3.11_cpu_0.json": json.dumps(record)})


@pytest.fixture
def conda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an environment of conda: Python files in `pytorch`, libraries in `libtorch`."""
    site = f"{tmp_path}/{CONDA_SITE}"
    info = f"{CONDA_SITE}/torch-9.9.0.dist-info"
    python = {f"{CONDA_SITE}/torch/{name}": text for name, text in (("__init__.py", ""), ("nn.py", "EPS = 1e-5\n"))}
    script = {"bin/torchrun": f"#!{tmp_path}/bin/python3.11\nimport torch\n"}
    libraries = {"lib/libtorch_cpu.so.9.9": "not really\n"}
    about = {f"{info}/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 9.9.0\n", f"{info}/INSTALLER": "conda\n"}
    plant(tmp_path, {**python, **script, **libraries, **about, "conda-meta/history": "==> today <==\n"})
    # RECORD is of before conda wrote its prefix into the script.
    plant(
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
    plant(tmp_path, {"lib/libz.so": "z"})
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


def test_what_a_checkout_takes_the_place_of_is_not_looked_for(conda: Path) -> None:
    torch = conda / CONDA_SITE / "torch-9.9.0.dist-info"
    editable = '{"dir_info": {"editable": true}, "url": "file:///src"}'
    plant(torch, {"direct_url.json": editable, "INSTALLER": "pip\n"})
    info = conda / CONDA_SITE / "torchvision-0.9.dist-info"
    info.mkdir()
    conda_record(conda, "torchvision", ["lib/libz.so"], {"_path": "lib/gone.py", "path_type": "hardlink"})
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.9\n")
    (info / "RECORD").write_text(line(info / "METADATA", f"{info.name}/METADATA"))
    (info / "direct_url.json").write_text(editable)
    outcome = judged(installed_files)
    assert outcome.status == WARN, outcome
    assert outcome.summary.startswith("torch has no list")


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
