"""Faults of torch in what users call beside the plain path: each one fails the check that promises otherwise.

Each fault is a few lines that patch torch in the ranks of one check; one run of the command has them all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checks.env import torch_faults
from tests.checks.env.torch_faults import Fault, around, replaced

_DIST = "import torch.distributed as dist\nhonest = dist.{name}\n"
_LATER = """
def lying(*a, **k):
    work = honest(*a, **k)
    if k.get('async_op'):
        work.wait()
        made = a[0][0] if isinstance(a[0], list) else a[0]
        made.zero_()
    return work
dist.{name} = lying
"""
_GROUP = """
def lying(made, *a, **k):
    work = honest(made, *a, **k)
    if k.get('group') is not None: made.zero_()
    return work
dist.{name} = lying
"""
_WHEN = """
def lying(made, *a, **k):
    work = honest(made, *a, **k)
    if {when}: {then}
    return work
dist.{name} = lying
"""


def _later(name: str) -> Fault:
    patch = (_DIST + _LATER).format(name=name)
    return Fault("collectives", patch, "in a group, waited for later is wrong")


def _in_group(name: str) -> Fault:
    return Fault("collectives", (_DIST + _GROUP).format(name=name), "in a group is wrong")


def _when(name: str, when: str, message: str, then: str = "made.mul_(2)") -> Fault:
    return Fault("collectives", (_DIST + _WHEN).format(name=name, when=when, then=then), message)


FAULTS = {
    "later-broadcast": _later("broadcast"),
    "later-all-to-all": _later("all_to_all_single"),
    "later-gather-into": _later("all_gather_into_tensor"),
    "group-reduce-scatter": _in_group("reduce_scatter_tensor"),
    "group-scatter": _in_group("scatter"),
    "group-reduce": _in_group("reduce"),
    "sum-float64": _when("all_reduce", "made.dtype == torch.float64", "all-reduce is wrong"),
    "sum-int8": _when("all_reduce", "made.dtype == torch.int8", "all-reduce is wrong"),
    "sum-of-one-number": _when("all_reduce", "made.dim() == 0", "tensors of other shapes is wrong"),
    "sum-of-a-matrix": _when("all_reduce", "made.dim() == 2", "tensors of other shapes is wrong"),
    "sum-complex": _when("all_reduce", "made.is_complex()", "tensors of other types is wrong"),
    "broadcast-bool": _when(
        "broadcast", "made.dtype == torch.bool", "tensors of other types is wrong", "made.logical_not_()"
    ),
    "group-barrier-does-not-wait": replaced(
        "collectives",
        "dist.barrier",
        "lambda group=None, **k: honest(**k) if group is None else None",
        "barrier of a group ended too early",
        before="import torch.distributed as dist",
    ),
    "later-barrier-does-not-wait": Fault(
        "collectives",
        "import torch.distributed as dist\nhonest = dist.barrier\n"
        "class Done:\n    wait = lambda self: True\n"
        "dist.barrier = lambda *a, **k: Done() if k.get('async_op') else honest(*a, **k)",
        "barrier that is waited for later ended too early",
    ),
    "large-object-lost": around(
        "collectives",
        "dist.all_gather_object",
        "honest(into, *a, **k)\ninto[:] = [None if len(repr(one)) > 1 << 17 else one for one in into]",
        "all-gather of objects is wrong",
        given="into, *a, **k",
        before="import torch.distributed as dist",
    ),
    "rank-of-a-group": replaced(
        "collectives",
        "dist.get_rank",
        "lambda group=None: honest() if group is None else 0",
        "the numbers of the ranks",
        before="import torch.distributed as dist",
    ),
    "received-from-anybody": around(
        "collectives",
        "dist.recv",
        "said = honest(into, src, *a, **k)\nreturn 0 if src is None else said",
        "who that was",
        given="into, src=None, *a, **k",
        before="import torch.distributed as dist",
    ),
}


@pytest.fixture(scope="module")
def outcomes(torch_python: Path, once: Callable[..., Path]) -> dict[str, Any]:
    """Run every fault in one command; return the outcomes by fault."""
    return torch_faults.outcomes(torch_python, once, "breadth-faults", FAULTS)


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_beside_the_plain_path_fails_the_check_that_promises_otherwise(
    outcomes: dict[str, Any], name: str
) -> None:
    assert torch_faults.is_found(outcomes[name], FAULTS[name])
