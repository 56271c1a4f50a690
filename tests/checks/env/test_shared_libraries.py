"""A second library of a name, wherever the loader may find it: in its cache, in conda's lib, loaded, overwritten."""

import ctypes
import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, View
from envcheck.checks.env import shared_libraries
from envcheck.checks.extensions import installed
from tests.tables import each


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return where a CUDA wheel with its own cuDNN and cuBLAS is installed."""
    for name in ("torch/lib/libcudnn.so.9", "nvidia/cublas/lib/libcublas.so.12"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("known", "second"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcudnn.so.9", True),
        ("/usr/local/cuda/lib64/libcublas.so.12", True),
        ("/opt/conda/lib/libcublas.so.12", True),
        ("/usr/local/cuda/targets/x86_64-linux/lib/libcublas.so.12.9.1.4", True),
        ("/usr/local/cuda/lib64/libcublas.so.13", False),  # the loader looks for 12 (flashinfer-ai/flashinfer#2468)
        ("/usr/lib/libnccl.so.2", False),  # this torch brings none
        ("/usr/lib/libz.so.1", False),
        ("{site}/torch/lib/libcudnn.so.9", False),
    ],
)
def test_what_the_loader_knows_is_a_second_one_only_where_the_wheel_brings_it(
    site: Path, known: str, *, second: bool
) -> None:
    path = known.format(site=site)
    assert shared_libraries._beside(site, [path, path]) == ([path] if second else [])  # noqa: SLF001 (the one question)


def test_the_first_of_a_major_on_the_loaders_path_is_the_one_that_is_taken(
    site: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's own directory comes first in images of FlashInfer (flashinfer-ai/flashinfer#2468)."""
    own, cuda = site / "nvidia/cublas/lib", tmp_path_factory.mktemp("lib64")
    for name in ("libcublas.so", "libcublas.so.12.9.1.4", "libcublas.so.11"):
        (cuda / name).touch()
    for places, taken in (((own, cuda), []), ((cuda, own), [str(cuda / "libcublas.so.12.9.1.4")])):
        monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(map(str, places)))
        assert shared_libraries._beside(site, shared_libraries._on_path("lib*.so*")) == taken  # noqa: SLF001


def test_the_loaders_cache_is_read_as_it_is(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(b"glibc-ld.so.cache1.1\0\1\2\0libcudnn.so.9\0/usr/lib/libcudnn.so.9\0/etc/x\0")
    monkeypatch.setattr(installed, "CACHE", str(cache))
    assert shared_libraries._beside(site, installed.cached()) == ["/usr/lib/libcudnn.so.9"]  # noqa: SLF001
    monkeypatch.setattr(installed, "CACHE", str(tmp_path / "none"))
    assert installed.cached() == []


def test_two_that_are_loaded_are_seen_and_a_link_is_no_second(tmp_path: Path) -> None:
    mapped = shared_libraries._mapped()  # noqa: SLF001 (what this process has loaded)
    some = next(path for path in mapped if "site-packages" in path or "lib-dynload" in path)
    copies = [tmp_path / place / "libcufft.so.11" for place in ("a", "b")]
    for copy in copies:
        copy.parent.mkdir()
        shutil.copy(some, copy)
        ctypes.CDLL(str(copy), mode=os.RTLD_LAZY)
    assert shared_libraries._by_name(shared_libraries._mapped())["libcufft"] == [str(c) for c in copies]  # noqa: SLF001
    (tmp_path / "libcufft.so").symlink_to(copies[0])
    named = [str(copies[0]), str(tmp_path / "libcufft.so")]
    assert shared_libraries._by_name(named)["libcufft"] == named[:1]  # noqa: SLF001 (a path to one file)


@each(
    "trials, status, code, words",
    [
        ({"unlike": ["/venv/libc10.so: 5 bytes, and not 9"]}, FAIL, "torch.library-size", "libc10.so: 5"),
        ({"works_without": 7, "unlike": [None]}, FAIL, "torch.library-size", "None"),
        ({"works_without": ["LC_ALL"]}, FAIL, "torch.import-variable", "LC_ALL=C.UTF-8"),
        ({"unlike": [], "works_without": [], "last": "/usr/lib/x.so"}, ERROR, "torch.import", "SIGBUS, in /usr/lib/x"),
    ],
)
def test_what_torch_dies_of_is_named(cpu: View, trials: dict[str, Any], status: str, code: str, words: str) -> None:
    facts = {"error": "died of SIGBUS", "import_trials": trials, "device_count": 0}
    outcome = shared_libraries.judge(dataclasses.replace(cpu, environment=facts), [{"rank": 0}])
    assert (outcome.status, outcome.code) == (status, code)
    assert words in outcome.summary


@each(
    "said, fix",
    [
        ("/lib64/libm.so.6: version `GLIBC_2.29' not found (required by libtorch.so)", "use a base with that glibc"),
        ("libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent", "conda install 'mkl<2024.1'"),
        ("libtorch_cuda.so: undefined symbol: ncclAlltoAll", "install the nvidia-* packages that it names"),
        ("libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4", "have __nvJitLink"),
        ("libtorch_cpu.so: cannot enable executable stack as shared object requires", "GLIBC_TUNABLES"),
        ("/usr/lib/libgomp.so.1: cannot allocate memory in static TLS block", "set LD_PRELOAD=/usr/lib/libgomp.so.1"),
        ("ModuleNotFoundError: No module named 'typing_extensions'", "install typing_extensions"),
        ("ImportError: libcusparseLt.so.0: cannot open shared object file: No such", "brings libcusparseLt.so.0"),
        ("the worker died of SIGILL while importing torch", "pass the host's CPU through"),
        ("ModuleNotFoundError: No module named 'torch._C'", "install it again"),
    ],
)
def test_what_an_import_says_has_its_own_remedy(cpu: View, said: str, fix: str) -> None:
    facts = {"error": said, "import_trials": {"unlike": []}, "device_count": 0}
    outcome = shared_libraries.judge(dataclasses.replace(cpu, environment=facts), [{"rank": 0}])
    assert outcome.status == ERROR
    assert fix in outcome.remedy


def test_only_the_distributions_own_dangling_links_are_no_libraries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link, whole = tmp_path / "libcaffe2_observers.so", tmp_path / "libtorch.so"
    link.symlink_to(tmp_path / "missing")
    whole.touch()
    assert not shared_libraries.of_distribution(link)
    monkeypatch.setattr(shared_libraries, "DISTRIBUTION", f"{tmp_path}/")
    assert shared_libraries.of_distribution(link)
    assert not shared_libraries.of_distribution(whole)
