"""Faults of torch in loaders without workers, sharded training and optimizers of large or narrow tensors."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checks.env.test_training_sabotage import SITE, Fault

_ALONE = """
from torch.utils.data import dataloader as module
single = module._SingleProcessDataLoaderIter
honest = single.{name}
def lying(self, *a, **k):
    {body}
single.{name} = lying
"""


def _alone(body: str, said: str, name: str = "_next_data") -> Fault:
    return Fault("dataloader", _ALONE.format(name=name, body=body), said)


def _loader(change: str, said: str) -> Fault:
    patch = f"""
honest = torch.utils.data.DataLoader.__iter__
def change(batches): {change}
torch.utils.data.DataLoader.__iter__ = lambda self: honest(self) if self.num_workers else change(list(honest(self)))
"""
    return Fault("dataloader", patch, said)


FAULTS = {
    "alone-loses": _loader("return iter(batches[:-1])", "without workers, in order: 5 batches arrived"),
    "alone-reorders": _loader("return iter(batches[::-1])", "without workers, in order: the tensors of batch 0"),
    "alone-doubles": _loader("return iter([batches[0], *batches[:-1]])", "without workers, shuffled: batches"),
    "alone-keeps-the-last": Fault(
        "dataloader",
        "honest = torch.utils.data.DataLoader.__init__\n"
        "def lying(self, *a, **k):\n"
        "    if not k.get('num_workers'): k.pop('drop_last', None)\n"
        "    honest(self, *a, **k)\n"
        "torch.utils.data.DataLoader.__init__ = lying",
        "without workers, last batch dropped: 6 batches",
    ),
    "alone-collates-wrong": _alone(
        "made = honest(self, *a, **k); made['row'][-1] += 1; return made", "without workers, in order: the tensors"
    ),
    "alone-raises": _alone("raise KeyError('lost')", "without workers, in order: raised KeyError"),
}


@pytest.fixture(scope="module")
def outcomes(torch_python: Path, once: Callable[..., Path]) -> dict[str, Any]:
    """Run every fault in one command; return the outcomes by fault."""

    def run(directory: Path) -> None:
        (directory / "env").mkdir()
        for name, fault in FAULTS.items():
            text = SITE.format(module=fault.check.replace("-", "_"), patch=textwrap.indent(fault.patch, "    "))
            (directory / "env" / f"fault_{name.replace('-', '_')}.py").write_text(text)
        command = [sys.executable, "-m", "envcheck", "--quiet", "run", "--python", str(torch_python), "--nproc", "2"]
        only = [word for name in FAULTS for word in ("--only", f"fault-{name}")]
        command += ["--checks", str(directory), "--output", str(directory / "report.json"), *only]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        (directory / "code").write_text(f"{done.returncode} {done.stderr}")

    directory = once("parallel-faults", run)
    assert (directory / "code").read_text().split()[0] == "1", (directory / "code").read_text()
    rows = json.loads((directory / "report.json").read_bytes())["outcomes"]
    return {row["id"].removeprefix("fault-"): row for row in rows}


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_loaders_and_shards_fails_the_check_that_promises_otherwise(
    outcomes: dict[str, Any], name: str
) -> None:
    row = outcomes[name]
    assert row["status"] == "fail", row["summary"]
    said = [row["summary"], *(finding["summary"] for finding in row.get("findings") or [])]
    assert any(FAULTS[name].said in text for text in said), said[:5]
    assert row["remedy"]
