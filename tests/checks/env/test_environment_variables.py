"""What surrounds torch in its own environment: variables, and how much memory may be locked."""

import dataclasses
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, PASS, SKIP, WARN, Outcome, Rank, View
from envcheck.checks.env import environment_variables, memlock, shm
from tests.builders import gpu_view, plant, put
from tests.tables import each

RANK = Rank(0, 1, 0, "cpu", "gloo", "")


@each(
    "allowed, status",
    [(-1, PASS), (16 << 30, PASS), ((16 << 30) - 1, WARN), (8 << 20, WARN), (None, ERROR), (float("nan"), ERROR)],
)
def test_memlock_on_each_side_of_its_limit_where_a_port_is_up(allowed: Any, status: str) -> None:
    assert memlock.judge(gpu_view("h100x8"), [{"rank": 0, "bytes": allowed}]).status == status
    assert memlock.judge(gpu_view("h100x8"), []).status == ERROR
    down = [{**port, "state": "DOWN"} for port in gpu_view("h100x8").snapshot.signal("ib.ports").value]
    for ports in ([], down):
        outcome = memlock.judge(put(gpu_view("h100x8"), ib__ports=ports), [{"rank": 0, "bytes": allowed}])
        assert outcome.status == (SKIP if status == WARN else status)


def test_the_limits_of_this_process_are_read() -> None:
    assert memlock.measure(RANK)["bytes"] == resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    assert shm.measure(RANK)["total"] >= shm.measure(RANK)["free"] > 0


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    rules = environment_variables
    others = (*rules.THREADS, *rules.BINDING, *rules.ALLOCATOR, *rules.INTERFACES, "LD_PRELOAD", "PYTHONPATH")
    for name in (*rules.RULES, *others, "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def judged(view: View, clean: pytest.MonkeyPatch, **variables: str) -> Outcome:
    """Return what the check says where these variables are set, and no others that matter."""
    with clean.context() as here:
        for name, value in variables.items():
            here.setenv(name, value)
        return environment_variables.judge(view, [{**environment_variables.measure(RANK), "cards": ["mlx5_0"]}])


HARMFUL = {
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_P2P_LEVEL": "LOC",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_PROC_BIND": "master",
}
HARMLESS = {"NCCL_P2P_LEVEL": "NVL", "NCCL_PROTO": "^LL128", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
HARMLESS |= dict.fromkeys(("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"), "1")


@each("name, rule", environment_variables.RULES.items())
def test_each_harmful_variable_is_named_and_does_none_where_it_is_off(
    cpu: View, clean: pytest.MonkeyPatch, name: str, rule: environment_variables.VariableRule
) -> None:
    harmful = {name: HARMFUL.get(name, "1")}
    outcome = judged(gpu_view("h100x8"), clean, **harmful)
    assert (outcome.status, outcome.culprit) == (WARN, name)
    assert outcome.code == f"environment.{name.lower().replace('_', '-')}"
    assert name in outcome.summary
    assert name in outcome.remedy
    assert judged(cpu, clean, **harmful).status == (PASS if rule.gpu_only else WARN)
    if rule.harmful != ".*":
        assert judged(gpu_view("h100x8"), clean, **{name: HARMLESS.get(name, "0")}).status == PASS


def test_a_clean_environment_passes_and_every_harmful_variable_is_a_finding(clean: pytest.MonkeyPatch) -> None:
    assert judged(gpu_view("h100x8"), clean).status == PASS
    names = ("NVIDIA_TF32_OVERRIDE", "NCCL_PROTO", "PYTORCH_NO_CUDA_MEMORY_CACHING")
    outcome = judged(gpu_view("h100x8"), clean, **dict.fromkeys(names, "1"))
    assert {finding.culprit for finding in outcome.findings} == {*names}
    # What Google's plugins ask for: NVIDIA/aicr#422.
    googles = {"NCCL_ALGO": "Ring,Tree", "NCCL_PROTO": "Simple", "NCCL_NVLS_ENABLE": "0"}
    for other in ({"NCCL_PROTO": "Simple,LL128"}, {"NCCL_PROTO": "LL128"}, {"NCCL_ALGO": "Tree"}):
        outcome = judged(gpu_view("h100x8"), clean, **{**googles, **other}, NCCL_FASTRAK_CTRL_DEV="lo")
        assert outcome.status == (PASS if "Simple,LL128" in other.values() else WARN)
    for name, status in (("NCCL_FASTRAK_CTRL_DEV", PASS), ("NCCL_GPUDIRECTTCPX_CTRL_DEV", PASS), ("NCCL_NET", WARN)):
        assert judged(gpu_view("h100x8"), clean, **googles, **{name: "lo"}).status == status


def test_what_forbids_what_is_not_there_does_no_harm() -> None:
    """As accelerate asks for GeForce of the 40 series: huggingface/accelerate#2195, QwenLM/Qwen-VL#447."""
    entry = {"preload": [], "modules": [], "cores": 4, "variables": {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}}
    for name, cards, culprits in (
        ("h100x1", [], set()),
        ("h100x1", ["mlx5_0"], {"NCCL_IB_DISABLE"}),
        ("h100x8", [], {"NCCL_P2P_DISABLE"}),
    ):
        outcome = environment_variables.judge(gpu_view(name), [{**entry, "cards": cards}])
        assert {finding.culprit for finding in outcome.findings} - {""} == culprits
    for said, status in (("not supported", PASS), ("unknown", WARN)):
        pairs = [{"a": 0, "b": 1, "read": said, "write": said, "nvlink": said, "path": "SYS"}]
        view = put(gpu_view("h100x8"), gpu__p2p=pairs)
        assert environment_variables.judge(view, [{**entry, "cards": []}]).status == status


@each(
    "name, value, status",
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:[256:1,512:2],expandable_segments:True", PASS),
        ("PYTORCH_ALLOC_CONF", "an_option_of_next_year:True", PASS),
        ("PYTORCH_ALLOC_CONF", "max_split_size:128", WARN),
        ("NCCL_SOCKET_IFNAME", "l", PASS),
        ("NCCL_SOCKET_IFNAME", "=lo", PASS),
        ("NCCL_SOCKET_IFNAME", "^docker,eth99", PASS),
        ("NCCL_SOCKET_IFNAME", "=l", WARN),
        ("GLOO_SOCKET_IFNAME", "lo", PASS),
        ("GLOO_SOCKET_IFNAME", "l", WARN),
        ("GLOO_SOCKET_IFNAME", "^lo,docker,veth,eni", WARN),  # aws-samples/aws-do-eks#51
        ("GLOO_SOCKET_IFNAME", "lo,eth99", WARN),
        ("GLOO_SOCKET_IFNAME", "=lo", WARN),
        ("TP_SOCKET_IFNAME", "eth99", WARN),
        ("LD_PRELOAD", "libjemalloc.so.2", PASS),
        ("HTTPS_PROXY", "http://192.0.2.1:3128", PASS),
    ],
)
def test_a_value_that_names_what_is_not_there_is_a_warning(
    cpu: View, clean: pytest.MonkeyPatch, name: str, value: str, status: str
) -> None:
    outcome = judged(cpu, clean, **{name: value})
    assert (outcome.status, outcome.culprit) == (status, name if status == WARN else "")
    assert ("names eth99, no network interface" in outcome.summary) == (status == WARN and "eth99" in value)


@each(
    "cards, others, status",
    [(["mlx5_0"], {"NCCL_NET": "ib"}, WARN), (["mlx5_0"], {"NCCL_NET": "Socket"}, PASS), (["rdmap16s27"], {}, PASS)],
)
def test_a_list_of_cards_is_judged_where_nccl_reads_it(cards: list[str], others: dict[str, str], status: str) -> None:
    set_here = {"NCCL_IB_HCA": "=mlxl5_0", **others}
    entry = {"variables": set_here, "preload": [], "modules": [], "cores": 4, "cards": cards}
    outcome = environment_variables.judge(gpu_view("h100x8"), [entry])
    assert (outcome.status, "no RDMA card" in outcome.summary) == (status, status == WARN)
    off = {**entry, "variables": {**set_here, "NCCL_IB_DISABLE": "1"}}
    assert environment_variables.judge(gpu_view("h100x8"), [off]).culprit == "NCCL_IB_DISABLE"


@each(
    "name, value, threads, status",
    [
        ("GOMP_CPU_AFFINITY", "0", 1, PASS),
        ("GOMP_CPU_AFFINITY", "0 2-3", 4, WARN),
        ("GOMP_CPU_AFFINITY", "0-6:2", 4, PASS),
        ("GOMP_CPU_AFFINITY", "0-99999999999", 4, PASS),
        ("KMP_AFFINITY", "verbose,explicit,proclist=[0-1,{1}]", 4, WARN),
        ("KMP_AFFINITY", "explicit,proclist=[0,1,{2,3}]", 4, PASS),
        ("KMP_AFFINITY", "explicit,proclist=[7-0:-1]", 4, PASS),
        ("KMP_AFFINITY", "explicit,proclist=[0,7-1]", 4, PASS),
        ("KMP_AFFINITY", "granularity=fine,compact,1,0", 4, PASS),
        ("OMP_PLACES", "{0,1},{2}", 4, WARN),
        ("OMP_PLACES", "{0:2},{2:2}", 4, PASS),
        ("OMP_PLACES", "{0}:4:2", 4, PASS),
        ("OMP_PLACES", "sockets(1)", 4, PASS),
    ],
)
def test_a_list_of_cores_that_is_shorter_than_the_threads_is_a_warning(
    cpu: View, name: str, value: str, threads: int, status: str
) -> None:
    entry = {"rank": 0, "variables": {name: value}, "preload": [], "modules": [], "cores": 1}
    outcome = environment_variables.judge(put_facts(cpu, threads=threads), [entry])
    assert (outcome.status, outcome.culprit) == (status, name if status == WARN else "")


def put_facts(view: View, **facts: Any) -> View:
    return dataclasses.replace(view, environment={**view.environment, **facts})


@each(
    "value, status",
    [("4", PASS), ("5", WARN), ("1", PASS), ("5,1", WARN), ("4,9", PASS), ("all", WARN), ("0", WARN), ("-1", WARN)],
)
def test_more_threads_than_cores_is_a_warning(cpu: View, value: str, status: str) -> None:
    entry = {"rank": 0, "variables": {"OMP_NUM_THREADS": value}, "preload": [], "modules": []}
    outcome = environment_variables.judge(cpu, [{**entry, "cores": 4}])
    assert outcome.status == status
    assert outcome.culprit == ("OMP_NUM_THREADS" if status == WARN else "")


@each(
    "name, status",
    [
        *((name, WARN) for name in ("random.py", "json/__init__.py", "torch/__init__.py", "sitecustomize.py")),
        ("triton.py", WARN),
        # A module system's torch is nowhere else (docs.easybuild.io/python-search-path).
        *((name, PASS) for name in ("train.py", "README.md", "triton/__init__.py")),
    ],
)
def test_a_module_on_pythonpath_that_shadows_another_is_named(
    cpu: View, clean: pytest.MonkeyPatch, tmp_path: Path, name: str, status: str
) -> None:
    plant(tmp_path / name.replace("/", "-"), {name: ""})
    (tmp_path / "site" / "torch").mkdir(parents=True, exist_ok=True)
    clean.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    # Images name their own site-packages (huggingface/trl, python:3.12-slim): that hides nothing.
    assert judged(cpu, clean, PYTHONPATH=str(tmp_path / "site")).status == PASS
    outcome = judged(cpu, clean, PYTHONPATH=f"/nowhere:{tmp_path / name.replace('/', '-')}")
    assert (outcome.status, name.partition("/")[0] in outcome.summary) == (status, status == WARN)
    # In the directory where envcheck was started it hides nothing from what runs, and is a note.
    noted = judged(cpu, clean, PWD=str(tmp_path / name.replace("/", "-")))
    assert (noted.status, "programs started here import" in noted.summary) == (PASS, status == WARN)


def test_one_entry_of_pythonpath_that_hides_another_is_named(
    cpu: View, clean: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = (tmp_path / name for name in ("old", "new"))
    for place in (old, new):
        (place / "torch").mkdir(parents=True)
    clean.setattr(sys, "path", [str(old), str(new)])
    outcome = judged(cpu, clean, PYTHONPATH=f"{old}:{new}")
    assert (outcome.status, str(old / "torch") in outcome.summary) == (WARN, True)
    assert str(new / "torch") not in outcome.summary


@each(
    "preload, status",
    [
        ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", PASS),
        ("/usr/lib/libtcmalloc_minimal.so.4 /x/libspy.so", WARN),
        ("libgomp-a34b3233.so.1", PASS),
        # What lifts "cannot allocate memory in static TLS block" on aarch64 (NVIDIA-AI-IOT/torch2trt#563).
        ("/lib/libGLdispatch.so.0", PASS),
        *((f"/lib/lib{name}.so", WARN) for name in ("nvJitLink", "cudart", "cuda", "torch_cpu", "asan")),
        ("/lib/libcurl.so", PASS),
    ],
)
def test_an_odd_preloaded_library_is_named(cpu: View, clean: pytest.MonkeyPatch, preload: str, status: str) -> None:
    clean.setattr(environment_variables, "cached", lambda: [preload] if preload.startswith("/lib/") else [])
    clean.setenv("LD_PRELOAD", preload)
    outcome = environment_variables.judge(cpu, [{**environment_variables.measure(RANK), "absent": []}])
    assert outcome.status == status
    assert outcome.culprit == ("LD_PRELOAD" if status == WARN else "")


def test_an_environment_that_was_not_read_is_an_error() -> None:
    assert environment_variables.judge(gpu_view("h100x8"), []).status == ERROR
    assert environment_variables.judge(gpu_view("h100x8"), [{"rank": 0, "variables": None}]).status == ERROR
