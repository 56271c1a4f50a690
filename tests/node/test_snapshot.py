"""A snapshot survives JSON unchanged, and what is no snapshot is refused by place."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize("path", sorted(SNAPSHOTS.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_test_data_is_canonical_and_says_whether_it_was_recorded(path: Path) -> None:
    data = json.loads(path.read_text())
    snapshot = from_json(data)
    assert to_json(snapshot) == data
    origin = "recorded" if path.stem in ("cpu", "h100x1") else "made from documentation"
    assert snapshot.signal("origin").value == origin
