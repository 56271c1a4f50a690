"""InfiniBand and RoCE ports against their like, and the way from them to the GPUs."""

import math
from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Limit, View, limits
from envcheck.checks.node import infiniband, peer_memory
from envcheck.node.snapshot import Signal
from tests.tables import each

Node = Callable[..., View]
Port = dict[str, Any]


def rails(count: int, **changed: Any) -> list[Port]:
    """Return so many sound InfiniBand ports, the last of which is changed."""
    sound = {
        "port": 1,
        "model": "MT_0000000838",
        "firmware": "28.39.1002",
        "layer": "InfiniBand",
        "state": "ACTIVE",
        "physical": "LinkUp",
        "rate": 400.0,
        "gids": {"IB/RoCE v1": 1},
        "counters": {"link_downed": 0},
    }
    module = [{**sound, "device": f"mlx5_{index}"} for index in range(count)]
    return [*module[:-1], {**module[-1], **changed}]


ROCE = {"layer": "Ethernet", "gids": {"IB/RoCE v1": 1, "RoCE v2": 1}}
GARBAGE: list[Any] = [
    "",
    {},
    [1],
    [{}],
    [[]],
    True,
    -1,
    rails(1, rate=-1),
    rails(1, rate=math.nan),
    rails(1, rate=True),
]
GARBAGE += [
    rails(1, counters={"link_downed": -1}),
    rails(1, gids=[]),
    rails(1, gids={"RoCE v2": "x"}),
    rails(1, state=4),
]
DOWN = {"state": "DOWN", "physical": "Polling"}


@each(
    "ports, status, word",
    [
        (rails(8), PASS, "8 ports up at 400 Gb/s InfiniBand"),
        (rails(8, **DOWN), FAIL, "mlx5_7/1: DOWN, Polling; 7 of 8"),
        (rails(5, **DOWN), FAIL, "4 of 5"),
        (rails(4, **DOWN), WARN, "3 of 4"),
        (rails(2, **DOWN), WARN, "1 of 2"),
        (rails(1, **DOWN), SKIP, "none of 1"),
        (rails(1, state="INIT"), WARN, "INIT, LinkUp"),
        ([*rails(1, **ROCE), *rails(1, **ROCE, **DOWN)], PASS, "1 unused"),
        ([*rails(2, **ROCE), *rails(1, **ROCE, **DOWN)], PASS, "1 unused"),
        (rails(8, rate=399.9), FAIL, "mlx5_7/1: 399.9 Gb/s, where its like have 400"),
        (rails(3, rate=100.0), WARN, "100 Gb/s"),
        (rails(8, rate=None), ERROR, "of no rate"),
        ([*rails(7), *rails(1, model="MT_0000000540", rate=100.0)], PASS, "100 Gb/s InfiniBand, 400 Gb/s InfiniBand"),
        (rails(1, **{**ROCE, "gids": {}}), WARN, "no RoCE v2 GID (none at all)"),
        (rails(1, **{**ROCE, "gids": {"IB/RoCE v1": 1}}), WARN, "only IB/RoCE v1"),
        (rails(2, counters={"link_downed": 4}), PASS, "up"),
        (rails(2, counters={"link_downed": 5}), WARN, "mlx5_1/1 5 times"),
        (rails(1, **{**ROCE, "gids": {}, "type": "RNIC"}), PASS, "1 port up"),
        (rails(1, **{**ROCE, "gids": {}, "type": "CA"}), WARN, "no RoCE v2 GID"),
        ([], SKIP, "no InfiniBand"),
    ],
)
def test_each_side_of_each_rule(cpu: View, put: Node, ports: list[Port], status: str, word: str) -> None:
    outcome = infiniband.judge(put(cpu, ib__ports=ports))
    assert outcome.status == status, outcome
    assert word in outcome.summary
    assert bool(outcome.remedy) == (status not in (PASS, SKIP))


@each(
    "counters, status, code",
    [
        ({"symbol_error": 120 * 24 * 3}, PASS, ""),
        ({"symbol_error": 120 * 24 * 3 + 1}, WARN, "infiniband.symbol-error"),
        ({"link_error_recovery": 30}, PASS, ""),
        ({"link_error_recovery": 31}, WARN, "infiniband.link-error-recovery"),
        ({"port_rcv_errors": 30}, PASS, ""),
        ({"port_rcv_errors": 31}, WARN, "infiniband.port-rcv-errors"),
        ({"local_link_integrity_errors": 30}, PASS, ""),
        ({"local_link_integrity_errors": 31}, WARN, "infiniband.local-link-integrity-errors"),
        ({"excessive_buffer_overrun_errors": 30}, PASS, ""),
        ({"excessive_buffer_overrun_errors": 31}, WARN, "infiniband.excessive-buffer-overrun-errors"),
        ({"port_xmit_discards": 7200}, PASS, ""),
        ({"port_xmit_discards": 7201}, WARN, "infiniband.port-xmit-discards"),
        ({"symbol_error": None, "port_rcv_errors": 0}, PASS, ""),
    ],
)
def test_error_counters_are_judged_by_the_days_that_they_ran(
    cpu: View, put: Node, counters: dict[str, Any], status: str, code: str
) -> None:
    ports = rails(8, counters=counters)
    outcome = infiniband.judge(put(cpu, ib__ports=ports, host__uptime=3 * 86400.0))
    assert (outcome.status, outcome.code) == (status, code)
    if code:
        assert outcome.culprit == "mlx5_7/1"
        assert "since boot" in outcome.summary
        row = limits.find(code.replace(".", "-", 1))
        assert row is not None
        assert outcome.limit == Limit(row["warn"], "a day", row["source"], "at most")
        assert outcome.value > row["warn"]
        unknown = infiniband.judge(put(cpu, ib__ports=ports, host__uptime=Signal(reason="no /proc", why="failed")))
        assert (unknown.status, "not known" in unknown.summary) == (WARN, True)


CARD_A, CARD_B = {"slot": "0000:5e:00"}, {"slot": "0000:af:00"}


@each(
    "changes, status, culprits",
    [
        # One card, one cable: its second port never had a link.
        ([CARD_A, {**CARD_A, **DOWN}], PASS, []),
        ([CARD_A, {**CARD_A, "state": "DOWN", "physical": "Disabled"}], PASS, []),
        # It had one, nobody counts, no subnet manager, or the ports are of two cards.
        ([CARD_A, {**CARD_A, **DOWN, "counters": {"link_downed": 1}}], WARN, ["mlx5_1/1"]),
        ([CARD_A, {**CARD_A, **DOWN, "counters": {"link_downed": None}}], WARN, ["mlx5_1/1"]),
        ([CARD_A, {**CARD_A, "state": "INIT"}], WARN, ["mlx5_1/1"]),
        ([CARD_A, {**CARD_B, **DOWN}], WARN, ["mlx5_1/1"]),
        # Two cards: with one cable each, and one of four cables lost.
        ([CARD_A, {**CARD_A, **DOWN}, CARD_B, {**CARD_B, **DOWN}], PASS, []),
        ([CARD_A, CARD_A, CARD_B, {**CARD_B, **DOWN}], WARN, ["mlx5_3/1"]),
        ([CARD_A, {**CARD_A, **DOWN}, {**CARD_B, **DOWN}, {**CARD_B, **DOWN}], WARN, ["mlx5_2/1", "mlx5_3/1"]),
    ],
)
def test_a_second_port_that_nobody_cabled_is_no_fault(
    cpu: View, put: Node, changes: list[Port], status: str, culprits: list[str]
) -> None:
    ports = [{**port, **changed} for port, changed in zip(rails(len(changes)), changes, strict=True)]
    outcome = infiniband.judge(put(cpu, ib__ports=ports))
    module = [part.culprit for part in outcome.findings] or [outcome.culprit] * bool(outcome.culprit)
    assert (outcome.status, module) == (status, culprits)


def test_what_ethernet_discards_is_no_error(cpu: View, put: Node) -> None:
    ports = rails(1, **ROCE, counters={"port_xmit_discards": 10**6})
    assert infiniband.judge(put(cpu, ib__ports=ports, host__uptime=3600.0)).status == PASS


def test_each_sick_port_is_a_finding_of_its_own(cpu: View, put: Node) -> None:
    ports = rails(8, rate=100.0, counters={"symbol_error": 10**9})
    ports[2] = {**ports[2], **DOWN}
    outcome = infiniband.judge(put(cpu, ib__ports=ports, host__uptime=86400.0))
    assert [(f.status, f.code, f.culprit) for f in outcome.findings] == [
        (FAIL, "infiniband.down", "mlx5_2/1"),
        (FAIL, "infiniband.slow", "mlx5_7/1"),
        (WARN, "infiniband.symbol-error", "mlx5_7/1"),
    ]


def test_four_of_eight_rails_that_are_slow_fail_nobody_alone(cpu: View, put: Node) -> None:
    half = [*rails(4), *[{**port, "rate": 200.0} for port in rails(4)]]
    assert infiniband.judge(put(cpu, ib__ports=half)).status == WARN


def test_a_missing_subnet_manager_is_the_remedy_where_the_link_is_there(cpu: View, put: Node) -> None:
    assert "opensm" in infiniband.judge(put(cpu, ib__ports=rails(8, state="INIT"))).remedy
    assert "cable" in infiniband.judge(put(cpu, ib__ports=rails(8, **DOWN))).remedy


@each("days, status", [(1, WARN), (10, PASS)])
def test_one_port_alone_is_judged_by_the_days_it_is_up(cpu: View, put: Node, days: int, status: str) -> None:
    lone = rails(1, counters={"link_downed": 20})
    assert infiniband.judge(put(cpu, ib__ports=lone, host__uptime=days * 86400.0)).status == status


def test_an_older_snapshot_is_a_skip_and_an_unreadable_one_an_error(cpu: View, put: Node) -> None:
    assert infiniband.judge(cpu).status == SKIP
    unread = put(cpu, ib__ports=Signal(reason="/sys/class/infiniband: Permission denied", why="denied"))
    assert infiniband.judge(unread).status == ERROR
    assert "Permission denied" in infiniband.judge(unread).summary
    hidden = put(cpu, ib__ports=Signal(reason="/sys/class: No such file or directory", why="unsupported"))
    assert (infiniband.judge(hidden).status, infiniband.judge(hidden).code) == (SKIP, "infiniband.hidden")


@each(
    "signals, status",
    [
        ({"host__gpu_modules": ["nvidia", "nvidia_peermem"]}, PASS),
        ({"host__gpu_modules": ["nvidia", "nv_peer_mem"]}, PASS),
        ({"host__gpu_modules": ["nvidia", "efa_nv_peermem"]}, PASS),
        ({"driver__kernel_flavour": "open", "host__kernel": "5.12.0"}, PASS),
        ({"driver__kernel_flavour": "open", "host__kernel": "5.11.22"}, WARN),
        ({"driver__kernel_flavour": "proprietary", "host__kernel": "6.8.0"}, WARN),
        ({"driver__kernel_flavour": "open", "host__kernel": "custom"}, WARN),
        ({"host__gpu_modules": Signal(reason="/proc/modules: Permission denied", why="denied")}, ERROR),
        ({"ib__ports": rails(1, **DOWN)}, SKIP),
    ],
)
def test_the_way_to_the_gpus(node: Node, put: Node, signals: dict[str, Any], status: str) -> None:
    view = put(node("h100x8"), **{"ib__ports": rails(8), **signals})
    assert peer_memory.judge(view).status == status


def test_a_geforce_has_no_such_way_and_is_not_blamed(node: Node, put: Node) -> None:
    assert peer_memory.judge(put(node("rtx4090"), ib__ports=rails(2))).status == SKIP
