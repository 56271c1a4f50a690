"""InfiniBand and RoCE ports against their like, and the way from them to the GPUs."""

from typing import Any

from envcheck.checks import ERROR, PASS, SKIP, WARN, Limit, View, limits
from envcheck.checks.node import infiniband, peer_memory
from envcheck.node.snapshot import Signal
from tests.builders import gpu_view, put
from tests.tables import beside, each

Port = dict[str, Any]

CASES = beside(__file__, "infiniband.yaml")
SOUND = {"port": 1, "model": "MT_0000000838", "firmware": "28.39.1002", "layer": "InfiniBand", "rate": 400.0}
SOUND |= {"state": "ACTIVE", "physical": "LinkUp", "gids": {"IB/RoCE v1": 1}, "counters": {"link_downed": 0}}
DOWN = {"state": "DOWN", "physical": "Polling"}


def made(changes: list[Port]) -> list[Port]:
    """Return ports, each of which differs from a sound one by what is given."""
    return [{**SOUND, "device": f"mlx5_{number}", **changed} for number, changed in enumerate(changes)]


def rails(count: int, **changed: Any) -> list[Port]:
    """Return so many sound InfiniBand ports, the last of which is changed."""
    return made([*[{}] * (count - 1), changed])


@each("changes, status, word", CASES["rules"])
def test_each_side_of_each_rule(cpu: View, changes: list[Port], status: str, word: str) -> None:
    outcome = infiniband.judge(put(cpu, ib__ports=made(changes)))
    assert outcome.status == status, outcome
    assert word in outcome.summary
    assert bool(outcome.remedy) == (status not in (PASS, SKIP))


@each("counters, status, code", CASES["counters"])
def test_error_counters_are_judged_by_the_days_that_they_ran(
    cpu: View, counters: dict[str, Any], status: str, code: str
) -> None:
    ports = rails(8, counters=counters)
    outcome = infiniband.judge(put(cpu, ib__ports=ports, host__uptime=3 * 86400.0))
    assert (outcome.status, outcome.code, outcome.culprit) == (status, code, "mlx5_7/1" if code else "")
    if code:
        row = limits.find(code.replace(".", "-", 1))
        assert row is not None
        assert outcome.limit == Limit(row["warn"], "a day", row["source"], "at most")
        unknown = infiniband.judge(put(cpu, ib__ports=ports, host__uptime=Signal(reason="no /proc", why="failed")))
        assert (unknown.status, "not known" in unknown.summary) == (WARN, True)


@each("changes, status, culprits", CASES["cards"])
def test_a_second_port_that_nobody_cabled_is_no_fault(
    cpu: View, changes: list[Port], status: str, culprits: list[str]
) -> None:
    outcome = infiniband.judge(put(cpu, ib__ports=made(changes)))
    named = [part.culprit for part in outcome.findings] or [outcome.culprit] * bool(outcome.culprit)
    assert (outcome.status, named) == (status, culprits)


def test_a_missing_subnet_manager_is_the_remedy_where_the_link_is_there(cpu: View) -> None:
    assert "opensm" in infiniband.judge(put(cpu, ib__ports=rails(8, state="INIT"))).remedy
    assert "cable" in infiniband.judge(put(cpu, ib__ports=rails(8, **DOWN))).remedy


@each("days, status", [(1, WARN), (10, PASS)])
def test_one_port_alone_is_judged_by_the_days_it_is_up(cpu: View, days: int, status: str) -> None:
    lone = rails(1, counters={"link_downed": 20})
    assert infiniband.judge(put(cpu, ib__ports=lone, host__uptime=days * 86400.0)).status == status


def test_an_older_snapshot_is_a_skip_and_an_unreadable_one_an_error(cpu: View) -> None:
    assert infiniband.judge(cpu).status == SKIP
    unread = put(cpu, ib__ports=Signal(reason="/sys/class/infiniband: Permission denied", why="denied"))
    assert infiniband.judge(unread).status == ERROR
    assert "Permission denied" in infiniband.judge(unread).summary
    hidden = put(cpu, ib__ports=Signal(reason="/sys/class: No such file or directory", why="unsupported"))
    assert (infiniband.judge(hidden).status, infiniband.judge(hidden).code) == (SKIP, "ib-ports.hidden")


@each("changed, status", CASES["ways"])
def test_the_way_to_the_gpus(changed: dict[str, Any], status: str) -> None:
    signals = {**changed}
    ports = made(signals.pop("ports")) if "ports" in signals else rails(8)
    assert peer_memory.judge(put(gpu_view("h100x8"), ib__ports=ports, **signals)).status == status


def test_a_geforce_has_no_such_way_and_is_not_blamed() -> None:
    assert peer_memory.judge(put(gpu_view("rtx4090"), ib__ports=rails(2))).status == SKIP
