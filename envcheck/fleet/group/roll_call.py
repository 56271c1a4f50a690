"""What nodes say of themselves when they meet, and whether they can be one group. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from envcheck.counting import counted
from envcheck.fleet.hostlist import fold

# Nodes whose clocks are this far apart have reports whose order says nothing.
CLOCK_SECONDS: Final = 60.0
_MOST_NAMED: Final = 8
_LONGEST: Final = 120


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """A node's first message. `time` is its clock, seconds since 1970; `plan` what it will measure, as text."""

    run: str
    node: int
    nodes: int
    name: str
    host: str
    tool: str
    plan: str
    time: float


class HelloRefusal(NamedTuple):
    """Why a node cannot take part. `whose`: the node's alone, or the whole group's, which then cannot be."""

    whose: Literal["node", "group"]
    why: str


def refusal(first: Hello, hello: Hello, came: Mapping[int, Hello]) -> HelloRefusal | None:
    """Return why a node cannot be of the first one's group, beside those that came; None where it can."""
    name, first_name = short(hello.name), short(first.name)
    if hello.run != first.run:
        why = f"{name} is of run {short(hello.run)!r}, and {first_name} leads run {short(first.run)!r} at this port"
        return HelloRefusal("node", why)
    started = counted(hello.nodes, "node")
    other = short(came[hello.node].name) if hello.node in came else ""
    faults = (
        (hello.nodes != first.nodes, f"{name} was started for {started}, and {first_name} for {first.nodes}"),
        (not 0 <= hello.node < first.nodes, f"{name} is number {hello.node} of {first.nodes} nodes, counted from 0"),
        (hello.node in came, f"{other} and {name} are both number {hello.node}"),
        (hello.name in {one.name for one in came.values()}, f"two nodes are called {name}"),
        (hello.tool != first.tool, f"{name} has envcheck {short(hello.tool)}, and {first_name} {short(first.tool)}"),
        (hello.plan != first.plan, f"{name} is to measure {short(hello.plan)}, and {first_name} {short(first.plan)}"),
    )
    return next((HelloRefusal("group", why) for fault, why in faults if fault), None)


def missing(nodes: int, names: Sequence[str], came: Mapping[int, Any], seconds: float) -> str:
    """Return which nodes did not come, by name where the launcher lists them, else by number."""
    absent = [node for node in range(nodes) if node not in came]
    if names:
        who = fold([names[node] for node in absent])
    else:
        listed = ", ".join(map(str, absent[:_MOST_NAMED])) + (" and others" if len(absent) > _MOST_NAMED else "")
        who = f"{'number' if len(absent) == 1 else 'numbers'} {listed} (counted from 0)"
    return f"{len(came)} of {nodes} nodes came within {seconds:g} s; missing: {who}"


def clock_warning(offsets: Mapping[str, float]) -> str:
    """Return which nodes' clocks are off by more than a minute; "" where none is."""
    off = [f"{name} by {seconds:+.0f} s" for name, seconds in offsets.items() if abs(seconds) > CLOCK_SECONDS]
    return f"clocks differ from the first node's: {', '.join(off[:_MOST_NAMED])}" if off else ""


def differences(facts: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return in which of the facts called `names` nodes differ, as one line; "" where they are alike."""
    for name in names:
        values = {node: str(own_facts.get(name)) for node, own_facts in facts.items()}
        kinds = list(dict.fromkeys(values.values()))
        if len(kinds) > 1:
            groups = (fold([node for node, value in values.items() if value == kind]) for kind in kinds)
            return f"{name} differs: " + ", ".join(
                f"{short(kind)} on {who}" for kind, who in zip(kinds, groups, strict=True)
            )
    return ""


def short(text: str) -> str:
    """Return what a node says in a length and with characters that a line can hold."""
    return "".join(character if character.isprintable() else "?" for character in text[:_LONGEST])
