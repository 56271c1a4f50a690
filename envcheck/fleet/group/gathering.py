"""What the first node keeps of a group that has formed: each node's part of a step, and who was lost.

Pure: messages and times come in, and messages to nodes come out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

# What the others have left once a node or its ranks are lost: long enough for each to see it by itself.
GRACE: Final = 4.0

Message = dict[str, Any]


class Gathering:
    """The steps of a group of nodes: each gives its part, and gets those of all once the last one gave its own."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.lost: dict[int, str] = {}
        self._parts: dict[int, tuple[str, Any]] = {}
        self._trouble: float | None = None
        self._stopped: set[int] = set()

    def put(self, node: int, step: str, part: Any, now: float, *, trouble: bool) -> None:
        """Take a node's part of a step; with `trouble` the others' ranks may wait for this one's in vain."""
        self._parts[node] = (step, part)
        if trouble:
            self._begin_trouble(now)

    def lose(self, node: int, why: str, now: float) -> None:
        """Take the news that a node is gone; its part of this step counts if it gave one."""
        if node not in self.lost:
            self.lost[node] = why
            self._begin_trouble(now)

    def due(self, now: float) -> list[tuple[int, Message]]:
        """Return the messages that are to be sent now, each with the node it is for."""
        return [*self._complete()] or [*self._stops(now)]

    def _begin_trouble(self, now: float) -> None:
        self._trouble = now if self._trouble is None else self._trouble

    def _complete(self) -> Iterator[tuple[int, Message]]:
        live = [node for node in range(self.nodes) if node not in self.lost]
        if not live or any(node not in self._parts for node in live):
            return
        steps = {self._parts[node][0] for node in live}
        parts = {str(node): part for node, (step, part) in self._parts.items() if step in steps}
        lost = {str(node): why for node, why in self.lost.items()}
        apart = f"nodes are at different steps: {', '.join(sorted(steps))}" if len(steps) > 1 else ""
        self._parts, self._trouble, self._stopped = {}, None, set()
        for node in reversed(live):  # the first node may leave once it has its own
            yield node, {"ended": apart} if apart else {"step": steps.copy().pop(), "parts": parts, "lost": lost}

    def _stops(self, now: float) -> Iterator[tuple[int, Message]]:
        if self._trouble is None or now < self._trouble + GRACE:
            return
        for node in range(self.nodes):
            if node not in self.lost and node not in self._parts and node not in self._stopped:
                self._stopped.add(node)
                yield node, {"stop": True}
