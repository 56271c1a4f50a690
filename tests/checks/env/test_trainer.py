"""What a run of transformers' Trainer reports, judged: the truth passes, and each lie is caught by name."""

import copy
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, Rank, View
from envcheck.checks.env import trainer
from envcheck.checks.support import process_group
from tests.builders import Entry, gpu_view, group
from tests.processes import checked
from tests.tables import each

LOSSES = [3.1, 3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4]
STATE = {"weight": "a", "optimizer.0.exp_avg": "b", "optimizer.0.exp_avg_sq": "c", "rates": "d"}
SEEN = {"computed": ["bfloat16"], "state": STATE}
MEASURED: Entry = {
    "missing": [],
    "versions": {"transformers": "5.23.0", "accelerate": "1.15.0", "safetensors": "0.8.0", "tensorboard": "2.21.0"},
    "stage": "reading the TensorBoard log",
    "capability": [9, 0],
    "whole": {**SEEN, "steps": [1, 2, 3, 4, 5, 6, 7, 8], "losses": LOSSES},
    "resumed": {**SEEN, "steps": [5, 6, 7, 8], "losses": LOSSES[4:]},
    "events": [[step, loss] for step, loss in enumerate(LOSSES, 1)],
}
NAN = float("nan")


def entries(*, gpu: bool = False, **changes: Any) -> list[Entry]:
    """Return one rank's measurements; `whole__losses` changes the losses of `whole`."""
    measured = copy.deepcopy(MEASURED)
    for name, value in changes.items():
        part, _, inner = name.partition("__")
        if inner:
            measured[part][inner] = value
        else:
            measured[part] = value
    return group(measured, 1, gpu=gpu, backend=None)


def test_the_truth_passes_on_a_gpu_and_on_a_cpu(cpu: View) -> None:
    assert trainer.judge(gpu_view("h100x8"), entries(gpu=True)).status == PASS
    outcome = trainer.judge(cpu, entries(capability=[]))
    assert (outcome.status, outcome.value) == (PASS, pytest.approx(2.4 / 3.1))


@each(
    "changes, status, code, message",
    [
        ({"whole": {}, "resumed": {}}, ERROR, "unmeasured", "no training"),
        ({"absent": "transformers"}, SKIP, "no-transformers", "not installed"),
        ({"missing": ["accelerate"]}, SKIP, "missing", "installed without accelerate"),
        ({"stage": "resuming from step 4", "raised": "ValueError: no"}, FAIL, "raised", "step 4 raised ValueError: no"),
        ({"resumed": None}, ERROR, "unmeasured", "no training"),
        ({"whole__steps": [1, 2, 3]}, ERROR, "unmeasured", "no training"),
        ({"whole__losses": [*LOSSES[:3], NAN, *LOSSES[4:]]}, FAIL, "loss", "not finite at step 4"),
        ({"whole__losses": [*LOSSES[:7], None], "resumed__losses": [2.7, 2.6, 2.5, None]}, FAIL, "loss", "at step 8"),
        ({"whole__losses": [0.0] * 8}, FAIL, "learns-nothing", "does not fall"),
        ({"whole__computed": ["float32"]}, FAIL, "dtype", "bfloat16, and computed in float32"),
        ({"whole__computed": []}, FAIL, "dtype", "computed in nothing"),
        ({"resumed__steps": [1, 2, 3, 4]}, FAIL, "steps", "took the steps [1, 2, 3, 4]"),
        ({"resumed__state": {**STATE, "rates": "e"}}, FAIL, "differs", "in what no loss shows; 1 different tensor"),
        ({"resumed__losses": [2.7, 2.6, 2.5, 2.41]}, FAIL, "differs", "from step 8 on; 0 different tensors"),
        ({"events": None}, FAIL, "events", "loss of 0 of 8 steps"),
        ({"events": [[step, 3.0] for step in range(1, 9)]}, FAIL, "events", "at step 1 is 3.0, it was 3.1"),
    ],
)
def test_each_way_a_trainer_lies_is_named(cpu: View, changes: Entry, status: str, code: str, message: str) -> None:
    outcome = trainer.judge(cpu, entries(**changes))
    assert outcome.status == status, outcome
    assert message in outcome.summary
    result = {finding.code for finding in outcome.findings} or {outcome.code}
    assert f"trainer.{code}" in result
    assert outcome.remedy or status == SKIP


@each("last, status", [(0.9 * 3.1, PASS), (0.901 * 3.1, FAIL)])
def test_the_loss_has_to_fall_by_a_tenth(cpu: View, last: float, status: str) -> None:
    losses = [*LOSSES[:7], last]
    events = [[step, loss] for step, loss in enumerate(losses, 1)]
    outcome = trainer.judge(cpu, entries(whole__losses=losses, resumed__losses=losses[4:], events=events))
    assert outcome.status == status, outcome


def test_without_tensorboard_the_summary_says_that_nothing_was_logged(cpu: View) -> None:
    versions = {name: version for name, version in MEASURED["versions"].items() if name != "tensorboard"}
    outcome = trainer.judge(cpu, entries(versions=versions, events=None))
    assert (outcome.status, "tensorboard is not installed" in outcome.summary) == (PASS, True)


def test_tensorboard_of_another_distribution_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """tb-nightly brings the module, and there is no distribution `tensorboard`."""

    def version(name: str) -> str:
        if name == "tensorboard":
            raise importlib.metadata.PackageNotFoundError
        return "1"

    monkeypatch.setitem(sys.modules, "torch", MagicMock())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(trainer, "_train", lambda *_: None)
    monkeypatch.setattr(process_group, "standing", lambda *_: {})
    monkeypatch.setattr(process_group, "device_of", lambda _: SimpleNamespace(type="cpu"))
    measured = trainer.measure(Rank(0, 1, 0, "cpu", "gloo", ""))
    assert (measured["versions"], "raised" in measured) == ({"transformers": "1", "accelerate": "1"}, False)


@each("computed, status", [("float32", PASS), ("bfloat16", FAIL)])
def test_a_gpu_without_bfloat16_trains_in_float32(computed: str, status: str) -> None:
    both = {"whole__computed": [computed], "resumed__computed": [computed]}
    outcome = trainer.judge(gpu_view("v100x4"), entries(gpu=True, capability=[7, 0], **both))
    assert outcome.status == status, outcome


@pytest.mark.torch
def test_an_environment_without_transformers_is_skipped(torch_python: Path, tmp_path: Path) -> None:
    row = checked(torch_python, tmp_path / "r.json", "--only", "trainer", timeout=240)[1]["trainer"]
    assert (row["status"], row["code"]) == (SKIP, "trainer.no-transformers"), row
