"""A snapshot survives JSON unchanged, and what is no snapshot is refused by place."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from pathlib import Path
from typing import Any, get_args

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.node import nvml, snapshot
from envcheck.node.snapshot import SCHEMA, UNREAD, Gpu, Signal, Snapshot, Why, from_json, to_json, unreadable, with_whys
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


@each(
    ("reason", "why"),
    [
        ("not collected", "not-collected"),
        ("NVML: Not Supported", "unsupported"),
        ("NVML: Argument Version Mismatch", "unsupported"),
        ("NVML: Driver/library version mismatch", "mismatch"),
        ("NVML: RM has detected an NVML/RM version mismatch.", "mismatch"),
        ("NVML: GPU requires restart", "reset-required"),
        ("NVML: GPU access blocked by the operating system", "lost"),
        ("NVML gave no answer in 60 s", "timed-out"),
        ("timed out: no answer in 10 s", "timed-out"),
        ("/x/config: only root may read more than its first 64 bytes", "denied"),
        ("asking NVML: No such file or directory", "failed"),
        ("/dev/kmsg is empty", "no-data"),
        ("it said something else", "failed"),
    ],
)
def test_a_snapshot_of_before_has_its_whys_from_its_texts(reason: str, why: Why) -> None:
    signals = {"x": {"reason": reason}}
    snapshot = from_json({"schema": SCHEMA, "signals": signals, "gpus": [{"uuid": "a", "signals": signals}]})
    assert snapshot.signal("x") == snapshot.gpus[0].signal("x") == Signal(reason=reason, why=why)
    bare = Snapshot("", {"x": Signal(reason=reason)}, [Gpu("a", {"x": Signal(reason=reason)})])
    assert with_whys(bare) == dataclasses.replace(snapshot, taken="")


def test_every_text_of_linux_and_of_nvml_gives_the_why_of_its_number() -> None:
    """A snapshot of before has the texts only, and is judged as it would be with the numbers."""
    for number in [*errno.errorcode]:
        error = OSError(number, os.strerror(number))
        assert snapshot.of_text(f"/proc/x: {error.strerror}") == unreadable(error, "/proc/x").why, error
    for number, text in pynvml.NVMLError._errcode_to_string.items():  # noqa: SLF001 (it has no other table)
        if number != pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:  # it is said of the library, never of a signal
            assert snapshot.of_text(f"NVML: {text}") == nvml.why(pynvml.NVMLError(number)), text


def test_a_signal_nobody_collected_has_a_reason() -> None:
    assert Snapshot().signal("anything") is UNREAD
    assert Gpu("GPU-1").signal("anything").reason == "not collected"


def _without_whys(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _without_whys(value) for name, value in data.items() if name != "why"}
    return [_without_whys(value) for value in data] if isinstance(data, list) else data


@pytest.mark.parametrize("path", sorted(SNAPSHOTS.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_test_data_is_canonical_and_says_whether_it_was_recorded(path: Path) -> None:
    data = json.loads(path.read_text())
    snapshot = from_json(data)
    assert _without_whys(to_json(snapshot)) == data  # they are from before there were any
    origin = "recorded" if path.stem in ("cpu", "h100x1") else "made from documentation"
    assert snapshot.signal("origin").value == origin
