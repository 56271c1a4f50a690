"""A signal has its value, or the reason why it has none; what it cannot be is such a reason."""

import math
from pathlib import Path
from typing import Any

import msgspec

from envcheck.node import collect
from envcheck.node.snapshot import UNREAD, Gpu, Signal, Snapshot
from tests.tables import each

SNAPSHOTS = Path(__file__).parents[1] / "data" / "snapshots"


def test_a_signal_nobody_collected_has_a_reason() -> None:
    assert Snapshot().signal("anything") is UNREAD
    assert Gpu("GPU-1").signal("anything").reason == "not collected"


@each("path", sorted(SNAPSHOTS.glob("*.json")))
def test_what_machines_say_stays_as_it_is_and_says_whether_it_was_recorded(path: Path) -> None:
    snapshot = msgspec.json.decode(path.read_bytes(), type=Snapshot)
    assert collect.sound(snapshot) == snapshot
    origin = "recorded" if path.stem in ("cpu", "h100x1") else "made from documentation"
    assert snapshot.signal("origin").value == origin


@each(
    ("name", "value"),
    [
        ("nvml.latency", math.nan),
        ("nvml.latency", -1.0),
        ("nvml.latency", True),
        ("nvml.latency", None),
        ("gpu.count", 1.5),
        ("driver.version", "banana"),
        ("kernel.xids", [{"code": 79}]),
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
