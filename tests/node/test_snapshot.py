"""A snapshot survives JSON unchanged, and what is no snapshot is refused by place."""

import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.node import collect
from envcheck.node.snapshot import SCHEMA, UNREAD, Gpu, Signal, Snapshot, Why, from_json, to_json
from tests.tables import each

SNAPSHOTS = Path(__file__).parents[1] / "data" / "snapshots"
values = st.one_of(st.text(), st.integers(), st.booleans(), st.lists(st.text()), st.floats(allow_nan=False))
units = st.none() | st.text()
signals = st.one_of(
    st.builds(Signal, value=values, unit=units, source=st.text()),
    st.builds(lambda reason, why: Signal(reason=reason, why=why), st.text(), st.sampled_from(get_args(Why))),
)
named = st.dictionaries(st.text(), signals)
snapshots = st.builds(Snapshot, st.text(), named, st.lists(st.builds(Gpu, st.text(min_size=1), named), max_size=3))


@given(snapshots)
def test_nothing_is_lost_in_json(snapshot: Snapshot) -> None:
    assert from_json(json.loads(json.dumps(to_json(snapshot)))) == snapshot


@each(
    ("data", "where"),
    [
        ([], "snapshot is no object"),
        ({"schema": "other"}, "snapshot.schema"),
        ({"schema": SCHEMA, "signals": {}, "gpus": {}}, "snapshot.gpus"),
        ({"schema": SCHEMA, "signals": {"x": {}}, "gpus": []}, "snapshot.signals.x"),
        ({"schema": SCHEMA, "signals": {"x": {"value": 1, "reason": "r"}}, "gpus": []}, "snapshot.signals.x"),
        ({"schema": SCHEMA, "signals": {"x": {"reason": "r", "why": "so"}}, "gpus": []}, "snapshot.signals.x.why"),
        ({"schema": SCHEMA, "signals": {}, "gpus": [{"signals": {}}]}, r"snapshot.gpus\[0\].uuid"),
        ({"schema": SCHEMA, "signals": {}, "gpus": [{"uuid": "a", "signals": 1}]}, r"snapshot.gpus\[0\].signals"),
    ],
)
def test_what_is_no_snapshot_is_refused_by_place(data: Any, where: str) -> None:
    with pytest.raises(ValueError, match=where):
        from_json(data)


def test_a_signal_nobody_collected_has_a_reason() -> None:
    assert Snapshot().signal("anything") is UNREAD
    assert Gpu("GPU-1").signal("anything").reason == "not collected"


@each("path", sorted(SNAPSHOTS.glob("*.json")))
def test_shipped_test_data_is_canonical_and_says_whether_it_was_recorded(path: Path) -> None:
    data = json.loads(path.read_text())
    snapshot = from_json(data)
    assert to_json(snapshot) == data
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
