"""Sources are read side by side: nobody waits for another's turn, and what is wrong with one is told of it alone."""

import threading
from collections.abc import Callable

import pytest

from envcheck.node import signal_source
from envcheck.node.signal_source import ReadTask, Source, SourceReading, whole
from envcheck.node.snapshot import Signal


def source(read: Callable[[], Signal]) -> Source:
    return Source(whole, read, "here")


def value(number: int) -> Signal:
    return Signal(number, source="here")


def test_each_that_hangs_is_given_up_by_its_own_time_and_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(signal_source, "TIMEOUT", 60)

    def hangs() -> SourceReading:
        never.wait()
        return SourceReading({})

    hung = [ReadTask({f"h{number}": whole, f"also {number}": whole}, hangs, 0.2) for number in range(50)]
    signals = signal_source.read([*hung, *signal_source.each({"sound": source(lambda: value(1))})]).signals
    never.set()
    assert signals.pop("sound") == value(1)
    assert len(signals) == 100
    assert {signal.reason for signal in signals.values()} == {"timed out: no answer in 0.2 s"}


def test_a_source_that_breaks_is_a_reason_of_all_its_signals_and_of_no_other() -> None:
    def breaks() -> dict[str, Signal]:
        message = "4,3"
        raise ValueError(message)

    broken = signal_source.together({"a": whole, "b": whole}, breaks)
    signals = signal_source.read([broken, *signal_source.each({"c": source(lambda: value(1))})]).signals
    assert signals == {**dict.fromkeys("ab", Signal(reason="ValueError: 4,3", why="failed")), "c": value(1)}


def test_where_no_thread_is_to_be_had_all_is_read_nonetheless(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert signal_source.read(
        signal_source.each({"a": source(lambda: value(1)), "b": source(lambda: value(2))})
    ).signals["b"] == value(2)
