"""What one process reports at levels standard and full, judged: the truth passes, and each lie is caught by name."""

from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, View
from envcheck.checks.env import checkpoint, compiled
from tests.builders import Entry, gpu_view, group
from tests.tables import each

NAN = float("nan")
LOSSES = [1.0, 0.9, 0.8, 0.7]
MEASURED: dict[Any, Entry] = {
    checkpoint: {
        "bytes": 71759,
        "lacking": [],
        "losses": [LOSSES, LOSSES],
        "saved": {"0.weight": "a", "1.running_mean": "b"},
        "resumed": {"0.weight": "a", "1.running_mean": "b"},
        "distributed": {"wrong": []},
    },
    compiled: {"missing": [], "errors": {"output": 4e-7, "0.weight": 1e-7}, "code": {".so": 3}},
}
CHECKS = pytest.mark.parametrize("check", MEASURED, ids=lambda check: check.__name__.rpartition(".")[2])


def entries(check: Any, *, gpu: bool = False, **changes: Any) -> list[Entry]:
    return group({**MEASURED[check], **changes}, 1, gpu=gpu, backend=None)


@CHECKS
def test_the_truth_passes_on_a_gpu_and_on_a_cpu(check: Any, cpu: View) -> None:
    assert check.judge(gpu_view("h100x8"), entries(check, gpu=True)).status == PASS
    assert check.judge(cpu, entries(check)).status == PASS


@CHECKS
def test_nothing_measured_is_an_error(check: Any, cpu: View) -> None:
    bare = {key: value for key, value in entries(check)[0].items() if key not in MEASURED[check]}
    assert check.judge(cpu, [bare]).status == ERROR


@each(
    "changes, status, message",
    [
        ({"lacking": ["1.running_mean"]}, FAIL, "lacks 1.running_mean"),
        (
            {"resumed": {"0.weight": "a", "1.running_mean": "c"}},
            FAIL,
            "in what no loss shows; 1 different tensor: 1.runn",
        ),
        ({"resumed": {"0.weight": "a"}}, FAIL, "1 different tensor"),
        ({"losses": [LOSSES, [1.0, 0.9, 0.8, 0.71]]}, FAIL, "another one from step 7 on"),
        ({"losses": [LOSSES, [1.0, NAN, 0.8, 0.7]]}, FAIL, "not finite"),
        ({"losses": [LOSSES, LOSSES[:2]]}, ERROR, "not resumed"),
        ({"saved": {}, "resumed": {}}, ERROR, "not resumed"),
        ({"distributed": {"wrong": ["int64"]}}, FAIL, "brings back other numbers: int64"),
        ({"distributed": {"raised": "OSError: full"}}, FAIL, "raised OSError: full"),
        ({"distributed": None}, ERROR, "was not tried"),
        ({"distributed": {"absent": "no module"}}, PASS, "same to the bit"),
    ],
)
def test_each_way_a_checkpoint_lies_is_named(cpu: View, changes: Entry, status: str, message: str) -> None:
    outcome = checkpoint.judge(cpu, entries(checkpoint, **changes))
    assert outcome.status == status
    assert message in outcome.summary


@each(
    "changes, status, message",
    [
        ({"missing": ["a C compiler", "Python.h"]}, SKIP, "needs a C compiler and Python.h"),
        ({"broke": "InductorError: no ptxas"}, FAIL, "no ptxas"),
        ({"code": {}}, FAIL, "wrote no code"),
        ({"errors": {}}, ERROR, "nothing was compiled"),
        ({"errors": {"output": 1e-4}}, PASS, "are right"),
        ({"errors": {"output": 1.1e-4}}, FAIL, "the output is off by"),
        ({"errors": {"output": 0.0, "gradient of 0.weight": NAN}}, FAIL, "the gradient of 0.weight is off by nan"),
        ({"breaks": ["data-dependent"]}, FAIL, "the graph was broken: data-dependent"),
        ({"errors": {"output": None}}, FAIL, "the output is off by None"),
    ],
)
def test_each_way_a_compiler_fails_is_named(cpu: View, changes: Entry, status: str, message: str) -> None:
    outcome = compiled.judge(cpu, entries(compiled, **changes))
    assert outcome.status == status
    assert message in outcome.summary
