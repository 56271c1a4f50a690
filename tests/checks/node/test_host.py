"""The host around the GPUs: files, memory, room, clock, stuck processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, PASS, SKIP, WARN, View
from envcheck.checks.node import clock_sync, disk_space, host_memory, open_files, stuck_processes
from envcheck.node.snapshot import Signal
from tests.tables import each

Node = Callable[..., View]
GIB = 1 << 30


@each("most, status", [(4096, PASS), (4095, WARN), ("unlimited", PASS)])
def test_open_files(cpu: View, put: Node, most: Any, status: str) -> None:
    assert open_files.judge(put(cpu, limits__nofile=most)).status == status


@each(
    "total, allowed, status",
    [
        (640 * GIB, "unlimited", PASS),
        (640 * GIB - 1, "unlimited", WARN),
        (1024 * GIB, 64 * GIB, WARN),
        (1024 * GIB, 1 << 50, PASS),
    ],
)
def test_host_memory_holds_what_the_gpus_hold(node: Node, put: Node, total: int, allowed: Any, status: str) -> None:
    view = put(node("h100x8"), host__memory_total=total, container__memory_limit=allowed)
    outcome = host_memory.judge(view)
    assert outcome.status == status
    assert ("container's limit" in outcome.summary) == (isinstance(allowed, int) and allowed < total)


@each("name", ["disk.tmp.free", "disk.home.free", "disk.cwd.free"])
def test_room_on_each_side_and_in_each_place(cpu: View, put: Node, name: str) -> None:
    assert disk_space.judge(put(cpu, **{name: 10 * GIB})).status == PASS
    assert disk_space.judge(put(cpu, **{name: 10 * GIB - 1})).status == WARN
    outcome = disk_space.judge(
        put(cpu, **{name: Signal(reason="/nonexistent: No such file or directory", why="unsupported")})
    )
    assert outcome.status == WARN
    assert "/nonexistent" in outcome.summary


def test_a_directory_that_does_not_answer_is_no_warning_about_room(cpu: View, put: Node) -> None:
    hung = put(cpu, disk__home__free=Signal(reason="timed out: no answer in 10 s", why="timed-out"), disk__tmp__free=1)
    outcome = disk_space.judge(hung)
    assert (outcome.status, outcome.summary) == (ERROR, "the home directory timed out: no answer in 10 s")
    assert "file server" in outcome.remedy


def test_each_place_without_room_is_a_finding_beside_one_that_does_not_answer(cpu: View, put: Node) -> None:
    missing, short = Signal(reason="timed out: no answer in 10 s", why="timed-out"), 10 * GIB - 1
    outcome = disk_space.judge(put(cpu, disk__tmp__free=short, disk__home__free=missing, disk__cwd__free=short))
    assert [(finding.status, finding.culprit) for finding in outcome.findings] == [
        (ERROR, "the home directory"),
        (WARN, "temporary files"),
        (WARN, "here"),
    ]
    assert all(finding.remedy for finding in outcome.findings)
    assert [finding.value for finding in outcome.findings[1:]] == [short, short]


def test_the_clock(node: Node, put: Node) -> None:
    assert clock_sync.judge(node("h100x8")).status == PASS
    loose = put(node("h100x8"), clock__synchronized=False)
    assert clock_sync.judge(loose).status == WARN
    assert clock_sync.judge(put(loose, container__runtime="docker")).status == SKIP


def test_stuck_processes_are_named(cpu: View, put: Node) -> None:
    assert stuck_processes.judge(cpu).status == PASS
    many = [{"pid": pid, "name": "python3"} for pid in range(100, 106)]
    outcome = stuck_processes.judge(put(cpu, host__stuck_processes=many))
    assert (outcome.status, len(outcome.findings)) == (WARN, 6)
    assert "python3 (100)" in outcome.summary
    assert "3 more" in outcome.summary
    assert [finding.culprit for finding in outcome.findings] == [f"process {pid} (python3)" for pid in range(100, 106)]
    assert "/proc/105/stack" in outcome.findings[5].remedy
