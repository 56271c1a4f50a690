"""What the checks of data-parallel training share: a small model, its batch, references, and digests of replicas."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable
from typing import Any

from envcheck.checks import Ranks, failed
from envcheck.checks.env import _group


def digest(torch: Any, tensors: Iterable[Any]) -> str:
    """Digest the tensors' bytes, without numpy, which an environment need not have."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(bytes(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).tolist()))
    return found.hexdigest()


def reference(torch: Any, module: Any, inputs: Any, targets: Any) -> list[Any]:
    """Return the gradients that one process has on this batch."""
    alone = copy.deepcopy(module)
    alone.zero_grad()
    torch.nn.functional.mse_loss(alone(inputs), targets).backward()
    return [parameter.grad for parameter in alone.parameters()]


def wrap(rank: Any, module: Any, **options: Any) -> Any:
    """Return the module under DDP, on the rank's device."""
    from torch.nn.parallel import DistributedDataParallel

    devices = [rank.local_rank] if rank.device.startswith("cuda") else None
    return DistributedDataParallel(module, device_ids=devices, **options)


def drifted(ranks: Ranks, moment: str, when: str) -> _group.Problem:
    """Return the failure naming the ranks whose digest of that moment is not the others', or None."""
    digests = [entry.get(moment) for entry in ranks]
    if len(set(digests)) == 1:
        return None
    odd = sorted(ranks[i]["rank"] for i, found in enumerate(digests) if digests.count(found) * 2 <= len(ranks))
    return failed(
        f"replicas differ {when}: rank(s) {odd} disagree with the rest",
        fix="run the all-reduce check on these ranks; drift without it points at a GPU that computes wrongly",
        ranks=odd,
        digests={str(entry["rank"]): entry.get(moment) for entry in ranks},
    )
