"""What surrounds torch in its own environment: variables, and how much memory may be locked."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, PASS, WARN, Rank, View
from envcheck.checks.env import environment_variables, memlock, shm
from tests.tables import each

Node = Callable[..., View]
RANK = Rank(0, 1, 0, "cpu", "gloo", "")


@each(
    "allowed, status",
    [(-1, PASS), (16 << 30, PASS), ((16 << 30) - 1, WARN), (8 << 20, WARN), (None, ERROR), (float("nan"), ERROR)],
)
def test_memlock_on_each_side_of_its_limit(node: Node, allowed: Any, status: str) -> None:
    assert memlock.judge(node("h100x8"), [{"rank": 0, "bytes": allowed}]).status == status
    assert memlock.judge(node("h100x8"), []).status == ERROR


def test_the_limits_of_this_process_are_read() -> None:
    assert memlock.measure(RANK)["bytes"] == resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    assert shm.measure(RANK)["total"] >= shm.measure(RANK)["free"] > 0


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    files = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")
    rules = environment_variables
    others = (*rules.THREADS, *rules.ALLOCATOR, *rules.INTERFACES, "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")
    for name in (*rules.RULES, *others, *files):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.usefixtures("clean")
def test_a_clean_environment_passes(node: Node) -> None:
    assert environment_variables.judge(node("h100x8"), [environment_variables.measure(RANK)]).status == PASS


HARMFUL = {
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_P2P_LEVEL": "LOC",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "LL128",
    "PYTHONHOME": "/opt/python",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
}
HARMLESS = {"NCCL_NVLS_ENABLE": "1", "NCCL_P2P_LEVEL": "NVL"}


@pytest.mark.parametrize("name", environment_variables.RULES)
def test_each_harmful_variable_is_named(node: Node, clean: pytest.MonkeyPatch, name: str) -> None:
    clean.setenv(name, HARMFUL.get(name, "1"))
    outcome = environment_variables.judge(node("h100x8"), [environment_variables.measure(RANK)])
    assert (outcome.status, outcome.culprit) == (WARN, name)
    assert outcome.code == f"environment.{name.lower().replace('_', '-')}"
    assert name in outcome.summary
    assert name in outcome.remedy


SWITCHES = [name for name, rule in environment_variables.RULES.items() if rule.harmful != ".*"]
FOR_GPUS = [name for name, rule in environment_variables.RULES.items() if rule.gpu_only]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_that_is_off_does_no_harm(node: Node, clean: pytest.MonkeyPatch, name: str) -> None:
    clean.setenv(name, HARMLESS.get(name, "0"))
    assert environment_variables.judge(node("h100x8"), [environment_variables.measure(RANK)]).status == PASS


@pytest.mark.parametrize("name", FOR_GPUS)
def test_what_slows_gpus_is_a_warning_there_alone(cpu: View, clean: pytest.MonkeyPatch, name: str) -> None:
    clean.setenv(name, HARMFUL.get(name, "1"))
    assert environment_variables.judge(cpu, [environment_variables.measure(RANK)]).status == PASS


def test_every_harmful_variable_is_a_finding(node: Node, clean: pytest.MonkeyPatch) -> None:
    for name in ("NVIDIA_TF32_OVERRIDE", "NCCL_PROTO", "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        clean.setenv(name, "1")
    outcome = environment_variables.judge(node("h100x8"), [environment_variables.measure(RANK)])
    assert {f.culprit for f in outcome.findings} == {
        *("NVIDIA_TF32_OVERRIDE", "NCCL_PROTO", "PYTORCH_NO_CUDA_MEMORY_CACHING")
    }


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:[256:1,512:2],expandable_segments:True", PASS),
        ("PYTORCH_ALLOC_CONF", "an_option_of_next_year:True", PASS),
        ("PYTORCH_ALLOC_CONF", "max_split_size:128", WARN),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:native,expandable_segment:True", WARN),
        ("NCCL_SOCKET_IFNAME", "l", PASS),
        ("NCCL_SOCKET_IFNAME", "=lo", PASS),
        ("NCCL_SOCKET_IFNAME", "^docker,eth99", PASS),
        ("NCCL_SOCKET_IFNAME", "=l", WARN),
        ("NCCL_SOCKET_IFNAME", "eth99", WARN),
        ("GLOO_SOCKET_IFNAME", "lo", PASS),
        ("GLOO_SOCKET_IFNAME", "l", WARN),
        ("TP_SOCKET_IFNAME", "eth99", WARN),
        ("LD_PRELOAD", "/nowhere/libjemalloc.so.2", WARN),
        ("LD_PRELOAD", "libjemalloc.so.2", PASS),
        ("HTTP_PROXY", "http://192.0.2.1:3128", WARN),
        ("HTTPS_PROXY", "http://192.0.2.1:3128", PASS),
    ],
)
def test_a_value_that_names_what_is_not_there_is_a_warning(
    cpu: View, clean: pytest.MonkeyPatch, name: str, value: str, status: str
) -> None:
    clean.setenv(name, value)
    outcome = environment_variables.judge(cpu, [environment_variables.measure(RANK)])
    assert (outcome.status, outcome.culprit) == (status, name if status == WARN else "")


def test_a_proxy_that_leaves_loopback_alone_passes(cpu: View, clean: pytest.MonkeyPatch) -> None:
    clean.setenv("HTTP_PROXY", "http://192.0.2.1:3128")
    clean.setenv("NO_PROXY", "localhost,127.0.0.1,.corp")
    assert environment_variables.judge(cpu, [environment_variables.measure(RANK)]).status == PASS


@each(
    "value, status",
    [("4", PASS), ("5", WARN), ("1", PASS), ("5,1", WARN), ("4,9", PASS), ("all", WARN), ("0", WARN), ("-1", WARN)],
)
def test_more_threads_than_cores_is_a_warning(cpu: View, value: str, status: str) -> None:
    entry = {"rank": 0, "variables": {"OMP_NUM_THREADS": value}, "libraries": [], "preload": [], "modules": []}
    outcome = environment_variables.judge(cpu, [{**entry, "cores": 4}])
    assert outcome.status == status
    assert outcome.culprit == ("OMP_NUM_THREADS" if status == WARN else "")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("random.py", WARN),
        ("json/__init__.py", WARN),
        ("torch/__init__.py", WARN),
        ("numpy/__init__.py", WARN),
        ("sitecustomize.py", WARN),
        ("train.py", PASS),
        ("README.md", PASS),
    ],
)
def test_a_module_on_pythonpath_that_shadows_another_is_named(
    cpu: View, clean: pytest.MonkeyPatch, tmp_path: Path, name: str, status: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    clean.setenv("PYTHONPATH", f"/nowhere:{tmp_path}")
    outcome = environment_variables.judge(cpu, [environment_variables.measure(RANK)])
    assert outcome.status == status
    assert (str(tmp_path / name.split("/", maxsplit=1)[0]) in outcome.summary) == (status == WARN)


@each(
    "preload, status",
    [
        ("/opt/fault/libinject.so", WARN),
        ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", PASS),
        ("/usr/lib/libtcmalloc_minimal.so.4 /x/libspy.so", WARN),
        ("libgomp-a34b3233.so.1", PASS),
    ],
)
def test_a_preloaded_library_is_named_unless_it_is_an_allocator(cpu: View, preload: str, status: str) -> None:
    entry = {"rank": 0, "variables": {}, "libraries": [], "modules": [], "cores": 4}
    outcome = environment_variables.judge(cpu, [{**entry, "preload": preload.split()}])
    assert outcome.status == status
    assert outcome.culprit == ("LD_PRELOAD" if status == WARN else "")


@pytest.mark.parametrize(
    ("library", "status"),
    [("libcudnn.so.9", WARN), ("libnccl.so.2", WARN), ("stubs/libcuda.so", WARN), ("libcuda.so.1", PASS)],
)
def test_a_library_before_the_wheels_own_is_named(
    node: Node, cpu: View, clean: pytest.MonkeyPatch, tmp_path: Path, library: str, status: str
) -> None:
    path = tmp_path / library
    path.parent.mkdir(exist_ok=True)
    path.touch()
    clean.setenv("LD_LIBRARY_PATH", f"/nowhere::{path.parent}")
    measured = [environment_variables.measure(RANK)]
    outcome = environment_variables.judge(node("h100x8"), measured)
    assert outcome.status == status
    assert (str(path) in outcome.summary) == (status == WARN)
    assert environment_variables.judge(cpu, measured).status == PASS


def test_the_libraries_of_the_wheel_itself_are_no_finding(
    node: Node, clean: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "site-packages/torch/lib"
    own.mkdir(parents=True)
    (own / "libcudnn.so.9").touch()
    clean.syspath_prepend(str(tmp_path / "site-packages"))
    clean.setenv("LD_LIBRARY_PATH", str(own))
    assert environment_variables.judge(node("h100x8"), [environment_variables.measure(RANK)]).status == PASS


def test_an_environment_that_was_not_read_is_an_error(node: Node) -> None:
    assert environment_variables.judge(node("h100x8"), []).status == ERROR
    assert environment_variables.judge(node("h100x8"), [{"rank": 0, "variables": None}]).status == ERROR
