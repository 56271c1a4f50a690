"""Objects that ranks gather, broadcast and scatter: pickled, sent as bytes, and equal when they arrive."""

from __future__ import annotations

from typing import Any

from envcheck.checks.collectives import group_cases
from envcheck.checks.collectives.case_tensors import Bench, Part

OBJECTS = "all-gather of objects"
# Characters of an object that is more than one message of gloo's or NCCL's protocols for small ones.
_LARGE_OBJECT = 1 << 18


def objects(b: Bench) -> list[Part]:
    """Gather objects of every rank, and broadcast some from a root; every second time in a group of all ranks."""
    group = group_cases.group(b.setting, range(b.world)) if b.case.turn % 2 else None
    torch = b.setting.torch

    def sent_object(rank: int, *, plain: bool = True) -> dict[str, Any]:
        numbers = b.given(rank)
        large = "x" * (_LARGE_OBJECT if b.case.turn == 0 else 0)
        text = f"{'y' * (rank * 100 + b.case.size)}{large}"
        return {"rank": rank, "text": text, "numbers": numbers, "tensor": numbers if plain else torch.tensor(numbers)}

    def plain(taken: Any) -> Any:
        return {**taken, "tensor": taken["tensor"].tolist()} if isinstance(taken, dict) else taken

    received: list[Any] = [None] * b.world
    b.setting.dist.all_gather_object(received, sent_object(b.mine, plain=False), group=group)
    sent = [sent_object(b.mine, plain=False), b.mine]
    b.setting.dist.broadcast_object_list(sent, b.root, group=group)
    every = [sent_object(rank) for rank in range(b.world)]
    return [
        ("of every rank", [*map(plain, received)], every),
        (f"from root {b.root}", [*map(plain, sent)], [sent_object(b.root), b.root]),
        *_objects_at_root(b, every, group),
    ]


def _objects_at_root(b: Bench, every: list[dict[str, Any]], group: Any) -> list[Part]:
    """Gather objects at a root, and scatter them from it."""
    at_root = b.mine == b.root
    gathered: list[Any] | None = [None] * b.world if at_root else None
    b.setting.dist.gather_object(every[b.mine], gathered, b.root, group=group)
    own: list[Any] = [None]
    b.setting.dist.scatter_object_list(own, every if at_root else None, b.root, group=group)
    parts = [(f"scattered from root {b.root}", own, [every[b.mine]])]
    return [*parts, (f"gathered at root {b.root}", gathered or [], every)] if at_root else parts
