"""How a DataLoader ends early: the exception it raises, and whether that exception reports a dead worker."""

from __future__ import annotations

import time
from collections.abc import Callable

# A connection to the dead worker may break first; the signal of its death comes after.
_SETTLE = 0.3
_LENGTH = 400
# What torch/utils/data/dataloader.py raises for a dead worker, or what its connection raises before that.
_REPORTS = (
    "DataLoader worker (pid",
    "ConnectionResetError:",
    "ConnectionRefusedError:",
    "BrokenPipeError:",
    "EOFError:",
)


def raised_by(reading: Callable[[], None]) -> str | None:
    """Return the last exception that ends the reading, or None. A death arrives as a signal, wherever that is."""
    quoted = []
    try:
        try:
            reading()
        except Exception as error:  # noqa: BLE001 (whatever ends an epoch early is what is reported)
            quoted.append(quote(error))
            time.sleep(_SETTLE)
    except RuntimeError as error:
        quoted.append(quote(error))
    return quoted[-1] if quoted else None


def quote(error: BaseException) -> str:
    """Return an exception's type, its first line, and its last, where the loader quotes what a worker raised."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]} {lines[-1].strip() if len(lines) > 1 else ''}".strip()[:_LENGTH]


def is_reported(text: str) -> bool:
    """Tell whether the text reports a dead worker: another exception, or a timeout, leaves the death unreported."""
    return any(report in text for report in _REPORTS) and "timed out" not in text
