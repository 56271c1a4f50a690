"""What a node check cannot be told without, and cannot be read, is an error: never a pass, never a skip."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from envcheck.checks import ERROR, PASS, View
from envcheck.node.snapshot import Signal
from envcheck.runner.discover import discover
from envcheck.runner.judge import decide

FOUND = {found.id: found for found in discover() if found.kind == "node"}
NEEDED = [(check, name) for check, found in FOUND.items() for name in found.check.signals]


@pytest.mark.parametrize(("check", "name"), NEEDED)
def test_an_unreadable_signal_is_an_error_that_names_it(node: Callable[..., View], check: str, name: str) -> None:
    view = node("h100x8")
    assert decide(FOUND[check], view).status in (PASS, "warn")
    unread = {**view.snapshot.signals, name: Signal(reason="NVML: Insufficient Permissions")}
    blind = dataclasses.replace(view, snapshot=dataclasses.replace(view.snapshot, signals=unread))
    outcome = decide(FOUND[check], blind)
    assert outcome.status == ERROR
    assert f"{name}: NVML: Insufficient Permissions" in outcome.summary
