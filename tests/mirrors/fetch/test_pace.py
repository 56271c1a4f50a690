"""An answer that sends a byte now and then is ended, one that moves is not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from envcheck.mirrors.net.stall import BYTES, SECONDS, StallDetector


@pytest.mark.parametrize(("size", "drips"), [(1, True), (BYTES, False)])
def test_what_only_drips_is_told(monkeypatch: pytest.MonkeyPatch, size: int, *, drips: bool) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            now[0] += SECONDS / 2
            yield bytes(size)

    pace = StallDetector()
    for _ in pace.watch(chunks()):
        now[0] += 1000.0  # what is done with a chunk is no waiting for it
    assert pace.stalled is drips
