"""The copy engine says that it is done, and nothing has arrived; a kernel's stores arrive."""

from __future__ import annotations

import dataclasses
from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import peer_to_peer

CHECK = dataclasses.replace(peer_to_peer.CHECK, gpus=0)
judge = peer_to_peer.judge


def measure(rank: Rank) -> Measured:
    """Have the whole copies that follow the preparation copy nothing."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.Tensor.copy_

    def forgets(target: Any, source: Any) -> Any:
        return target if len(target) == peer_to_peer.VALUES else honest(target, source)

    torch.Tensor.copy_ = forgets
    return peer_to_peer.measure(rank)
