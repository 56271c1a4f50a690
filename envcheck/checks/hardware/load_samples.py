"""What a GPU said of itself while it worked, judged: samples there are, faults among its reasons, caps by name."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Limit, Measured, undecided
from envcheck.checks.support import process_group

FAULTS = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
CAPS = {
    "software power cap": "at its power limit",
    "applications clocks": "at clocks that somebody set",
    "sync boost": "at another GPU's clocks (sync boost)",
}
NO_FAULT = Limit(
    0,
    "samples with a fault among the reasons",
    "NVML clocks event reasons; leptonai/gpud clock_events.go: bits 0x8, 0x20, 0x40 and 0x80 are faults under load",
    "at most",
)
# A sampler that is late now and then has still seen the load; one that missed half of it has not.
_SHARE = 0.5
_FIX = "see the check's log; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility"


def unseen(entry: Measured, seconds: float, interval: float) -> process_group.Problem:
    """Return why the samples of `seconds` under load show too little of it, or None."""
    load = entry.get("load") or {}
    where = f"rank {entry['rank']} on {entry['device']}"
    if load.get("unread"):
        return undecided(f"{where}: {load['unread']}", fix=_FIX, code="load.unread", culprit=where)
    samples = load.get("samples") or []
    least = max(1, int(seconds / interval * _SHARE))
    if len(samples) < least:
        return undecided(
            f"{where}: {len(samples)} samples in {seconds:.0f} s, not {least}",
            fix=_FIX,
            code="load.few-samples",
            culprit=where,
        )
    return None


def faults(load: Measured) -> dict[str, int]:
    """Return in how many samples each fault was among the GPU's reasons."""
    return {name: count for name in FAULTS if (count := _count(load, name))}


def caps(load: Measured) -> str:
    """Return what held the GPU back in most of its samples and is no fault, to be put behind a sentence; or nothing."""
    caps = [text for name, text in CAPS.items() if mostly(load, name)]
    return f"; {', '.join(caps)}" if caps else ""


def slowed(load: Measured) -> str:
    """Return the faults among a GPU's reasons, to be put behind a sentence; or nothing."""
    names = faults(load)
    return f"; {', '.join(names)}" if names else ""


def mostly(load: Measured, clock_reason: str) -> bool:
    """Return whether most samples give this reason."""
    return _count(load, clock_reason) * 2 > len(load.get("samples") or [])


def spread(load: Measured, quantity: str) -> tuple[float, float, float] | None:
    """Return the smallest, mean and largest sample of a quantity; None where this GPU does not tell it."""
    values = [float(s[quantity]) for s in load.get("samples") or [] if process_group.finite(s.get(quantity))]
    return (min(values), sum(values) / len(values), max(values)) if values else None


def text(load: Measured) -> str:
    """Return the clock, power and heat under load in a few words, to be put behind a sentence; or nothing."""
    clock, power, heat = (spread(load, quantity) for quantity in ("clock", "power", "temperature"))
    parts = [
        f"{clock[0]:.0f} to {clock[2]:.0f} MHz" if clock else "",
        f"{power[1]:.0f} W" if power else "",
        f"up to {heat[2]:.0f} C" if heat else "",
    ]
    summary = ", ".join(part for part in parts if part)
    return f" ({summary})" if summary else ""


def _count(load: Measured, clock_reason: str) -> int:
    samples: list[Any] = load.get("samples") or []
    return sum(clock_reason in (sample.get("reasons") or []) for sample in samples)
