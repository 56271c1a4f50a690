"""Whom a group's end is blamed on, and what the report of each node says of it."""

import socket
from typing import Any

import msgspec
import pytest
from msgspec import structs

from envcheck.fleet.group import outcome as outcomes
from envcheck.fleet.group.meeting import FormedGroup
from envcheck.fleet.group.outcome import of_group, of_node
from envcheck.fleet.group.session import formed, interface_of
from envcheck.fleet.one_report import nodes_of, read
from envcheck.reports.model import RunReport, encode
from envcheck.runner.outcomes import as_finding
from envcheck.runner.schema import GroupFacts, OutcomeRow
from tests.builders import row
from tests.fleet.node_reports import node_report
from tests.tables import each

NAMES = ["n1", "n2", "n3"]
RANKS = [2, 2, 2]
GROUP = GroupFacts(run="7.0", nodes=NAMES, ranks=RANKS)
WAITED = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"


def part(error: dict[str, Any] | None = None, *progress: list[Any]) -> dict[str, Any]:
    return {"ranks": [{}, {}], "error": error, "seconds": 1.0, "body": 1.0, "progress": progress, "logs": ["", ""]}


HUNG = {"rank": 0, "text": "still running after 60 s (ranks 0, 1); ended by SIGTERM", "hung": True}
LAST = [["S", 3, 9], ["S", 3, 9]]


@each(
    "parts, lost, rank, text",
    [
        # What died comes before what waited, and a node that is gone before both.
        ([part({"rank": 0, "text": WAITED}), part(), part({"rank": 4, "text": "died"})], {}, 4, "died (on n3)"),
        ([part({"rank": 0, "text": WAITED}), None, part({"rank": 4, "text": "died"})], {1: "gone"}, 2, "node n2: gone"),
        # Of ranks that all wait the one that is behind.
        ([part(HUNG, *LAST), part(HUNG, ["S", 3, 9], ["S", 3, 8]), part(HUNG, *LAST)], {}, 3, "(on n2)"),
    ],
)
def test_whom_the_group_was_lost_by(parts: list[Any], lost: dict[int, str], rank: int, text: str) -> None:
    by_node = {node: own for node, own in enumerate(parts) if own is not None}
    error = outcomes.blamed(by_node, lost, RANKS, NAMES)
    assert error is not None
    assert (error["rank"], text in error["text"]) == (rank, True)


def test_all_ranks_come_in_order_and_a_lost_nodes_are_empty() -> None:
    event = {"event": "done", "id": "a"}
    parts = {0: {**part(), "ranks": [1, 2]}, 2: {**part(), "ranks": [5]}}
    whole = outcomes.whole(event, parts, {1: "gone"}, RANKS, NAMES)
    assert whole["ranks"] == [1, 2, None, None, 5, None]
    assert (whole["error"]["rank"], whole["kept"]) == (2, {})
    held = {"quota": 0.5, "periods": 100, "throttled": 90, "share": 0.9}
    parts[2]["throttled"] = outcomes.own({**event, **part(), "kept": {"throttled": held}})["throttled"]
    assert outcomes.whole(event, parts, {}, RANKS, NAMES)["kept"]["throttled"] == held, (
        "a quota on any node counts for all"
    )
    assert outcomes.broken({0: {"error": ""}}, {}, NAMES) == ""
    assert "imported on n2: no torch" in outcomes.broken({1: {"error": "no torch"}}, {}, NAMES)


def outcome(status: Any, culprit: str, *, remeasure: bool = False) -> OutcomeRow:
    made = row("all-reduce", status, f"wrong on {culprit}")
    return structs.replace(made, kind="env", culprit=culprit, remeasure=remeasure, ranks=[0, 1, 2, 3, 4, 5])


def with_error(failed: OutcomeRow, culprit: str) -> OutcomeRow:
    """Return a failure with a second finding, of a rank that gave no answer."""
    return structs.replace(failed, findings=[*map(as_finding, (failed, outcome("error", culprit)))])


def report(*outcomes: OutcomeRow) -> RunReport:
    document = msgspec.convert(node_report("n1", "cpu"), RunReport)
    return structs.replace(document, outcomes=list(outcomes), group=GROUP)


@each(
    "blamed, statuses",
    [
        (outcome("fail", "all-gather, rank 2"), ["error", "fail", "error"]),
        (outcome("fail", "all_reduce, rank 2, 4"), ["error", "fail", "fail"]),
        (outcome("fail", "rank 2 (cpu of n2)", remeasure=True), ["pass", "fail", "pass"]),
        (outcome("fail", "n1 -> n3"), ["fail", "error", "fail"]),
        (outcome("error", "rank 5"), ["error", "error", "error"]),
        (with_error(outcome("fail", "rank 2"), "rank 0"), ["error", "fail", "error"]),
        (with_error(outcome("fail", "rank 2", remeasure=True), "rank 0"), ["error", "fail", "error"]),
        (outcome("fail", ""), ["fail", "fail", "fail"]),
        (outcome("pass", ""), ["pass", "pass", "pass"]),
    ],
)
def test_a_nodes_report_fails_only_for_what_it_is_blamed_for(blamed: OutcomeRow, statuses: list[str]) -> None:
    nodes = [of_node(report(blamed), number) for number in range(3)]
    assert [node.outcomes[0].status for node in nodes] == statuses
    assert [node.outcomes[0].ranks for node in nodes] == [[0, 1], [2, 3], [4, 5]]
    codes = {"pass": 0, "fail": 1, "error": 3}
    assert [node.verdict.exit_code for node in nodes] == [codes[status] for status in statuses]


def test_ranks_are_named_with_their_nodes() -> None:
    shown = of_group(report(outcome("fail", "all-gather, rank 2"))).outcomes[0]
    assert (shown.culprit, shown.summary) == ("all-gather, rank 2 (n2)", "wrong on all-gather, rank 2 (n2)")
    assert nodes_of("ranks 0, 3 and 5", GROUP) == {0, 1, 2}
    assert nodes_of("all_reduce, rank 2 (n2), 4", GROUP) == {1, 2}, "as the group's report has it"


def test_a_fleet_reads_the_nodes_and_not_the_group() -> None:
    whole = report(outcome("pass", ""))
    assert read(encode(whole), "group").node == ""
    assert read(encode(of_node(whole, 1)), "n2").status == "pass"


def test_the_loopbacks_interface() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("198.51.100.7") == ""


@each(
    "names, local, interface, code",
    [
        (["127.0.1.1"], "10.0.0.7", "", "group.gloo-loopback"),  # Debian's /etc/hosts (meta-pytorch/monarch#4394)
        ([], "10.0.0.7", "", "group.gloo-loopback"),  # no such name (vllm-project/vllm#7074)
        (["192.0.2.1"], "10.0.0.7", "", "group.gloo-loopback"),  # another machine's address: it cannot be bound
        (["127.0.1.1"], "10.0.0.7", "eth0", ""),
        (["127.0.1.1"], "127.0.0.1", "", ""),  # all nodes are on this machine
        (["192.0.2.1", "0.0.0.0"], "10.0.0.7", "", ""),
    ],
)
def test_a_node_that_gloo_would_look_for_at_the_loopback_is_told(
    monkeypatch: pytest.MonkeyPatch, names: list[str], local: str, interface: str, code: str
) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        if not names:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, 0)) for name in names]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    came, *told = formed(FormedGroup(["n1", "n2"], 1.0, "10.0.0.1", local))
    assert (came.status, "n[1-2]" in came.summary, [row.code for row in told]) == ("pass", True, [code] if code else [])
    assert all((row.status, f"the interface of {local}" in row.remedy) == ("warn", True) for row in told)
