"""A run on several nodes: what it measures, how the nodes meet, and how what their ranks measured is joined."""

import contextlib
import fcntl
import importlib
import ipaddress
import json
import os
import socket
import struct
from collections.abc import Collection, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from envcheck import __version__, safe_files
from envcheck.checks.support.exact_data import SEED
from envcheck.checks.support.process_group import NODE_NAME
from envcheck.errors import refuse
from envcheck.fleet.group import meeting, outcome
from envcheck.fleet.group.meeting import Coordinator, GroupMember, LostGroupError, NotFormedError, free_ports
from envcheck.fleet.group.membership import Hello, Membership, differences
from envcheck.fleet.hostlist import fold
from envcheck.fleet.one_report import FORMED
from envcheck.node.collect import now
from envcheck.runner.execute import Run
from envcheck.runner.planning import CheckModule, checked_module
from envcheck.runner.schema import GroupFacts, OutcomeRow
from envcheck.runner.worker.fork_server import NODES_LOST, NODES_READY
from envcheck.runner.worker_session import LAST, leave_word

_LOOPBACK: Final = ("127.", "::1")


def interface_of(address: str) -> str:
    """Return the name of the interface with an address of IPv4 or IPv6; "" where none has it."""
    numeric = ipaddress.ip_address(address)
    with contextlib.suppress(OSError):
        rows = map(str.split, Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines())
        found = [row[5] for row in rows if numeric == ipaddress.IPv6Address(int(row[0], 16))]
        if found:
            return found[0]
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            # ioctl(2), netdevice(7), SIOCGIFADDR: the address of an interface stands after its name and family.
            held = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))[20:24]
            if numeric == ipaddress.IPv4Address(held):
                return name
    return ""


def gloo_address() -> str:
    """Return where gloo meets without GLOO_SOCKET_IFNAME: the first address of the own name that can be bound.

    Where none can, it takes the loopback (torch, ProcessGroupGloo::createDefaultDevice).
    """
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return str(address[0])
    return "127.0.0.1"


def formed(begun: meeting.FormedGroup) -> list[OutcomeRow]:
    """Return the row of a group that came together, and a warning where gloo would look for this node at its loopback.

    What meets over gloo without GLOO_SOCKET_IFNAME waits there in vain (vllm-project/vllm#7074, aws-do-eks#69).
    """
    came = f"{len(begun.names)} nodes came within {begun.seconds:.1f} s: {fold(begun.names)}"
    rows = [OutcomeRow(id=FORMED, kind="env", status="pass", summary=came)]
    address = begun.local if os.environ.get("GLOO_SOCKET_IFNAME") else gloo_address()
    if begun.local.startswith(_LOOPBACK) or not address.startswith(_LOOPBACK):
        return rows
    text = f"gloo takes {address} for this node, as its own name leads to no address that others reach"
    own = interface_of(begun.local) or f"the interface of {begun.local}"
    fix = f"set GLOO_SOCKET_IFNAME to {own} for jobs, or give its name its address in /etc/hosts"
    found = OutcomeRow(id="group-gloo", kind="env", status="warn", summary=text, remedy=fix, code="group.gloo-loopback")
    return [*rows, found]


Event = dict[str, Any]


class GroupSession:
    """The group of a node's run that has met the others. `checks` are what it measures, in their order."""

    def __init__(self, run: Run, member: GroupMember, node: int, checks: Sequence[str], processes: int) -> None:
        self.run, self.member, self.node, self.checks = run, member, node, list(checks)
        self.names = member.begun.names
        self._processes = processes
        self._ranks: list[int] = []
        self._rounds = 0

    def together(self, events: Iterator[Event], directory: Path) -> Iterator[Event]:
        """Yield the worker's events, those of a check's end with the ranks of all nodes; then `end` if it is lost."""
        self._rounds += 1
        self.member.stopped = lambda: leave_word(directory / NODES_LOST)
        try:
            for event in events:
                yield from self._joined(event, directory)
                if event["event"] in LAST:
                    return
        except LostGroupError as lost:
            yield {"event": "end", "why": f"the group is lost: {lost}"}
        finally:
            if isinstance(events, Generator):  # its worker ends with it
                events.close()

    def _joined(self, event: Event, directory: Path) -> Iterator[Event]:
        if event["event"] == "environment":
            self._ready(event["facts"], directory)
            yield event
        elif event["event"] == "done":
            (directory / NODES_LOST).unlink(missing_ok=True)
            step = f"{self._rounds} {event['id']}"
            parts, lost = self.member.exchange(step, outcome.own(event), trouble=event["error"] is not None)
            yield outcome.whole(event, parts, lost, self._ranks, self.names)
            if lost:
                raise LostGroupError(outcome.broken({}, lost, self.names))
        else:
            if event["event"] in LAST and event["event"] != "end":
                self.member.leave(f"its worker {event['event']}")
            yield event

    def _ready(self, facts: Event, directory: Path) -> None:
        gpus = int(facts.get("device_count") or 0)
        answer = {
            "ranks": gpus or self._processes,
            "torch": str(facts.get("torch", "")),
            "cuda": str(facts.get("cuda") or "none"),
            "nccl": str(facts.get("nccl") or "none"),
            "backend": "nccl" if gpus else "gloo",
            "error": str(facts.get("error", "")),
            # The first one's are for all.
            "ports": free_ports(len(self.checks)) if self.node == 0 else [],
            "seed": int.from_bytes(os.urandom(4), "little") % 1_000_000,
        }
        parts, lost = self.member.exchange(f"{self._rounds} ready", answer, trouble=bool(answer["error"]))
        if why := outcome.broken(parts, lost, self.names):
            raise LostGroupError(why)
        facts_of = {self.names[node]: part for node, part in sorted(parts.items())}
        # An older torch speaks to a newer one, and measures something else.
        if unlike := differences(facts_of, ("torch", "cuda", "nccl", "backend")):
            refuse(f"the nodes' environments differ: {unlike}", "give --python the same environment on all nodes")
        first = parts[0]
        self._ranks = [int(parts[node]["ranks"]) for node in range(len(self.names))]
        self.run.group = self.run.group and structs.replace(self.run.group, ranks=self._ranks)
        text = json.dumps(
            {
                "first": sum(self._ranks[: self.node]),
                "here": self._ranks[self.node],
                "world": sum(self._ranks),
                "node": self.node,
                "nodes": len(self.names),
                "ports": dict(zip(self.checks, first["ports"], strict=True)),
                "environment": self._environment(int(first["seed"])),
            }
        )
        safe_files.put(directory / NODES_READY, text.encode(), 0o644, durable=False)

    def _environment(self, seed: int) -> dict[str, str]:
        """Return the variables of this node's ranks; a user's own interface for gloo, and seed, stay."""
        begun = self.member.begun
        interface = "" if os.environ.get("GLOO_SOCKET_IFNAME") else interface_of(begun.local)
        return {
            "MASTER_ADDR": begun.address,
            NODE_NAME: self.names[self.node],
            **({SEED: str(seed)} if not os.environ.get(SEED) else {}),
            **({"GLOO_SOCKET_IFNAME": interface} if interface else {}),
        }


# In the order of what each needs: data must be right before a speed means anything.
CHECKS: Final = (
    "envcheck.checks.env.collectives",
    "envcheck.checks.node_links",
    "envcheck.checks.env.all_reduce_bandwidth",
    "envcheck.checks.env.straggler",
)


def chosen(only: Collection[str] = ()) -> list[CheckModule]:
    """Return the checks of a group, or those of `only`. Raise ConfigError for an id that none has."""
    modules = [checked_module(importlib.import_module(name), "env", f"module:{name}") for name in CHECKS]
    by_id = {module.id: module for module in modules}
    for name in only:
        if name not in by_id:
            refuse(f"a group of nodes has no check {name[:60]!r}", f"give one of {', '.join(by_id)}")
    return [module for module in modules if not only or module.id in only]


@contextlib.contextmanager
def met(run: Run, place: Membership, name: str, processes: int, wait: float) -> Iterator[bool]:
    """Meet the other nodes within `wait` seconds and yield whether all came; the group ends with the block."""
    checks = [check.id for check in run.asked.plan.checks]
    hello = Hello(
        run=place.run,
        node=place.node,
        nodes=place.nodes,
        name=name,
        tool=__version__,
        plan=", ".join(checks),
    )
    leader = Coordinator(hello, place.names, place.port, wait) if place.node == 0 else None
    member: GroupMember | None = None
    patience = 0.0
    try:
        try:
            member = GroupMember.join(hello, place.address, place.port, wait)
        except NotFormedError as error:
            why, code = error.message, "group.not-formed"
            run.known[FORMED] = OutcomeRow(
                id=FORMED, kind="env", status="error", summary=why, remedy=error.fix, code=code
            )
            run.ended = now()
            yield False
            return
        run.together = GroupSession(run, member, place.node, checks, processes).together
        run.group = GroupFacts(run=place.run, nodes=member.begun.names, ranks=[])
        run.known |= {row.id: row for row in formed(member.begun)}
        yield True
        patience = 5.0  # for the others to read what the first node sent them last
    except KeyboardInterrupt:
        if member is not None:
            member.leave("it was interrupted")
        raise
    finally:
        if member is not None:
            member.leave()
        if leader is not None:
            leader.close(patience)
