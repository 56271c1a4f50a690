"""What the ranks of all nodes came to in one check, made of what each node says of its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from envcheck.fleet.group import roll_call
from envcheck.runner.worker import lost_rank

# In what the ranks' environments must be alike: an older torch speaks to a newer one, and measures something else.
ALIKE: Final = ("torch", "cuda", "nccl", "backend")
_LOG: Final = 4000


class NodePart(NamedTuple):
    """A node's part of the group: its ranks are the `here` from `first` on, of `world`."""

    first: int
    here: int
    world: int


def ready(facts: Mapping[str, Any], ranks: int, ports: Sequence[int], seed: int) -> dict[str, Any]:
    """Return what a node says once its torch is imported; the first one's ports and seed are for all."""
    gpus = int(facts.get("device_count") or 0)
    return {
        "ranks": ranks,
        "torch": str(facts.get("torch", "")),
        "cuda": str(facts.get("cuda") or "none"),
        "nccl": str(facts.get("nccl") or "none"),
        "backend": "nccl" if gpus else "gloo",
        "error": str(facts.get("error", "")),
        "ports": list(ports),
        "seed": seed,
    }


def unlike(parts: Mapping[int, Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return in what the nodes' environments differ, as one line; "" where they are alike."""
    return roll_call.differences({names[node]: answer for node, answer in sorted(parts.items())}, ALIKE)


def broken(parts: Mapping[int, Mapping[str, Any]], lost: Mapping[int, str], names: Sequence[str]) -> str:
    """Return why the group cannot measure: a node is lost, or its torch cannot be imported; "" where it can."""
    for node, why in sorted(lost.items()):
        return f"{names[node]} is lost: {why}"
    for node, answer in sorted(parts.items()):
        if answer.get("error"):
            return f"torch cannot be imported on {names[node]}: {answer['error']}"
    return ""


def part_of(node: int, ranks: Sequence[int]) -> NodePart:
    """Return a node's part of a group whose nodes have so many ranks."""
    return NodePart(sum(ranks[:node]), ranks[node], sum(ranks))


def own(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a node gives the others of a check that its ranks have done, or were lost in."""
    failed = event.get("error") is not None
    logs = [str(log)[-_LOG:] if failed else "" for log in event["logs"]]
    kept = {name: event[name] for name in ("ranks", "error", "seconds", "body", "progress")}
    return {**kept, "logs": logs}


def whole(
    event: Mapping[str, Any],
    parts: Mapping[int, Mapping[str, Any]],
    lost: Mapping[int, str],
    ranks: Sequence[int],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return this node's event with the ranks of all nodes; its error names the rank and node the group was lost by."""
    measured: list[Any] = []
    logs: list[str] = []
    for node, here in enumerate(ranks):
        answer = parts.get(node)
        measured += _filled(answer, "ranks", here, None)
        logs += _filled(answer, "logs", here, "")
    seconds = [float(answer.get("seconds") or 0.0) for answer in parts.values()]
    body = [float(answer.get("body") or 0.0) for answer in parts.values()]
    error = blamed(parts, lost, ranks, names)
    return {**event, "ranks": measured, "logs": logs, "error": error, "seconds": max(seconds), "body": max(body)}


def blamed(
    parts: Mapping[int, Mapping[str, Any]], lost: Mapping[int, str], ranks: Sequence[int], names: Sequence[str]
) -> dict[str, Any] | None:
    """Return {rank, text} of the rank that the group was lost by; None where all ranks of all nodes measured.

    A node that is gone comes before a rank that says something of its own, and that before one that only waited: of
    those it is the one that came the least far.
    """
    for node, why in sorted(lost.items()):
        if node not in parts:
            return {"rank": sum(ranks[:node]), "text": f"is lost with its node {names[node]}: {why}"}
    errors = [
        (node, answer["error"]) for node, answer in sorted(parts.items()) if isinstance(answer.get("error"), dict)
    ]
    if not errors:
        return None
    causes = [one for one in errors if not one[1].get("hung") and not lost_rank.waited(str(one[1].get("text")))]
    if causes:
        node, error = causes[0]
        return {**error, "text": f"{error['text']} (on {names[node]})"}
    culprit = _behind(parts, ranks)
    if culprit is not None:
        node = _node_of(culprit["rank"], ranks)
        waits = f"; rank {errors[0][1]['rank']} (on {names[errors[0][0]]}) waited for it: {errors[0][1]['text']}"
        return {"rank": culprit["rank"], "text": f"{culprit['why']} (on {names[node]}){waits}", "hung": True}
    node, error = errors[0]
    return {**error, "text": f"{error['text']} (on {names[node]})"}


def _behind(parts: Mapping[int, Mapping[str, Any]], ranks: Sequence[int]) -> dict[str, Any] | None:
    running, others = [], []
    for node, answer in sorted(parts.items()):
        first = sum(ranks[:node])
        for number, (state, stage, begun) in enumerate(answer.get("progress") or []):
            if state:
                running.append(lost_rank.ObservedRank(first + number, state, stage, begun))
            else:
                others.append((stage, begun))
    return lost_rank.culprit(running, others)


def _node_of(rank: int, ranks: Sequence[int]) -> int:
    return next(node for node in range(len(ranks)) if rank < sum(ranks[: node + 1]))


def _filled(answer: Mapping[str, Any] | None, name: str, count: int, otherwise: Any) -> list[Any]:
    """Return a node's list of so many entries; what it did not say is `otherwise`."""
    given = answer.get(name) if answer else None
    listed = given if isinstance(given, list) else []
    return [*listed, *([otherwise] * count)][:count]
