"""The first write from one GPU to another never comes to an end."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import peer_to_peer

CHECK = dataclasses.replace(peer_to_peer.CHECK, gpus=0, timeout=4.0)
judge = peer_to_peer.judge


def measure(rank: Rank) -> Measured:
    """Have every copy wait for ever."""
    import torch  # noqa: PLC0415 (as a check does)

    def hangs(_target: Any, _source: Any) -> Any:
        time.sleep(600)

    torch.Tensor.copy_ = hangs
    return peer_to_peer.measure(rank)
