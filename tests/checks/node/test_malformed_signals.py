"""No pass out of garbage: a signal whose value has not its shape was not read."""

import ast
import dataclasses
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envcheck import checks
from envcheck.checks import ERROR, PASS, View
from envcheck.node import collect
from envcheck.node.snapshot import Signal
from envcheck.runner.judging import decide
from envcheck.runner.planning import discover
from tests.builders import gpu_view, put, put_gpu
from tests.tables import beside, each

FOUND = {module.id: module for module in discover() if module.kind == "node"}
GARBAGE: list[Any] = ["", "banana", {}, {"a": 1}, [[]], [1], -1, -5.5, math.nan, True, 1e300]
OF_GPUS = beside(__file__)["of_gpus"]
OF_THE_NODE = beside(__file__)["of_the_node"]


def seen(view: View) -> View:
    """Return what a run shows its judges of a view (Run.view)."""
    return dataclasses.replace(view, snapshot=collect.sound(view.snapshot))


def test_garbage_never_passes() -> None:
    sound, fits = gpu_view("h100x8"), {**collect.NODE, **collect.GPU}
    passing = []
    for (check, name), value in itertools.product([*OF_GPUS.items(), *OF_THE_NODE.items()], GARBAGE):
        view = put_gpu(sound, range(8), **{name: value}) if check in OF_GPUS else put(sound, **{name: value})
        if not fits[name](value) and decide(FOUND[check], seen(view)).status == PASS:
            passing.append((check, name, value))
    assert passing == []


def test_the_sound_node_passes_what_garbage_does_not() -> None:
    older = ("clock-sync", "hugepages", "infiniband", "acs", "iommu", "container-toolkit", "visible-devices")
    checks = [check for check in (*OF_GPUS, *OF_THE_NODE) if check not in older]
    sound = seen(gpu_view("h100x8"))
    assert [check for check in checks if decide(FOUND[check], sound).status != PASS] == []


ROOT = Path(checks.__file__).parent
NEEDED = [(check, name) for check, module in FOUND.items() for name in module.check.signals]


@each("check, name", NEEDED)
def test_an_unreadable_signal_is_an_error_that_names_it(check: str, name: str) -> None:
    view = gpu_view("h100x8")
    assert decide(FOUND[check], view).status in (PASS, "warn")
    unread = {**view.snapshot.signals, name: Signal(reason="NVML: Insufficient Permissions", why="denied")}
    blind = dataclasses.replace(view, snapshot=dataclasses.replace(view.snapshot, signals=unread))
    outcome = decide(FOUND[check], blind)
    assert outcome.status == ERROR
    assert f"{name}: NVML: Insufficient Permissions" in outcome.summary


def named() -> Iterator[tuple[str, str]]:
    """Yield what checks name in `.signal(...)` or `read(view, ...)`, and what looks like a signal."""
    rooms = "|".join({name.partition(".")[0] for name in collect.NODE})
    dotted = re.compile(rf"({rooms})\.[a-z_.]+")
    for path in (ROOT / "node").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        codes = [k.value for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords if k.arg == "code"]
        of_codes = {id(part) for code in codes for part in ast.walk(code)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and dotted.fullmatch(node.value):
                yield from [] if id(node) in of_codes else [(path.name, node.value)]
            if isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                place = {"signal": 0, "read": 1}.get(called, len(node.args))
                for argument in node.args[place : place + 1]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield path.name, argument.value


def test_a_check_asks_for_signals_that_somebody_reads() -> None:
    """A name that nobody reads is never collected: its check would skip for ever."""
    known = collect.NODE.keys() | collect.GPU.keys()
    requests = [*named(), *((check, name) for check, module in FOUND.items() for name in module.check.signals)]
    assert len(requests) > 100
    assert [(place, name) for place, name in requests if name not in known] == [], "no source reads this signal"
