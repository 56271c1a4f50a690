"""What one rank of a group does wrong, by the name of its node: put on PYTHONPATH of the ranks' Python alone."""

import os
import signal
import sys
import time
from typing import Any

_fork = os.fork


def _slow(dist: Any) -> None:
    right = dist.all_reduce

    def late(*arguments: Any, **more: Any) -> Any:
        time.sleep(0.02)
        return right(*arguments, **more)

    dist.all_reduce = late


def _wrong(dist: Any) -> None:
    right = dist.batch_isend_irecv

    def changed(operations: list[Any]) -> Any:
        for operation in operations:
            if operation.op is dist.isend:
                operation.tensor.view(-1)[-1:] += 1
        return right(operations)

    dist.batch_isend_irecv = changed


def _dead(dist: Any) -> None:
    """Die in the first broadcast, which only the check of collectives has."""
    dist.broadcast = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)


def _held(_: Any) -> None:
    """Give the node a fifth of a CPU, no sooner than this: the import of torch would take five times as long."""
    with open(os.environ["QUOTA_OF_RANKS"], "w") as quota:  # noqa: PTH123 (pathlib is one import more for each rank)
        quota.write("20000")


def _sabotaged() -> int:
    pid = _fork()
    if pid == 0 and "torch" in sys.modules:
        import torch.distributed as dist  # noqa: PLC0415 (it is there in a rank alone)

        does = {"n2": _held if "QUOTA_OF_RANKS" in os.environ else _slow, "n3": _wrong, "n4": _dead}
        does.get(os.environ.get("SLURMD_NODENAME", ""), lambda _: None)(dist)
    return pid


os.fork = _sabotaged
