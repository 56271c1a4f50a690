"""Which state each node is in, from all that was seen of it: the newest report counts, and a doubt is never a pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from envcheck.fleet.hostlist import is_name
from envcheck.fleet.model import NodeState

# A clock may be this wrong, in seconds, before what it says is doubted.
CLOCK_SLACK: Final = 300.0
_WORST: Final = {"pass": 0, "error": 1, "fail": 2}


class Sighting(NamedTuple):
    """A file of a node. `at` is when the run began, or when the file was written where it cannot be read.

    `run` is None for a file that cannot be read; `ended` and `modified` are seconds since 1970, UTC.
    """

    node: str
    at: float
    status: str
    why: str
    run: int | None = None
    ended: float | None = None
    modified: float | None = None
    path: str = ""


class StateOfNode(NamedTuple):
    """What a node counts as, the reason where it is no pass, and the run that says so.

    `age` is that of a report that did not pass and is older than those that count, else "".
    """

    node: str
    state: NodeState
    why: str
    run: int | None
    age: str = ""


def states(
    sightings: Iterable[Sighting], now: float, max_age: float, expected: Collection[str] = ()
) -> dict[str, StateOfNode]:
    """Return the state of every node that was seen or is expected. `max_age` in seconds."""
    by_node: dict[str, list[Sighting]] = defaultdict(list)
    for sighting in sightings:
        by_node[sighting.node].append(sighting)
    state_of = {node: _state(seen, now, max_age) for node, seen in by_node.items()}
    state_of |= dict(_two_names(state_of, {node: max(one.at for one in seen) for node, seen in by_node.items()}))
    missing = {node: StateOfNode(node, "missing", "no report", None) for node in expected if node not in state_of}
    return state_of | missing


def _two_names(state_of: Mapping[str, StateOfNode], at: Mapping[str, float]) -> Iterator[tuple[str, StateOfNode]]:
    """Yield the nodes that passed under one name and not since then under another: with a domain, or in capitals."""
    alike: dict[str, list[str]] = defaultdict(list)
    for node in state_of:
        alike[node.partition(".")[0].lower()].append(node)
    for names in alike.values():
        bad = sorted((name for name in names if state_of[name].state != "pass"), key=lambda name: at[name])
        bare = [name for name in bad if "." not in name]
        for node in names:
            # Two names with domains may be two nodes.
            others = bare if "." in node else bad
            if state_of[node].state == "pass" and others and at[others[-1]] >= at[node]:
                why = f"{others[-1]}, perhaps the same node, did not pass since: {state_of[others[-1]].why}"
                yield node, StateOfNode(node, "error", why, state_of[node].run)


def span(seconds: float) -> str:
    """Return a time in its largest unit: "5 min", "26 h", "12 days"."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _state(seen: list[Sighting], now: float, max_age: float) -> StateOfNode:
    newest = max(seen, key=lambda one: (one.at, _WORST[one.status], one.run or 0))
    doubt, age = _doubt(newest, now), now - (newest.ended or newest.at)
    if newest.status == "pass" and doubt:
        return StateOfNode(newest.node, "error", doubt, newest.run)
    if newest.status == "pass":
        if age > max_age:
            return StateOfNode(newest.node, "stale", f"the last report is {span(age)} old", newest.run)
        return StateOfNode(newest.node, "pass", "", newest.run)
    state: NodeState = "fail" if newest.status == "fail" else "error"
    return StateOfNode(newest.node, state, newest.why, newest.run, span(age) if age > max_age else "")


def _doubt(newest: Sighting, now: float) -> str:
    """Return why a report that says pass is not believed; "" where it is."""
    if not is_name(newest.node):
        return "no node can have this name"
    last = max(newest.at, newest.ended or newest.at)
    if last > now + CLOCK_SLACK:
        return f"the node's clock is {span(last - now)} ahead: its report is from the future"
    if newest.modified is not None and last > newest.modified + CLOCK_SLACK:
        return f"the node's clock is {span(last - newest.modified)} ahead of the time its file was written"
    return ""
