"""Every GPU check, run by the real runner on GPUs that are simulated: the code runs to its end, and judges.

It shows names that torch does not have, arguments in the wrong order, tensors on the wrong device and UUIDs that do not
meet; of hardware it proves nothing. What runs on a real GPU only: torch.compile (Triton), NCCL itself, peer-to-peer.
"""

import json
import os
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from envcheck.runner.planning import discover
from tests.processes import ran

ROOT = Path(__file__).parents[2]
LAUNCHER = Path(__file__).with_name("simulate.py")
# What Triton compiles for is real, dcgmi and a bus are not there, how much may be locked is this machine's, and the
# simulated GPU has not every operator that `kernels` runs.
NOT_HERE = ("compiled", "dcgm-diag", "kernels", "memlock", "pcie-under-load")
# What is timed by this machine's own clock, which others share, may come to any verdict.
TIMED = ("straggler",)
# A GPU whose own speeds are those that are set.
MODEL = "NVIDIA H100 80GB HBM3"
ON_GPUS = [
    f.id for f in discover() if f.kind == "env" and f.id not in NOT_HERE and (f.check.ranks == 0 or f.check.gpus)
]

# A run of all checks, while other tests run beside it.
pytestmark = pytest.mark.timeout(1200)


def run(python: Path, output: Path, gpus: int, *options: str, **settings: str) -> dict[str, Any]:
    """Return what each check came to on so many GPUs, and under "log" what the launcher printed."""
    named = {f"SIMULATED_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, str(LAUNCHER), "--quiet", "run", "--python", str(python), *options]
    completed = ran(
        [*command, "--output", str(output)],
        env={**os.environ, "SIMULATED_GPUS": str(gpus), "SIMULATED_NAME": MODEL, **named},
    )
    assert "Traceback" not in completed.stderr, completed.stderr
    report = json.loads(output.read_text())
    return {**{row["id"]: row for row in report["outcomes"]}, "environment": report["environment"]}


@pytest.fixture(scope="module")
def pair(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    only = [option for check in (*ON_GPUS, "gpu-visible", "checkpoint", "dataloader") for option in ("--only", check)]
    return run(torch_python, tmp_path_factory.mktemp("pair") / "report.json", 2, *only)


@pytest.mark.torch
@pytest.mark.parametrize("check", [*ON_GPUS, "checkpoint", "dataloader"])
def test_every_gpu_check_runs_to_its_end(pair: dict[str, Any], check: str) -> None:
    allowed = {"pass", "warn", "fail"} if check in TIMED else {"pass"}
    allowed = {"skip"} if check == "rails" else allowed  # this machine simulates no RDMA port
    assert pair[check]["status"] in allowed, pair[check]


@pytest.mark.torch
def test_ranks_are_on_the_gpus_that_nvml_names(pair: dict[str, Any]) -> None:
    seen = [device["uuid"] for device in pair["environment"]["devices"]]
    assert len(set(seen)) == 2
    assert [rank["device"] for rank in pair["all-reduce"]["ranks"]] == seen
    assert pair["gpu-visible"]["status"] == "pass", pair["gpu-visible"]


@pytest.mark.torch
def test_speeds_are_those_of_the_gpu(pair: dict[str, Any]) -> None:
    values = pair["gemm-throughput"]["ranks"][0]["values"]
    assert values["bfloat16"] == pytest.approx(700, rel=0.05)
    assert values["float8"] > values["bfloat16"] > values["tf32"] > values["float32"]
    assert pair["memory-bandwidth"]["ranks"][1]["values"]["HBM copy"] == pytest.approx(2800, rel=0.05)
    assert pair["gemm-throughput"]["limit"]["value"] < 700
    # What fills and verifies a message is not timed; the stand-in counts each message twice.
    assert pair["all-reduce-bandwidth"]["value"] == pytest.approx(440 / 2, rel=0.05)


class Fault(NamedTuple):
    """What is patched before the check measures, in which check, and what its summary or findings say."""

    check: str
    patch: str
    expected_message: str


SITE = '''"""A fault that tests put in."""

from envcheck.checks.env import {module} as sound

CHECK, judge = sound.CHECK, sound.judge


def measure(rank):
    import torch
    import torch.nn.parallel, torch.optim, torch.utils.data, torch.utils.data.distributed
{patch}
    return sound.measure(rank)
'''


def write(directory: Path, faults: Mapping[str, Fault]) -> list[str]:
    """Write a check `fault-NAME` for each fault, and return the options that run these alone."""
    (directory / "env").mkdir()
    for name, fault in faults.items():
        text = SITE.format(module=fault.check.replace("-", "_"), patch=textwrap.indent(fault.patch, "    "))
        (directory / "env" / f"fault_{name.replace('-', '_')}.py").write_text(text)
    return ["--checks", str(directory), *(word for name in faults for word in ("--only", f"fault-{name}"))]


def is_found(row: Mapping[str, Any], fault: Fault) -> bool:
    """Tell whether a check failed for the fault, and says what to do."""
    assert row["status"] == "fail", row["summary"]
    message = [row["summary"], *(finding["summary"] for finding in row.get("findings") or [])]
    assert any(fault.expected_message in text for text in message), message[:5]
    return bool(row["remedy"])


_PRODUCT = """
honest, calls = torch.mm, [0]
def lying(left, right, *, out=None):
    calls[0] += {counted}
    if calls[0] == 5 and {skips}:
        return out
    product = honest(left, right, out=out)
    if calls[0] == 5 or {always}:
        {change}
    return product
torch.mm = lying
"""


def _gemm(message: str, change: str = "pass", *, skips: bool = False, always: bool = False) -> Fault:
    patch = _PRODUCT.format(counted="out is not None", change=change, skips=skips, always=always)
    return Fault("gemm-throughput", patch, message)


SECOND = "1 of 4 bfloat16 products have wrong elements, first product 2"
TWO = "w = product.view(torch.int16); w[77, 99] += 1; w[78, 99] -= 1"
FAULTS = {
    "flips-a-bit": _gemm(SECOND, "product.view(torch.int16)[77, 99] ^= 1"),
    "skips-a-product": _gemm(SECOND, skips=True),
    "swaps-columns": _gemm("the bfloat16 product is off by", "product[:, [3, 4]] = product[:, [4, 3]]", always=True),
    # Two flips that leave the sum of the bits as it was.
    "compensates": Fault(
        "sustained-gemm",
        _PRODUCT.format(counted="1", change=TWO, skips=0, always=0),
        "words of products had other bits",
    ),
}


@pytest.mark.torch
def test_wrong_elements_of_products_are_found(torch_python: Path, tmp_path: Path) -> None:
    actual = run(torch_python, tmp_path / "report.json", 1, *write(tmp_path, FAULTS))
    assert all(is_found(actual[f"fault-{name}"], fault) for name, fault in FAULTS.items())


@pytest.mark.torch
def test_the_slow_one_of_two_gpus_is_named(torch_python: Path, tmp_path: Path) -> None:
    only = ("--only", "gemm-throughput")
    slow = run(torch_python, tmp_path / "report.json", 2, *only, slow="1:1.5")["gemm-throughput"]
    assert slow["status"] == "fail", slow
    assert slow["details"]["rank"] == 1
    assert len(slow["attempts"]) == 2


@pytest.mark.torch
def test_one_gpu_without_bfloat16_and_fp8_is_judged_by_what_it_has(torch_python: Path, tmp_path: Path) -> None:
    passing = ("gemm-throughput", "amp")
    only = [option for check in (*passing, "fp8-training", "all-reduce") for option in ("--only", check)]
    actual = run(torch_python, tmp_path / "report.json", 1, *only, cc="7.0", name="Tesla V100-FHHL-16GB", cuda="12.6")
    assert {check: actual[check]["status"] for check in passing} == dict.fromkeys(passing, "pass")
    assert [actual[check]["status"] for check in ("fp8-training", "all-reduce")] == ["skip", "skip"]
    assert set(actual["gemm-throughput"]["ranks"][0]["values"]) == {"float32", "float16"}
    emulated = {"absent": "bf16 is emulated at compute capability (7, 0) (8.0 has it)"}
    assert emulated in actual["amp"]["ranks"][0]["cases"].values()


@pytest.mark.torch
def test_cuda_visible_devices_by_uuid_leaves_that_gpu(
    pair: dict[str, Any], torch_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = pair["environment"]["devices"][1]["uuid"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", second)
    actual = run(torch_python, tmp_path / "report.json", 2, "--only", "kernels")
    assert [rank["device"] for rank in actual["kernels"]["ranks"]] == [second]


@pytest.mark.torch
@pytest.mark.parametrize("simulated", [True, False], ids=["one simulated GPU", "a CPU"])
def test_what_meets_a_gpu_comes_to_its_end_without_one(torch_python: Path, tmp_path: Path, *, simulated: bool) -> None:
    """Run `.ci/gpu` but for what takes minutes: every step leaves its files, and what is no GPU is an alarm."""
    script = [sys.executable, str(ROOT / ".ci/gpu"), "--out", str(tmp_path), "--python", str(torch_python)]
    script += [word for step in ("facts", "quick", "speeds", "sanitizer", "tests") for word in ("--only", step)]
    libraries = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    environment = {**os.environ, "SIMULATED_GPUS": "1", "SIMULATED_NAME": MODEL, "PYTHONPATH": libraries}
    done = ran([*script, "--seconds", "300", *(["--simulated"] if simulated else [])], env=environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    report = json.loads((tmp_path / "quick.json").read_text())
    assert report["mode"] == ("gpu" if simulated else "cpu")
    assert {path.name for path in tmp_path.iterdir()} >= {"machine.txt", "quick.html", "speeds.txt", "alarms.txt"}
    alarms = (tmp_path / "alarms.txt").read_text()
    assert ("needs 1 GPU, found none" in alarms) is not simulated
    # Of the node nothing but what this machine has no GPU or no driver for.
    bad = [row for row in report["outcomes"] if row["kind"] == "node" and row["status"] in ("fail", "error")]
    node = {row["id"] for row in bad if row["code"] != "gpu.required"}
    assert node <= {"driver-nvml", "image-promises"}, alarms
