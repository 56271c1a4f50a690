"""Installed files against what their installer wrote down: a package made by hand, then damaged in each way."""

import base64
import hashlib
import importlib.metadata
import os
import py_compile
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, WARN, Rank, View
from envcheck.checks.env import installed_binaries, installed_bytecode, installed_files
from envcheck.node.snapshot import Snapshot
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
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    record = "".join(line(tmp_path / name, name) for name in FILES)
    (tmp_path / INFO / "RECORD").write_text(f"{record}torch/__pycache__/nn.cpython-311.pyc,,\n{INFO}/RECORD,,\n")
    actual = importlib.metadata.distributions
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: actual(path=[str(tmp_path)]))
    monkeypatch.setattr(installed_files, "_imported", lambda: str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return tmp_path


def files() -> Any:
    return installed_files.judge(VIEW, [installed_files.measure(RANK)])


def binaries() -> Any:
    return installed_binaries.judge(VIEW, [installed_binaries.measure(RANK)])


@pytest.mark.usefixtures("site")
def test_what_is_as_installed_passes() -> None:
    assert (files().status, binaries().status) == (PASS, PASS)


def test_what_virtualenv_and_setuptools_start_passes(site: Path) -> None:
    shim = "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; "
    rewrite("_virtualenv.pth", "import _virtualenv\n")(site)
    rewrite("own.pth", "import os; os.getcwd()\n")(site)  # whoever it is, it leaves torch alone
    rewrite("distutils-precedence.pth", f"{shim}enabled and __import__('_distutils_hack').add_shim(); \n")(site)
    assert files().status == PASS


def rewrite(name: str, text: str) -> Callable[[Path], None]:
    def change(site: Path) -> None:
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return change


def install_again(site: Path) -> None:
    (site / "torch-9.8.0.dist-info").mkdir()
    (site / "torch-9.8.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.8.0\n")


def checkout(site: Path) -> None:
    """Install torch as its README says, `pip install -e .`: pytorch/pytorch#195737."""
    (site / INFO / "direct_url.json").write_text('{"dir_info": {"editable": true}, "url": "file:///src"}')
    (site / INFO / "RECORD").write_text(line(site / INFO / "METADATA", f"{INFO}/METADATA"))
    (site / "torch/version.py").unlink()


DAMAGE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "an edited constant": (rewrite("torch/nn.py", "EPS = 1e-3\n"), FAIL, "torch/nn.py was changed"),
    "a missing file": (lambda site: (site / "torch/nn.py").unlink(), FAIL, "torch/nn.py is missing"),
    "another version": (rewrite("torch/version.py", "__version__ = '9.8.0'\n"), FAIL, "torch/version.py"),
    "a package in place of a module": (rewrite("torch/nn/__init__.py", ""), FAIL, "in place of a file of its package"),
    "a library in place of a module": (rewrite("torch/nn.abi3.so", ""), FAIL, "in place of a file of its package"),
    "two versions": (install_again, FAIL, "torch is installed twice"),
    "a planted file": (rewrite("torch/_x.py", ""), WARN, "torch/_x.py was added"),
    "a sitecustomize that imports torch": (rewrite("sitecustomize.py", "import torch\n"), FAIL, "or changes torch"),
    "a sitecustomize": (rewrite("sitecustomize.py", ""), WARN, "sitecustomize.py runs whenever Python starts"),
    "a sitecustomize that is a package": (
        rewrite("sitecustomize/__init__.py", ""),
        WARN,
        "sitecustomize runs whenever Python starts",
    ),
    "a .pth of a known name that runs more": (
        rewrite("_virtualenv.pth", "import _virtualenv; import torch\n"),
        FAIL,
        "_virtualenv.pth runs whenever Python starts",
    ),
    "a .pth that runs": (rewrite("x.pth", "import torch\n"), FAIL, "x.pth runs whenever Python starts"),
    "no RECORD": (lambda site: (site / INFO / "RECORD").unlink(), WARN, "torch has no list of installed files"),
    "a checkout": (checkout, WARN, "torch has no list of installed files"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_damage_is_named(site: Path, damage: str) -> None:
    change, status, message = DAMAGE[damage]
    change(site)
    outcome = files()
    assert outcome.status == status, outcome
    assert message in " ".join(finding.summary for finding in outcome.findings)
    assert all(finding.code for finding in outcome.findings)


def test_only_cutlass_puts_the_files_of_two_packages_in_one_place(site: Path) -> None:
    """Whichever came last is right: NVIDIA/cutlass#3170, vllm-project/vllm#40082, sgl-project/sglang#25938."""
    both = ("nvidia_both/mma.py", "nvidia_both/_ir.so")
    for first, held, status in (
        ("cutlass_dsl_libs_base", "1", PASS),
        ("cutlass_dsl_x", "3", FAIL),
        ("nccl", "1", FAIL),
    ):
        for number, name in enumerate((f"nvidia_{first}", "nvidia_cutlass_dsl_libs_cu13"), 1):
            rewrite(f"{name}-4.5.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 4.5.0\n")(site)
            for file in both:
                rewrite(file, str(number))(site)
            rewrite(f"{name}-4.5.0.dist-info/RECORD", "".join(line(site / file, file) for file in both))(site)
        for file in both:
            rewrite(file, held)(site)
        assert (files().status, binaries().status) == (status, status)
        shutil.rmtree(site / f"nvidia_{first}-4.5.0.dist-info")


def test_a_library_with_one_other_byte_fails(site: Path) -> None:
    (site / "torch/lib/libtorch.so").write_text("not reallz\n")
    outcome = binaries()
    assert outcome.status == FAIL
    assert "libtorch.so was changed" in outcome.summary


def test_a_torch_from_elsewhere_fails(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_files, "_imported", lambda: str(site / "elsewhere" / "torch" / "__init__.py"))
    outcome = files()
    assert outcome.status == FAIL
    assert "which its package did not bring" in outcome.summary


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


def test_bytecode_of_another_source_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "one.py"
    source.write_text("EPS = 1e-5\n")
    py_compile.compile(str(source))
    assert installed_bytecode.stale([source]) == []
    before = source.stat()
    source.write_text("EPS = 1e-3\n")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(installed_bytecode.stale([source])) == 1
