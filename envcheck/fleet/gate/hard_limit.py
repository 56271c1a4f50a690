"""A limit that also ends what hangs."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from envcheck.errors import UnavailableError


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raise UnavailableError in the main thread once the block has taken so long."""

    def expired(_number: int, _frame: FrameType | None) -> None:
        message = f"the run did not end within its budget of {seconds:g} s"
        raise UnavailableError(message, fix="raise --budget, or see with `envcheck run` what hangs")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
