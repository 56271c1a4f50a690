"""What `kernels` makes of what ranks report, its table, and a sound torch."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from envcheck.checks import ERROR, FAIL, PASS, View
from envcheck.checks.env import kernels
from tests.builders import Entry, gpu_view, group
from tests.processes import checked, ran

NAN = float("nan")
DTYPES = ("float64", "float32", "float16", "bfloat16")
FAR = {"operator": "exp", "dtype": "float32", "error": 257.0, "size": 13}
MEASURED: dict[str, Any] = {
    "capability": [9, 0],
    "seed": 7,
    "cudnn": True,
    "ran": dict.fromkeys(DTYPES, 400),
    "worst": {name: {"operator": "mm", "dtype": name, "error": 9.0, "size": 33} for name in DTYPES},
    "moved": dict.fromkeys(DTYPES, 0.5),
    "wrong": [],
    "absent": {"attention flash float32": "RuntimeError: No available kernel"},
    "lost": [],
    "subnormals": [],
    "witness": {"compared": 400},
}
LIES: list[tuple[Entry, str, str]] = [
    ({"wrong": [FAR]}, FAIL, "exp float32 of size 13 is off by 257 units roundoff"),
    ({"wrong": [{**FAR, "error": 1e300}]}, FAIL, "off by 1e+300"),
    ({"wrong": [{"operator": "fft", "dtype": "float32", "raised": "RuntimeError: CUFFT"}]}, FAIL, "CUFFT"),
    ({"subnormals": ["1e-40 * 1 in float32"]}, FAIL, "1e-40 * 1 in float32 is not what it was"),
    ({"ran": {"float32": 400, "float64": 400, "float16": 400}}, ERROR, "ran no operators in bfloat16"),
    ({"ran": dict.fromkeys(DTYPES, 3)}, ERROR, "ran 3 operators in float64"),
    ({"worst": {**MEASURED["worst"], "float32": {**FAR, "error": NAN}}}, ERROR, "operators in float32"),
    ({"worst": {**MEASURED["worst"], "float32": FAR}}, ERROR, "operators in float32"),
    ({"moved": {**MEASURED["moved"], "float32": 0.0}}, ERROR, "its comparison cannot be believed"),
    ({"moved": {}}, ERROR, "its comparison cannot be believed"),
    ({"lost": ["cholesky"]}, ERROR, "has no variant of cholesky"),
    ({"subnormals": None}, ERROR, "did not say what was wrong"),
    ({"wrong": None}, ERROR, "did not say what was wrong"),
]


def test_the_truth_passes_on_gpus_and_cpus(cpu: View) -> None:
    outcome = kernels.judge(gpu_view("h100x8"), group(MEASURED, 2, backend=None))
    assert (outcome.status, outcome.value) == (PASS, 9.0)
    assert "3200 runs of operators agree with float64 on 2 ranks" in outcome.summary
    assert kernels.judge(cpu, group(MEASURED, 2, gpu=False, backend=None)).status == PASS


def test_every_lie_is_named(cpu: View) -> None:
    found = []
    for changes, _, text in LIES:
        outcome = kernels.judge(gpu_view("h100x8"), group({**MEASURED, **changes}, 1, backend=None))
        found.append((outcome.status, text in outcome.summary))
        assert all(finding.code.startswith("kernels.") for finding in outcome.findings)
    assert found == [(status, True) for _, status, _ in LIES]
    for changes in ({"witness": {"error": "no room"}}, {"witness": {"compared": 0}}, {"witness": {}}):
        alone = kernels.judge(cpu, group({**MEASURED, **changes}, 1, gpu=False, backend=None))
        assert (alone.status, "no second process" in alone.summary) == (ERROR, True)
    lacking = kernels.judge(gpu_view("h100x8"), group({**MEASURED, "cudnn": False}, 1, backend=None))
    assert (lacking.status, lacking.code) == (FAIL, "kernels.no-cudnn")


def test_each_level_runs_its_part_and_ranks_of_one_cpu_share_it() -> None:
    every = {level: kernels.examples(level, 5, 0, 1) for level in kernels.EXTENT}
    assert len(every["standard"]) == sum(len(row.sizes) for row in kernels.rows())
    assert 0.05 < len(every["quick"]) / len(every["standard"]) < 0.15
    assert len(every["full"]) == 3 * len(every["standard"])
    shared = [[e.number for e in kernels.examples("standard", 5, first, 2)] for first in (0, 1)]
    assert {*shared[0], *shared[1]} == {e.number for e in every["standard"]}
    trusted = {e.number for e in every["standard"] if e.name == kernels.TRUSTED}
    assert {*shared[0]} & {*shared[1]} == trusted
    assert kernels.examples("full", 5, 0, 1) == every["full"] != kernels.examples("full", 6, 0, 1)


def test_a_graph_that_cudnn_has_no_plan_for_is_absent_and_any_other_error_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = Mock(return_value=(1 << 30, 8 << 30))
    torch = SimpleNamespace(cuda=SimpleNamespace(mem_get_info=free))
    survey = kernels.Survey(torch, SimpleNamespace(type="cuda"), ["float16"], None)
    said = "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph."
    wrong = ["CUDNN_STATUS_EXECUTION_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED"]
    for text in (said, *wrong):
        monkeypatch.setattr(kernels, "results", Mock(side_effect=RuntimeError(text)))
        survey.run(kernels.rows()[0])
    # A GPU or a host without free memory is no wrong operator.
    free.return_value = ((1 << 30) - 1, 8 << 30)
    for lack in ("CUDA out of memory. Tried", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory: you", wrong[1]):
        monkeypatch.setattr(kernels, "results", Mock(side_effect=RuntimeError(lack)))
        with pytest.raises(RuntimeError, match=lack):
            survey.run(kernels.rows()[0])
    assert survey.found["absent"] == {"mm float16": f"RuntimeError: {said}"}
    assert [one["raised"] for one in survey.found["wrong"]] == [f"RuntimeError: {text}" for text in wrong]


def test_every_row_of_the_table_is_read() -> None:
    rows = kernels.rows()
    assert len({row.name for row in rows}) == len(rows) > 150
    known = {"wide", "low", "high", "32", "forward", "lack", "heads", "channels"}
    assert {option for row in rows for option in row.options} <= known
    options = [row.options for row in rows]
    assert all(1 <= one["wide"] <= 64 and one["low"] < one["high"] for one in options)
    assert all(row.inputs for row in rows)
    assert {row.name for row in rows if "lack" not in row.options} >= {"attention default", "SGD foreach", "mm"}


DRAWS = """
import torch
from envcheck.checks.env import kernels
torch.set_num_threads(1)
survey = kernels.Survey(torch, torch.device("cpu"), ["float32", "bfloat16"], None)
for seed in range(60):
    for row in kernels.examples("standard", 7919 * seed, 0, 1):
        if "loss" in row.name or row.name in ("cross_entropy", "sum", "mean", "var and std", "layer_norm"):
            survey.run(row)
print(survey.found["wrong"])
"""


@pytest.mark.torch
def test_no_draw_of_numbers_accuses_a_sound_torch(torch_python: Path) -> None:
    """One draw in 25 did: sums of numbers of both signs came close to zero (torch 2.6 and 2.13)."""
    root = str(Path(kernels.__file__).parents[3])
    done = ran([torch_python, "-c", DRAWS], cwd=root)
    assert done.stdout == "[]\n", done.stderr + done.stdout


@pytest.mark.torch
def test_a_sound_torch_agrees_with_itself(torch_python: Path, tmp_path: Path) -> None:
    options = ("--only", "kernels", "--level", "standard", "--nproc", "1")
    row = checked(torch_python, tmp_path / "report.json", *options)[1]["kernels"]
    assert row["status"] == PASS, row["summary"]
    [entry] = row["ranks"]
    assert entry["witness"]["compared"] > 350
    assert entry["ran"]["float32"] > 350
    assert entry["seed"] >= 0
