"""Machines and views to judge."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import View
from envcheck.node.snapshot import Signal, Snapshot, from_json

SNAPSHOTS = Path(__file__).parents[1] / "data" / "snapshots"

# What envcheck's worker says of a CUDA environment.
TORCH_CU128 = {
    "python": "3.12.3",
    "torch": "2.8.0+cu128",
    "cuda": "12.8",
    "cudnn": "9.10.2",
    "nccl": "2.27.3",
    "arch_list": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"],
}


@pytest.fixture
def machine() -> Callable[[str], Snapshot]:
    """Load a snapshot of tests/data/snapshots by its name."""
    return lambda name: from_json(json.loads((SNAPSHOTS / f"{name}.json").read_text()))


@pytest.fixture
def node(machine: Callable[[str], Snapshot]) -> Callable[..., View]:
    """Build the view of a GPU machine, all of whose GPUs torch sees; anything of its environment can be overridden."""

    def build(name: str, promises: dict[str, str] | None = None, **environment: Any) -> View:
        snapshot = machine(name)
        seen = {"device_count": len(snapshot.gpus), "devices": [{"uuid": gpu.uuid} for gpu in snapshot.gpus]}
        return View(snapshot, {**TORCH_CU128, **seen, **environment}, promises or {}, "gpu")

    return build


@pytest.fixture
def cpu(machine: Callable[[str], Snapshot]) -> View:
    """Return the view of a machine without a GPU."""
    return View(machine("cpu"), {"torch": "2.13.0+cpu", "cuda": None, "device_count": 0, "python": "3.11.2"})


@pytest.fixture
def put() -> Callable[..., View]:
    """Change signals of a node: `put(view, kernel__xids=[...])`; a Signal stands as it is, anything else is a value."""

    def change(view: View, **signals: Any) -> View:
        named = {name.replace("__", "."): _signal(value) for name, value in signals.items()}
        snapshot = dataclasses.replace(view.snapshot, signals={**view.snapshot.signals, **named})
        return dataclasses.replace(view, snapshot=snapshot)

    return change


@pytest.fixture
def put_gpu() -> Callable[..., View]:
    """Change signals of the GPUs with these indices: `put_gpu(view, [3], temperature=99)`."""

    def change(view: View, indices: Sequence[int], **signals: Any) -> View:
        named = {name: _signal(value) for name, value in signals.items()}
        gpus = [
            dataclasses.replace(gpu, signals={**gpu.signals, **named}) if index in indices else gpu
            for index, gpu in enumerate(view.snapshot.gpus)
        ]
        return dataclasses.replace(view, snapshot=dataclasses.replace(view.snapshot, gpus=gpus))

    return change


def _signal(value: Any) -> Signal:
    return value if isinstance(value, Signal) else Signal(value)
