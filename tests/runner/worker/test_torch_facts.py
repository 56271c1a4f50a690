"""What a target's torch says of itself, asked without ever touching CUDA where ranks are forked from."""

import ctypes
import mmap
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from envcheck.checks.support import package_files
from envcheck.node.snapshot import Snapshot
from envcheck.runner.execute import Run, Watcher, validate
from envcheck.runner.local_python import ChosenPython, LocalPython
from envcheck.runner.planning import discover, plan
from envcheck.runner.worker import fork_server, torch_facts
from envcheck.runner.worker_session import RunPlan
from tests.runner.conftest import AddCheck, RunSite

Torch = Callable[..., None]

FAKE = """
import os, sys
__version__ = "{version}"
class _Bag:
    def __init__(self, **kw): self.__dict__.update(kw)
version = _Bag(cuda={cuda!r}, hip=None, git_version="abc")
backends = _Bag(cudnn=_Bag(version=lambda: 91002))
distributed = _Bag(is_available=lambda: True, is_nccl_available=lambda: True)
_C = _Bag(_cuda_getArchFlags=lambda: "sm_80 sm_90")
set_num_threads = lambda n: None
def _init():
{init}
def _device(index):
    return _Bag(name="NVIDIA H100 80GB HBM3", major=9, minor=0, uuid="1a-%d" % index, total_memory=80 << 30)
cuda = _Bag(
    is_initialized=lambda: {initialized},
    init=_init,
    device_count=lambda: {gpus},
    get_device_properties=_device,
    nccl=_Bag(version=lambda: (2, 27, 5)),
)
{more}
"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Torch:
    def write(
        *,
        cuda: str | None = "12.8",
        gpus: int = 2,
        version: str = "2.9.1+cu128",
        init: str = "pass",
        initialized: bool = False,
        more: str = "",
    ) -> None:
        package = tmp_path / "path" / "torch"
        package.mkdir(parents=True)
        body = textwrap.indent(init, "    ")
        (package / "__init__.py").write_text(
            FAKE.format(cuda=cuda, gpus=gpus, version=version, init=body, initialized=initialized, more=more)
        )
        monkeypatch.setenv("PYTHONPATH", str(package.parent))

    return write


def test_a_torch_that_sees_gpus_is_told_whole(torch: Torch, add: AddCheck, run_site: RunSite) -> None:
    torch()
    add("where", "return {'device': rank.device, 'backend': rank.backend}", "gpus=1, ranks=0")
    run = run_site()
    facts = run.environment
    assert (facts["torch"], facts["cuda"], facts["cudnn"], facts["nccl"]) == ("2.9.1+cu128", "12.8", "9.10.2", "2.27.5")
    assert facts["arch_list"] == ["sm_80", "sm_90"]
    assert facts["devices"][1] == {
        "index": 1,
        "name": "NVIDIA H100 80GB HBM3",
        "capability": "9.0",
        "uuid": "GPU-1a-1",
        "memory": 80 << 30,
    }
    assert (run.mode, run.view.mode, facts["start"]) == ("gpu", "gpu", "fork")
    assert run.outcomes["where"].ranks == [{"device": f"cuda:{r}", "backend": "nccl"} for r in (0, 1)]


@pytest.mark.parametrize(("gpus", "status"), [(1, "skip"), (2, "pass")])
def test_a_check_of_several_ranks_starts_nothing_where_there_is_one(
    torch: Torch, add: AddCheck, run_site: RunSite, gpus: int, status: str
) -> None:
    torch(gpus=gpus)
    add("together", "return {'device': rank.device}", "ranks=0, least_ranks=2")
    outcome = run_site().outcomes["together"]
    assert outcome.status == status
    assert bool(outcome.ranks) == (status == "pass")
    assert status == "pass" or outcome.summary == "needs 2 ranks, found 1"


def test_a_cuda_that_hangs_or_crashes_when_asked_costs_only_its_own_answer(
    torch: Torch, add: AddCheck, run_site: RunSite
) -> None:
    torch(init="os.abort()")
    add("plain", "return {}")
    run = run_site()
    assert run.environment["device_facts_error"] == "died of SIGABRT"
    assert run.environment["torch"] == "2.9.1+cu128"
    assert (run.mode, run.outcomes["plain"].status) == ("cpu", "pass")


def test_a_torch_that_cannot_be_imported_is_named(torch: Torch, add: AddCheck, run_site: RunSite) -> None:
    torch(more="raise OSError('libcudart.so.12: cannot open shared object file')")
    add("uses_torch", "import torch\nreturn {}", "ranks=1")
    add("plain", "return {}")
    run = run_site()
    assert run.environment["error"] == "OSError: libcudart.so.12: cannot open shared object file"
    assert run.outcomes["uses-torch"].summary == f"torch cannot be imported: {run.environment['error']}"
    assert "install the package that brings libcudart.so.12" in run.outcomes["uses-torch"].remedy
    assert run.outcomes["uses-torch"].log.endswith(f"[rank 0] {run.environment['error']}")
    assert run.outcomes["plain"].status == "pass"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("os.kill(os.getpid(), 11)", "the worker died of SIGSEGV while importing torch"),
        ("os._exit(4)", "the worker exited with code 4 while importing torch"),
        ("import time; time.sleep(600)", "importing torch took longer than 2 s"),
    ],
)
def test_an_import_that_kills_or_hangs_is_an_error_of_what_needs_torch_alone(
    torch: Torch,
    add: AddCheck,
    run_site: RunSite,
    monkeypatch: pytest.MonkeyPatch,
    more: str,
    message: str,
) -> None:
    monkeypatch.setattr("envcheck.runner.worker_session.IMPORT_TIMEOUT", 2.0)
    torch(more=more)
    add("plain", "return {}")
    add("uses_torch", "import torch\nreturn {}")
    run = run_site(require_gpu=True)
    assert run.outcomes["plain"].status == "pass"
    assert run.outcomes["uses-torch"].summary == f"torch cannot be imported: {message}"
    assert run.environment["error"] == message
    assert (run.outcomes["require-gpu"].status, run.verdict.exit_code) == ("error", 3)


def test_the_library_that_the_loader_was_in_when_a_signal_came_is_named(
    torch: Torch, add: AddCheck, run_site: RunSite, library: Callable[..., Path]
) -> None:
    bad = library("libbad.so", "#include <signal.h>\n__attribute__((constructor)) void in() { raise(SIGSEGV); }")
    torch(more=f"import ctypes; ctypes.CDLL({str(bad)!r})")
    add("uses_torch", "import torch\nreturn {}")
    summary = run_site().outcomes["uses-torch"].summary
    assert summary == f"torch cannot be imported: the worker died of SIGSEGV while importing torch, in {bad}"


@pytest.fixture
def library(tmp_path: Path) -> Callable[..., Path]:
    """Return what compiles C to a library."""

    def make(name: str, source: str) -> Path:
        path = tmp_path / name
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
        subprocess.run(command, input=source, text=True, check=True)
        return path

    return make


def test_a_library_says_its_version_in_its_name_its_text_or_its_size(library: Callable[..., Path]) -> None:
    text = 'char a[] = "GLIBCXX_3.4.9"; char b[] = "GLIBCXX_3.4.30";'
    plain, named = library("libstdc++.so.6", text), library("libnccl.so.2.21.5", "int n;")
    assert torch_facts.version(str(plain)) == "3.4.30"
    assert torch_facts.version(str(named)) == "2.21.5"
    assert torch_facts.version(str(named.rename(named.with_name("libz.so.1")))).endswith(" bytes")


def test_an_import_that_was_lost_is_told_by_any_signal_and_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(1 << 36)
        file.seek(0, os.SEEK_END)
        file.write(b"OSError: gone\n")
    assert torch_facts.lost_import(-40, log, 1.0).startswith(
        "the worker died of signal 40 while importing torch: OSError: g"
    )
    assert "died of SIGSEGV while" in torch_facts.lost_import(-11, tmp_path / "none", 1.0)


def test_a_blank_line_of_a_record_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "RECORD").write_text("a.py,,5\n\nlib.so,,5\n")
    # Those of CUTLASS overwrite each other (NVIDIA/cutlass#3170), and torch loads none of theirs.
    names = ("torch", "nvidia-cutlass-dsl-libs-base")
    packages = [SimpleNamespace(where=str(tmp_path), ledger="RECORD", name=name) for name in names]
    monkeypatch.setattr(package_files, "packages", lambda: packages)
    (unlike,) = torch_facts.try_imports("SIGKILL", tmp_path)["unlike"]
    assert unlike.endswith("lib.so: 0 bytes, and was installed with 5")


def test_a_torch_that_has_touched_cuda_when_imported_is_spawned_not_forked(
    torch: Torch, add: AddCheck, run_site: RunSite
) -> None:
    torch(initialized=True)
    add("fresh", "return {'torch': 'torch' in sys.modules}")
    run = run_site()
    assert run.environment["start"] == "spawn"
    assert run.outcomes["fresh"].ranks == [{"torch": False}] * 2


@pytest.mark.parametrize("ours", [False, True])
def test_only_an_environment_of_ours_tells_all_its_packages(
    torch: Torch,
    add: AddCheck,
    run_site: RunSite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    ours: bool,
) -> None:
    torch()
    for name in ("nvidia_nccl.cu12", "Torch_Vision", "torchvision", "secret-project"):
        info = tmp_path / "path" / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    marker = tmp_path / "promises.json"
    marker.touch()
    monkeypatch.setattr(torch_facts, "_OURS", (str(marker),) if ours else ())
    monkeypatch.syspath_prepend(tmp_path / "path")
    actual = torch_facts.python_facts()["packages"]
    assert {"nvidia-nccl-cu12": "1.0", "torchvision": "1.0"}.items() <= actual.items()
    assert ("secret-project" in actual) == ours
    assert ("pytest" in actual) == ours
    add("plain", "return {}")
    assert run_site().environment["packages"]["nvidia-nccl-cu12"] == "1.0"


@pytest.mark.parametrize("code", [0, 804])
def test_the_libcuda_that_was_loaded_is_told_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    library = tmp_path / "compat" / "libcuda.so.570.26"
    library.parent.mkdir()
    library.write_bytes(b"x" * mmap.PAGESIZE)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(cuInit=lambda _flags: code))
    with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ):
        assert torch_facts.driver_facts() == {"cuinit": code, "libcuda": str(library)}


def test_no_gpu_is_touched_before_the_node_was_read(torch: Torch, add: AddCheck, site: Path) -> None:
    touched = site / "touched"
    torch(init=f"open({str(touched)!r}, 'w').close()")
    add("one", "return {}", "ranks=1")
    seen: list[bool] = []

    def collect() -> Snapshot:
        time.sleep(1.0)  # longer than the stand-in needs to be imported
        seen.append(touched.exists())
        return Snapshot(taken="now")

    chosen = [f for f in discover(site) if f.path.is_relative_to(site)]
    target = LocalPython(ChosenPython(Path(sys.executable), "--python"))
    run = Run(RunPlan(plan=plan(chosen, level="full", nproc=1), chosen=chosen, target=target, site=site))
    validate(run, collect, Watcher(), pause=0.0)
    assert (seen, touched.exists()) == ([False], True)
    assert run.outcomes["one"].status == "pass"


def test_limits_stretch_with_a_slow_start_and_at_most_tenfold() -> None:
    assert [fork_server.stretch(took, 5.0) for took in (1.0, 5.0, 20.0, 500.0)] == [1.0, 1.0, 4.0, 10.0]
    assert fork_server.stretch(500.0, None) == 1.0  # the user's own --timeout stays
