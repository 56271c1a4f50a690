"""The second pair's write kills the process."""

from __future__ import annotations

import dataclasses
import os
import signal
from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import peer_to_peer

CHECK = dataclasses.replace(peer_to_peer.CHECK, gpus=0)
judge = peer_to_peer.judge
COPIES_OF_A_PAIR = 3 * peer_to_peer.TRANSFERS  # one by the copy engine, two halves by a kernel, each time


def measure(rank: Rank) -> Measured:
    """Die at the first copy of the second pair."""
    import torch  # noqa: PLC0415 (as a check does)

    honest, copies = torch.Tensor.copy_, []

    def dies(target: Any, source: Any) -> Any:
        copies.append(1)
        if len(copies) > COPIES_OF_A_PAIR:
            os.kill(os.getpid(), signal.SIGSEGV)
        return honest(target, source)

    torch.Tensor.copy_ = dies
    return peer_to_peer.measure(rank)
