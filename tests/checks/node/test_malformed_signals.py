"""No pass out of garbage: a signal whose value has not its shape was not read."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from envcheck.checks import PASS, View
from envcheck.node import collect
from envcheck.runner.judging import decide
from envcheck.runner.planning import discover
from tests.tables import beside

Node = Callable[..., View]
FOUND = {module.id: module for module in discover() if module.kind == "node"}
GARBAGE: list[Any] = ["", "banana", {}, {"a": 1}, [[]], [1], -1, -5.5, math.nan, True, 1e300]
OF_GPUS = beside(__file__)["of_gpus"]
OF_THE_NODE = beside(__file__)["of_the_node"]


def seen(view: View) -> View:
    """Return what a run shows its judges of a view (Run.view)."""
    return dataclasses.replace(view, snapshot=collect.sound(view.snapshot))


def test_garbage_never_passes(node: Node, put: Node, put_gpu: Node) -> None:
    sound, fits = node("h100x8"), {**collect.NODE, **collect.GPU}
    views = [
        (check, name, value, put_gpu(sound, range(8), **{name: value}))
        for check, name in OF_GPUS.items()
        for value in GARBAGE
    ]
    views += [
        (check, name, value, put(sound, **{name: value})) for check, name in OF_THE_NODE.items() for value in GARBAGE
    ]
    passing = [
        (check, name, value)
        for check, name, value, view in views
        if not fits[name](value) and decide(FOUND[check], seen(view)).status == PASS
    ]
    assert passing == []


def test_the_sound_node_passes_what_garbage_does_not(node: Node) -> None:
    older = ("clock-sync", "hugepages", "infiniband", "acs", "iommu", "container-toolkit", "visible-devices")
    checks = [check for check in (*OF_GPUS, *OF_THE_NODE) if check not in older]
    assert {check: decide(FOUND[check], seen(node("h100x8"))).status for check in checks} == dict.fromkeys(checks, PASS)
