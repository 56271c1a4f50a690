"""What a group of nodes measures, and how its run begins: the nodes meet, or the run says why they did not."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import platform
import time
from collections.abc import Collection, Iterator
from typing import Final

from envcheck import __version__
from envcheck.errors import ConfigError
from envcheck.fleet.group.meeting import Coordinator, FormedGroup, GroupMember, NotFormedError
from envcheck.fleet.group.membership import Membership
from envcheck.fleet.group.outcome import FORMED
from envcheck.fleet.group.roll_call import Hello, clock_warning
from envcheck.fleet.group.session import GroupSession
from envcheck.fleet.hostlist import fold
from envcheck.runner.planning import CheckModule, checked_module
from envcheck.runner.schema import OutcomeRow
from envcheck.runner.state import Run, now

# In the order of what each needs: data must be right before a speed means anything.
CHECKS: Final = (
    "envcheck.checks.env.collectives",
    "envcheck.checks.node_links",
    "envcheck.checks.env.all_reduce_bandwidth",
    "envcheck.checks.env.straggler",
)
# How long the others may take to read what the first node sent them last, in seconds.
_PATIENCE: Final = 5.0


def chosen(only: Collection[str] = ()) -> list[CheckModule]:
    """Return the checks of a group, or those of `only`. Raise ConfigError for an id that none has."""
    modules = [checked_module(importlib.import_module(name), "env", f"module:{name}") for name in CHECKS]
    by_id = {module.id: module for module in modules}
    for name in only:
        if name not in by_id:
            near = difflib.get_close_matches(name, by_id, 1)
            message = f"a group of nodes has no check {name[:60]!r}"
            raise ConfigError(message, fix=f"did you mean {near[0]}?" if near else f"give one of {', '.join(by_id)}")
    return [module for module in modules if not only or module.id in only]


@contextlib.contextmanager
def met(run: Run, place: Membership, name: str, processes: int, wait: float) -> Iterator[bool]:
    """Meet the other nodes within `wait` seconds and yield whether all came; the group ends with the block.

    `processes` are this node's ranks where it has no GPU. Raises ConfigError where this node cannot be of the group.
    """
    hello = Hello(
        run=place.run,
        node=place.node,
        nodes=place.nodes,
        name=name,
        host=platform.node(),
        tool=__version__,
        plan=", ".join(check.id for check in run.asked.plan.checks),
        time=time.time(),
    )
    leader = Coordinator(hello, place.names, place.port, wait) if place.node == 0 else None
    member: GroupMember | None = None
    patience = 0.0
    try:
        try:
            member = GroupMember.join(hello, place.address, place.port, wait)
        except NotFormedError as error:
            run.known[FORMED] = _not_formed(error)
            run.ended = now()
            yield False
            return
        run.nodes = GroupSession(
            member, place.node, place.run, [check.id for check in run.asked.plan.checks], processes
        )
        run.known[FORMED] = _formed(member.begun)
        yield True
        patience = _PATIENCE
    except KeyboardInterrupt:
        if member is not None:
            member.leave("it was interrupted")
        raise
    finally:
        if member is not None:
            member.leave()
        if leader is not None:
            leader.close(patience)


def _formed(begun: FormedGroup) -> OutcomeRow:
    """Return the outcome that says which nodes came."""
    clocks = dict(zip(begun.names, begun.clocks, strict=True))
    warning = clock_warning(clocks)
    came = f"{len(begun.names)} nodes came within {begun.seconds:.1f} s: {fold(begun.names)}"
    return OutcomeRow(
        id=FORMED,
        kind="env",
        status="warn" if warning else "pass",
        summary=f"{came}; {warning}" if warning else came,
        remedy="synchronise the clocks (chrony, ntpd)" if warning else "",
        code="group.clock" if warning else "",
        details={"hosts": dict(zip(begun.names, begun.hosts, strict=True)), "clock_seconds": clocks},
    )


def _not_formed(error: NotFormedError) -> OutcomeRow:
    return OutcomeRow(
        id=FORMED,
        kind="env",
        status="error",
        summary=error.message,
        remedy=error.fix or "",
        code="group.not-formed",
    )
