"""A test of nodes, what it came to, and the diagnosis that tests lead to."""

from __future__ import annotations

import hashlib
from typing import Final, Literal, NamedTuple

import msgspec

from envcheck.struct_types import know_types

ResultStatus = Literal["pass", "fail", "undetermined"]
BlameKind = Literal["node", "link", "gpu"]
# A group this much slower than others of its size has a fault in it. All-reduce goes at the speed of its slowest link;
# a link at half its width or one of two ports down halves it, and groups of sound nodes differ by a few percent.
SLOW: Final = 0.8


class GroupTest(NamedTuple):
    """One test: these nodes start together and measure. `attempt` 2 is the repetition of a test that did not pass.

    `step` is "roll-call" (each node by itself) or says which group of the search it is.
    """

    step: str
    nodes: tuple[str, ...]
    attempt: int = 1

    @property
    def key(self) -> str:
        """Return what identifies the test's result: the same nodes are not measured twice for two purposes."""
        kind = ROLL_CALL if self.step == ROLL_CALL else "group"
        digest = hashlib.blake2b(",".join(sorted(self.nodes)).encode(), digest_size=12).hexdigest()
        return f"{kind} {len(self.nodes)} {digest} {self.attempt}"


ROLL_CALL: Final = "roll-call"


class NodeAnswer(msgspec.Struct, frozen=True):
    """What one node reports. `gpus` is a number, `clock` seconds ahead of the launching machine's clock, or None."""

    node: str
    status: ResultStatus
    reason: str = ""
    gpus: int | None = None
    driver: str = ""
    kernel: str = ""
    clock: float | None = None
    faulty_gpus: tuple[str, ...] = ()


class GroupResult(msgspec.Struct, frozen=True):
    """What a test came to: `speed` in GB/s, None where none was measured.

    `faulty_gpus` are those that the reports blame, as "node GPU-uuid"; `answers` are the nodes' own.
    """

    status: ResultStatus
    speed: float | None = None
    reason: str = ""
    faulty_gpus: tuple[str, ...] = ()
    answers: tuple[NodeAnswer, ...] = ()
    seconds: float = 0.0


class Blame(msgspec.Struct, frozen=True):
    """A node, GPU or link at fault. `by` are the tests that say so, `reason` what they measured."""

    kind: BlameKind
    who: str
    reason: str
    by: tuple[str, ...] = ()


class UnclearNodes(msgspec.Struct, frozen=True):
    """Nodes about which nothing certain was found: a fault that could not be isolated, or groups that never formed."""

    nodes: tuple[str, ...]
    reason: str
    by: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True):
    """What all tests together say. `good` are the nodes that passed in a group; `notes` change no verdict."""

    blamed: tuple[Blame, ...] = ()
    not_isolated: tuple[UnclearNodes, ...] = ()
    undetermined: tuple[UnclearNodes, ...] = ()
    good: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return 1 where a fault was found, 3 where something is undetermined, else 0."""
        if self.blamed or self.not_isolated:
            return 1
        return 3 if self.undetermined or not self.good else 0


know_types(GroupResult, Diagnosis)
