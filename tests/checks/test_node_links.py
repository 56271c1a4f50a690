"""Each message between two nodes, and each link beside the others: what is judged, and whom it names."""

from typing import Any

from envcheck.checks import View, node_links
from envcheck.node.snapshot import Snapshot
from tests.builders import group
from tests.tables import each

NODES = 4


def view(mode: str = "gpu") -> View:
    return View(Snapshot(), {}, {}, mode)


def link(source: int, seconds: float = 0.01, wrong: int = 0) -> dict[str, Any]:
    told = {"messages": 32, "wrong": wrong, "first": 3 if wrong else None}
    return {"source": source, "latency": 1e-5, "curve": [{"bytes": 10**9, "seconds": seconds}], **told}


def ranks(mode: str = "gpu", /, **changed: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a rank on each of four nodes measured; `changed` by the link's name, n1_n3."""

    def measured(node: int) -> dict[str, Any]:
        sources = [source for source in range(NODES) if source != node]
        links = [link(source, **changed.get(f"n{source + 1}_n{node + 1}", {})) for source in sources]
        return {"host": f"n{node + 1}", "node": node, "nodes": NODES, "links": links}

    return group(measured, NODES, gpu=mode == "gpu")


def every_link_of(name: str, **changed: Any) -> dict[str, dict[str, Any]]:
    others = [f"n{node + 1}" for node in range(NODES) if f"n{node + 1}" != name]
    return {link: changed for other in others for link in (f"{name}_{other}", f"{other}_{name}")}


def test_sound_links_pass_with_the_table() -> None:
    outcome = node_links.judge(view(), ranks())
    assert (outcome.status, outcome.value) == ("pass", 100.0)
    assert outcome.details["nodes"] == ["n1", "n2", "n3", "n4"]
    assert outcome.details["gigabytes_per_second"][0] == [None, 100.0, 100.0, 100.0]


def test_a_wrong_message_names_its_link() -> None:
    outcome = node_links.judge(view("cpu"), ranks("cpu", n1_n3={"wrong": 1}))
    assert (outcome.status, outcome.code, outcome.culprit) == ("fail", "node-links.data", "n1 -> n3")


def test_a_node_whose_messages_all_arrive_wrong_is_named() -> None:
    sent = {f"n3_n{node}": {"wrong": 2} for node in (1, 2, 4)}
    outcome = node_links.judge(view("cpu"), ranks("cpu", **sent))
    assert (outcome.status, outcome.culprit) == ("fail", "node n3")


@each("seconds, status", [(0.0142, "pass"), (0.0144, "fail")])
def test_a_link_below_seven_tenths_of_the_middle_one_is_slow(seconds: float, status: str) -> None:
    outcome = node_links.judge(view(), ranks(n2_n4={"seconds": seconds}))
    assert outcome.status == status
    if status == "fail":
        assert (outcome.culprit, outcome.code, outcome.remeasure) == ("n2 -> n4", "node-links.slow", True)


def test_a_node_whose_links_are_all_slow_is_named_and_a_cpu_is_not_judged_by_speed() -> None:
    slow = every_link_of("n2", seconds=0.03)
    assert node_links.judge(view(), ranks("gpu", **slow)).culprit == "node n2"
    assert node_links.judge(view("cpu"), ranks("cpu", **slow)).status == "pass"


def test_a_link_that_was_not_measured_is_no_pass() -> None:
    measured = ranks()
    measured[1]["links"].pop()
    assert node_links.judge(view(), measured).code == "node-links.unmeasured"
    measured = ranks(n1_n2={"seconds": float("nan")})
    assert node_links.judge(view(), measured).status == "error"
    assert node_links.judge(view(), ranks()[:3]).status == "error"


def test_one_node_has_no_links() -> None:
    alone = {**ranks("cpu")[0], "world": 1, "nodes": 1, "links": []}
    assert node_links.judge(view("cpu"), [alone]).status == "skip"


def test_every_pair_is_measured_up_to_64_nodes_and_powers_of_two_beyond() -> None:
    assert node_links.distances(4) == [1, 2, 3]
    assert len(node_links.distances(64)) == 63
    assert node_links.distances(65) == [1, 2, 4, 8, 16, 32, 64]
