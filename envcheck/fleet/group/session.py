"""A run's other nodes: how what this node's ranks measured is joined to what those of the others did."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from envcheck.checks.env.support.operators.seeded_numbers import SEED
from envcheck.checks.support.process_group import NODE_NAME
from envcheck.errors import ConfigError
from envcheck.fleet.group import outcome
from envcheck.fleet.group.meeting import GroupMember, LostGroupError, free_ports
from envcheck.runner.schema import GroupFacts
from envcheck.runner.worker.fork_server import NODES_LOST, NODES_READY
from envcheck.runner.worker_session import LAST

# ioctl(2), netdevice(7): the address of an interface, which stands after its name and family.
_SIOCGIFADDR: Final = 0x8915
_NAME_BYTES: Final = 16
_IPV6: Final = Path("/proc/net/if_inet6")


def interface_of(address: str) -> str:
    """Return the name of the interface with an address of IPv4 or IPv6; "" where none has it."""
    numeric = ipaddress.ip_address(address)
    if numeric.version == 4:  # noqa: PLR2004
        names = [name for _, name in socket.if_nameindex()]
        return next((name for name in names if numeric in ipaddress.ip_network(f"{_ipv4(name)}/32")), "")
    try:
        rows = [line.split() for line in _IPV6.read_text(encoding="ascii").splitlines()]
    except OSError:
        return ""
    return next((row[5] for row in rows if int(row[0], 16) == int(numeric)), "")


def _ipv4(name: str) -> str:
    """Return an interface's first address of IPv4; 0.0.0.0 where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        request = struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    return "0.0.0.0"  # noqa: S104 (no interface has it)


Event = dict[str, Any]
_SEEDS: Final = 1_000_000


class GroupSession:
    """The group of a node that has met the others. `checks` are what it measures, in their order."""

    def __init__(self, member: GroupMember, node: int, run: str, checks: Sequence[str], processes: int) -> None:
        self.member, self.node, self.checks = member, node, list(checks)
        self.names = member.begun.names
        self._run, self._processes = run, processes
        self._ranks: list[int] = []
        self._rounds = 0

    @property
    def world(self) -> int:
        """Return how many ranks all nodes have together; 0 before they are ready."""
        return sum(self._ranks)

    @property
    def facts(self) -> GroupFacts:
        """Return what a report says of the group."""
        return GroupFacts(run=self._run, nodes=self.names, ranks=list(self._ranks))

    def together(self, events: Iterator[Event], directory: Path) -> Iterator[Event]:
        """Yield the worker's events; with those of a check's end come the ranks of all nodes, in order.

        Where the group is lost the last event is `end`, with why. Raises ConfigError where environments differ.
        """
        self._rounds += 1
        self.member.stopped = lambda: _touch(directory / NODES_LOST)
        with _closing(events):
            try:
                for event in events:
                    yield from self._joined(event, directory)
                    if event["event"] in LAST:
                        return
            except LostGroupError as lost:
                yield {"event": "end", "why": f"the group is lost: {lost}"}

    def _joined(self, event: Event, directory: Path) -> Iterator[Event]:
        if event["event"] == "environment":
            self._ready(event["facts"], directory)
            yield event
        elif event["event"] == "done":
            (directory / NODES_LOST).unlink(missing_ok=True)
            step = f"{self._rounds} {event['id']}"
            gathered = self.member.exchange(step, outcome.own(event), trouble=event["error"] is not None)
            yield outcome.whole(event, gathered.parts, gathered.lost, self._ranks, self.names)
            if gathered.lost:
                raise LostGroupError(outcome.broken({}, gathered.lost, self.names))
        else:
            if event["event"] in LAST and event["event"] != "end":
                self.member.leave(f"its worker {event['event']}")
            yield event

    def _ready(self, facts: Event, directory: Path) -> None:
        """Say that this node is ready, wait for the others, and give the worker its part."""
        ranks = int(facts.get("device_count") or self._processes)
        ports = free_ports(len(self.checks)) if self.node == 0 else []
        seed = int.from_bytes(os.urandom(4), "little") % _SEEDS
        answer = outcome.ready(facts, ranks, ports, seed)
        gathered = self.member.exchange(f"{self._rounds} ready", answer, trouble=bool(answer["error"]))
        why = outcome.broken(gathered.parts, gathered.lost, self.names)
        if why:
            raise LostGroupError(why)
        unlike = outcome.unlike(gathered.parts, self.names)
        if unlike:
            message = f"the nodes' environments differ: {unlike}"
            raise ConfigError(message, fix="give --python the same environment on all nodes")
        first = gathered.parts[0]
        self._ranks = [int(gathered.parts[node]["ranks"]) for node in range(len(self.names))]
        part = outcome.part_of(self.node, self._ranks)
        text = json.dumps(
            {
                **part._asdict(),
                "node": self.node,
                "nodes": len(self.names),
                "ports": dict(zip(self.checks, first["ports"], strict=True)),
                "environment": self._environment(int(first["seed"])),
            }
        )
        unfinished = directory / f".{NODES_READY}"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(directory / NODES_READY)

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


@contextlib.contextmanager
def _closing(events: Iterator[Event]) -> Iterator[None]:
    """End the worker when the block ends, if its events can be closed."""
    try:
        yield
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            close()


def _touch(path: Path) -> None:
    """Leave word for the worker; its directory may be gone by then."""
    with contextlib.suppress(OSError):
        path.touch()
