"""Nodes meet over real connections, and each gets the others' parts; what cannot be one group is one line."""

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from msgspec import structs

from benchmarks.fleet_group import measure
from envcheck.errors import ConfigError
from envcheck.fleet.group import meeting
from envcheck.fleet.group.meeting import Coordinator, GroupMember, LostGroupError, NotFormedError, StepParts, free_ports
from envcheck.fleet.group.membership import Hello, differences
from tests.tables import each
from tests.waiting import eventually

FIRST = Hello(run="7.0", node=0, nodes=3, name="n1", tool="1", plan="a, b")
NAMES = ("n1", "n2", "n3")


def hello(node: int, /, **changed: Any) -> Hello:
    return structs.replace(FIRST, **({"node": node, "name": NAMES[node]} | changed))


@contextlib.contextmanager
def leader(seconds: float = 20.0) -> Iterator[int]:
    (port,) = free_ports(1)
    leading = Coordinator(hello(0), NAMES, port, seconds)
    try:
        yield port
    finally:
        leading.close()


@contextlib.contextmanager
def joining(port: int, *hellos: Hello, seconds: float = 20.0) -> Iterator[list[Future[GroupMember]]]:
    with ThreadPoolExecutor() as pool:
        yield [pool.submit(GroupMember.join, one, "127.0.0.1", port, seconds) for one in hellos]


def all_three(port: int) -> list[GroupMember]:
    with joining(port, hello(2), hello(0), hello(1)) as futures:
        third, first, second = (future.result() for future in futures)
    return [first, second, third]


def exchanged(*members: GroupMember, steps: str = "aaa") -> list[StepParts | BaseException]:
    """Return what each member gets who gives its number for a step, or why it gets nothing."""
    with ThreadPoolExecutor() as pool:
        given = [pool.submit(one.exchange, steps[number], number) for number, one in enumerate(members)]
        return [one.exception() or one.result() for one in given]


def test_each_node_gets_the_parts_of_all() -> None:
    with leader() as port:
        members = all_three(port)
        assert (members[1].begun.names, members[2].begun.address) == ([*NAMES], "127.0.0.1")
        assert exchanged(*members) == [({0: 0, 1: 1, 2: 2}, {})] * 3
        with pytest.raises(NotFormedError, match="began without this node"):
            GroupMember.join(hello(1), "127.0.0.1", port, 5.0)
        apart = exchanged(*members, steps="abc")
        assert ["different steps: a, b, c" in str(one) for one in apart] == [True] * 3


def test_a_node_that_dies_is_named_and_the_others_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "GRACE", 0.2)
    with leader() as port:
        members = all_three(port)
        stopped: list[int] = []
        members[0].stopped = lambda: stopped.append(0)
        members[2].leave()
        assert eventually(lambda: stopped, [0]) == [0]
        assert exchanged(*members[:2]) == [({0: 0, 1: 1}, {2: "its envcheck ended"})] * 2


def test_the_ranks_that_wait_are_stopped_once_and_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "GRACE", 0.2)
    stopped: list[tuple[int, float]] = []
    with leader() as port, ThreadPoolExecutor() as pool:
        members = all_three(port)
        for number, member in enumerate(members):
            member.stopped = lambda number=number: stopped.append((number, time.monotonic()))  # type: ignore[misc]
        began = time.monotonic()
        pool.submit(members[1].exchange, "a", None, trouble=True)
        assert eventually(lambda: sorted(number for number, _ in stopped), [0, 2]) == [0, 2]
        assert all(at - began > 0.15 for _, at in stopped)
        for number in (0, 2):
            pool.submit(members[number].exchange, "a", None)
    assert eventually(lambda: len(stopped), 5) == 5, "the end stops each once more"
    with pytest.raises(LostGroupError, match="first node"):
        members[1].exchange("b", 1)


def test_a_node_that_is_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("GRACE", 0.1), ("BEAT", 0.1), ("SILENCE", 1.5)):
        monkeypatch.setattr(meeting, name, seconds)
    with leader() as port, socket.create_connection(("127.0.0.1", port)) as silent:
        silent.sendall(msgspec.json.encode(hello(2)) + b"\n")
        with joining(port, hello(0), hello(1)) as futures:
            members = [future.result() for future in futures]
        assert exchanged(*members) == [({0: 0, 1: 1}, {2: "it was silent for 1.5 s"})] * 2


def test_a_node_that_is_killed_with_a_beat_unread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "GRACE", 0.1)
    with leader() as port, socket.create_connection(("127.0.0.1", port)) as killed:
        killed.sendall(msgspec.json.encode(hello(2)) + b"\n")
        with joining(port, hello(0), hello(1)) as futures:
            members = [future.result() for future in futures]
        assert killed.recv(1, socket.MSG_PEEK)
        killed.close()  # with that unread the kernel resets it
        assert exchanged(*members) == [({0: 0, 1: 1}, {2: "its envcheck ended"})] * 2


def test_a_thousand_nodes_meet_and_the_one_that_is_lost_is_named() -> None:
    row = measure(1024, 10)
    assert (row["all_came"], row["lost_is_named"]) == (True, True)
    assert row["cpu_seconds"] < 60


def test_who_does_not_come_is_named() -> None:
    with leader(2.0) as port, joining(port, hello(0), hello(2), seconds=2.0) as futures:
        lines = [str(future.exception()) for future in futures]
        assert all(isinstance(future.exception(), NotFormedError) for future in futures)
    assert all("2 of 3 nodes came within 2 s; missing: n2" in line for line in lines)
    assert NotFormedError.exit_code == 3


@each("address", ["127.0.0.1", "no-such-host.invalid", "bad..name", "::1", "localhost"])
def test_a_first_node_that_is_not_there(address: str) -> None:
    (port,) = free_ports(1)
    with pytest.raises(NotFormedError) as unformed:
        GroupMember.join(hello(1), address, port, 0.3)
    assert "\n" not in str(unformed.value)
    # A script's `|| echo localhost` (mlc-ai/pith-train#91).
    assert ("this node itself" in str(unformed.value)) == (address[0] in "1:l")


@each(
    "changed, words",
    [
        ({"nodes": 4}, "n2 was started for 4 nodes, and n1 for 3"),
        ({"tool": "2\n"}, "n2 has envcheck 2, and n1 1"),
        ({"plan": "a"}, "n2 is to measure a, and n1 a, b"),
        ({"name": "n1"}, "two nodes are called n1"),
        ({"node": 0}, "both number 0"),
        ({"node": 3, "name": "n4"}, "number 3 of 3"),
    ],
)
def test_what_cannot_be_one_group_ends_it_for_all(changed: dict[str, Any], words: str) -> None:
    with leader() as port, joining(port, hello(0)) as (first,):
        time.sleep(0.2)
        with pytest.raises(ConfigError, match=words):
            GroupMember.join(hello(1, **changed), "127.0.0.1", port, 20.0)
        assert isinstance(first.exception(), ConfigError)


def test_a_node_of_another_run_and_another_program_disturb_nobody() -> None:
    with leader() as port:
        with pytest.raises(ConfigError, match=r"of run '8\.0'"):
            GroupMember.join(hello(1, run="8.0"), "127.0.0.1", port, 20.0)
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert len(all_three(port)) == 3
        with pytest.raises(ConfigError, match=f"port {port}"):
            Coordinator(hello(0), NAMES, port, 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        joined = pool.submit(GroupMember.join, hello(1), "127.0.0.1", server.getsockname()[1], 5.0)
        connection, _ = server.accept()
        connection.sendall(b"220 mail\n{}\n")
        assert isinstance(joined.exception(), NotFormedError)
        connection.close()


def test_versions_that_differ() -> None:
    facts = {"n1": {"torch": "2.13"}, "n2": {"torch": "2.13"}, "n3": {"torch": "2.8"}}
    assert differences(facts, ["torch"]) == "torch differs: 2.13 on n[1-2], 2.8 on n3"
    assert differences({"n1": facts["n1"], "n2": facts["n2"]}, ["torch"]) == ""
