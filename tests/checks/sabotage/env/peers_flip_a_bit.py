"""The copy engine flips one bit of what one GPU writes to another; a kernel's stores arrive."""

from __future__ import annotations

import dataclasses
from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import peer_to_peer

CHECK = dataclasses.replace(peer_to_peer.CHECK, gpus=0)
judge = peer_to_peer.judge


def measure(rank: Rank) -> Measured:
    """Have the whole copies that follow the preparation be one bit off."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.Tensor.copy_

    def flips(target: Any, source: Any) -> Any:
        honest(target, source)
        if len(target) == peer_to_peer.VALUES:
            target[777] ^= 1 << 30
        return target

    torch.Tensor.copy_ = flips
    return peer_to_peer.measure(rank)
