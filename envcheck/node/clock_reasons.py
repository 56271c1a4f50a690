"""NVML's reasons for a GPU's clocks in words: nvmlClocksEventReason…, called ThrottleReason before R535."""

from __future__ import annotations

_WORDS = {
    0x1: "idle",
    0x2: "applications clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}


def words(bits: int) -> list[str]:
    """Return the reasons that a GPU gives for its clocks."""
    names = [name for bit, name in _WORDS.items() if bits & bit]
    unnamed_bits = bits & ~sum(_WORDS)
    return [*names, f"unknown 0x{unnamed_bits:x}"] if unnamed_bits else names
