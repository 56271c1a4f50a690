"""Going on without peer-to-peer once it was seen to be broken: decided from what came of the groups before. Pure.

A GPU that cannot reach its neighbour does not say so: the first transfer hangs (NVIDIA/nccl#2079, #631), the process
dies, or other bytes arrive. So one process tries it before any group does (a check marked `probe`), and the groups
after it leave it out instead of hanging one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# NVIDIA NCCL user guide, Environment Variables: no direct access between GPUs, be it over NVLink or PCI.
OFF = {"NCCL_P2P_DISABLE": "1"}


def broken(done: Mapping[str, Any]) -> bool:
    """Return whether a probe's group shows that peer-to-peer is broken: lost while it copied, or wrong bytes came."""
    error = done.get("error")
    if error:
        return bool(error.get("doing"))
    return any(isinstance(rank, dict) and bool(rank.get("broken")) for rank in done.get("ranks") or [])


def later(check: Mapping[str, Any], done: Mapping[str, Any], now: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the groups after this one, which ran in `now`."""
    hung_or_broken = (check.get("probe") and broken(done)) or done.get("hung")
    return {**now, **OFF} if hung_or_broken else dict(now)


def worth_another_try(done: Mapping[str, Any], environment: Mapping[str, str], *, gpu: bool, world: int) -> bool:
    """Return whether a group of GPU ranks hung that had peer-to-peer, so that it may pass without.

    It has also hung where NCCL's watchdog ended a rank (SIGABRT) before the check's own limit.
    """
    error = done.get("error") or {}
    hung = bool(error.get("hung"))
    return gpu and world > 1 and hung and any(environment.get(name) != value for name, value in OFF.items())


def second(first: Mapping[str, Any], repeated: dict[str, Any]) -> dict[str, Any]:
    """Return what a group without peer-to-peer came to, after it had hung with it; hung both times, it hung."""
    both = {
        "seconds": round(first["seconds"] + repeated["seconds"], 3),
        "survivors": [*first["survivors"], *repeated["survivors"]],
    }
    if repeated["error"]:
        error = dict(first["error"])
        error["text"] = f"{error['text']}; without peer-to-peer it was lost too: {repeated['error']['text']}"
        return {**first, **both, "error": error}
    return {**repeated, **both, "hung": first["error"]["text"]}
