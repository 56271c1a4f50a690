"""A value that is of another kind than its signal was not read; what machines really say is left as it is."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from envcheck.node import collect
from envcheck.node.snapshot import Gpu, Signal, Snapshot, from_json
from tests.tables import each

SNAPSHOTS = sorted((Path(__file__).parents[1] / "data" / "snapshots").glob("*.json"))


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.stem)
def test_what_machines_say_stays_as_it_is(path: Path) -> None:
    snapshot = from_json(json.loads(path.read_text(encoding="utf-8")))
    assert collect.sound(snapshot) == snapshot


def test_what_this_machine_says_stays_as_it_is_and_every_signal_has_a_shape() -> None:
    snapshot = collect.collect()
    assert collect.sound(snapshot) == snapshot
    assert sorted(snapshot.signals.keys() - collect.NODE.keys()) == []


@each(
    ("name", "value"),
    [
        ("nvml.latency", math.nan),
        ("nvml.latency", -1.0),
        ("nvml.latency", True),
        ("nvml.latency", 1e300),
        ("nvml.latency", None),
        ("gpu.count", 1.5),
        ("driver.version", "banana"),
        ("driver.version", 570),
        ("kernel.xids", [{"code": 79}]),
        ("kernel.xids", {}),
        ("limits.nofile", "few"),
        ("env", {"CUDA_VISIBLE_DEVICES": 3}),
        ("host.gpu_modules", ["nvidia", ""]),
    ],
)
def test_what_it_cannot_be_is_a_reason_that_shows_it(name: str, value: Any) -> None:
    signal = collect.sound(Snapshot("", {name: Signal(value, unit="u", source="s")})).signal(name)
    assert signal == Signal(reason=f"read as {value!r}, which it cannot be", why="failed", unit="u", source="s")


def test_a_gpus_signals_are_held_to_their_shapes_and_unknown_ones_are_left() -> None:
    signals = {"temperature": "hot" * 40, "temperature_margin": -3, "newer": "x", "mig_mode": "half"}
    gpu = Gpu("GPU-1", {name: Signal(value) for name, value in signals.items()})
    [result] = collect.sound(Snapshot("", {}, [gpu])).gpus
    assert result.signal("mig_mode").why == "failed"
    assert (result.uuid, result.signal("temperature_margin").value, result.signal("newer").value) == ("GPU-1", -3, "x")
    assert len(str(result.signal("temperature").reason)) < 100


def test_what_torch_cannot_have_said_was_not_said() -> None:
    data = {"device_count": "banana", "devices": [{"uuid": 7}], "torch": "2.8.0", "cuda": None, "other": math.nan}
    assert [*collect.sound_facts(data)] == ["torch", "cuda", "other"]
