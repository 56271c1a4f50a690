"""NVML's reasons for a GPU's clocks, in words."""

from __future__ import annotations

from envcheck.node import snapshot


def test_each_bit_has_its_word_and_an_unknown_one_is_kept() -> None:
    assert snapshot.clock_words(0x400 | 0x8) == ["hardware slowdown", "unknown 0x400"]
    assert snapshot.clock_words(0x4 | 0x80) == ["software power cap", "power brake"]
    assert snapshot.clock_words(0) == []
