"""Pairs of GPUs as NVML reports them."""

from __future__ import annotations

import itertools
from typing import Any, Final

from envcheck.checks import Outcome, View, skipped, undecided
from envcheck.checks.readings import gpu_readings
from envcheck.counting import counted

_FIELDS: Final = ("a", "b", "read", "write", "nvlink", "path")
Pair = dict[str, Any]


def matrix(view: View) -> list[Pair] | Outcome:
    """Return every pair of the GPUs there are, or the outcome where they are unknown."""
    signal = view.snapshot.signal("gpu.p2p")
    missing = gpu_readings.uncollected(view, "gpu.p2p")
    if missing is not None:
        return missing
    if signal.why == "unsupported":
        return skipped(f"NVML tells nothing of peer-to-peer here ({signal.reason})", code="gpu-p2p.not-reported")
    pairs = signal.value if isinstance(signal.value, list) else []
    if signal.value is None or not all(isinstance(pair, dict) and all(f in pair for f in _FIELDS) for pair in pairs):
        return undecided(
            f"gpu.p2p cannot be read: {signal.reason or 'unexpected type or value'}",
            fix="look at `nvidia-smi topo -p2p r`",
            code="gpu-p2p.unread",
        )
    indices = sorted({gpu.signal("index").value for gpu in view.snapshot.gpus if gpu.signal("index").value is not None})
    read_pairs = {frozenset((pair["a"], pair["b"])) for pair in pairs}
    if any(frozenset(ends) not in read_pairs for ends in itertools.combinations(indices, 2)):
        return undecided(
            f"gpu.p2p lists {counted(len(pairs), 'pair')} of {counted(len(indices), 'GPU')}",
            fix="read the node again",
            code="gpu-p2p.incomplete",
        )
    return [pair for pair in pairs if pair["a"] in indices and pair["b"] in indices]


def ok(pair: Pair) -> bool:
    """Return whether both may read and write each other's memory."""
    return bool(pair["read"] == "ok" and pair["write"] == "ok")


def why_not(pair: Pair) -> str:
    """Return what NVML says against it."""
    return next((str(pair[word]) for word in ("read", "write") if pair[word] != "ok"), "ok")


def listed(pairs: list[Pair]) -> str:
    """Return "GPU 0 - GPU 3 (chipset not supported)", shortened where there are many."""
    parts = [f"GPU {pair['a']} - GPU {pair['b']} ({why_not(pair)})" for pair in pairs]
    return ", ".join(parts[:3]) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")  # noqa: PLR2004


def uuids(view: View, pairs: list[Pair]) -> list[str]:
    """Return the UUIDs of the GPUs in these pairs."""
    ends = {pair[end] for pair in pairs for end in ("a", "b")}
    return [gpu.uuid for gpu in view.snapshot.gpus if gpu.signal("index").value in ends]
