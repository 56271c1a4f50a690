"""How nodes meet and give each other their parts: lines of JSON over TCP, carried by the first node's envcheck.

`torch.distributed.TCPStore` (https://docs.pytorch.org/docs/stable/distributed.html) was tried in its place, with torch
2.13 and gloo. It names a killed node as fast, and is not lighter: envcheck has no torch, so that each node needs one
more process that imports it and passes every message on. A client of the store has no time limit of its own: it waits
for ever where the first node is stopped, or where another program listens at the port, and a limit of 12 s for the
first node to come took 35 s. A torch that cannot be imported, or another release of it, is found before the store
could say so; here the other nodes are told which node has it, and why.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from envcheck.errors import ConfigError, EnvcheckError, UnavailableError
from envcheck.fleet.group import membership
from envcheck.fleet.group.membership import Hello

Message = dict[str, Any]
# What the ranks of a node measure at most: 64 of them, and what each may leave (group_ending.RESULT_LIMIT).
LONGEST: Final = 64 << 20
# How often a node says that it is there, and after how much silence it is lost, in seconds.
BEAT, SILENCE = 2.0, 20.0
# What the others have left once a node or its ranks are lost: long enough for each to see it by itself.
GRACE: Final = 4.0
_TICK: Final = 0.1
_AGAIN: Final = 0.3
_SAME: Final = "start all nodes with the same command and environment, and each group at a port of its own"


class NotFormedError(UnavailableError):
    """The group did not form: undetermined, and no fault of any hardware's (exit 3)."""


class LostGroupError(Exception):
    """The group has ended for this node; the text says why."""


class FormedGroup(NamedTuple):
    """A group that has formed, by node: names, hosts, by how many seconds clocks are ahead of the first's.

    `address` is that of the first node, `local` the address of this one on the way to it.
    """

    names: list[str]
    hosts: list[str]
    clocks: list[float]
    seconds: float
    address: str
    local: str


class StepParts(NamedTuple):
    """What nodes gave for a step, and why others gave nothing."""

    parts: dict[int, Any]
    lost: dict[int, str]


class _Channel:
    """A connection that carries messages; what is silent or does not read for too long raises TimeoutError."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SILENCE)
        self.connection, self._lines, self._lock = connection, connection.makefile("rb"), threading.Lock()

    def send(self, message: Message) -> None:
        with self._lock:
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def messages(self) -> Iterator[Message]:
        """Yield messages until the other side ends. Raise OSError where it breaks, ValueError for what is none."""
        while (line := self._lines.readline(LONGEST + 1)).endswith(b"\n"):
            message = json.loads(line)
            if not isinstance(message, dict):
                text = "a message is not an object"
                raise TypeError(text)
            if "beat" not in message:
                yield message
        if len(line) > LONGEST:
            text = "a message is too long"
            raise ValueError(text)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class Gathering:
    """The steps of a group: each node gives its part, and gets those of all once the last one gave its own. Pure."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.lost: dict[int, str] = {}
        self._parts: dict[int, tuple[str, Any]] = {}
        self._trouble: float | None = None
        self._stopped: set[int] = set()

    def put(self, node: int, step: str, part: Any, now: float, *, trouble: bool) -> None:
        """Take a node's part of a step; with `trouble` the others' ranks may wait for this one's in vain."""
        self._parts[node] = (step, part)
        if trouble and self._trouble is None:
            self._trouble = now

    def lose(self, node: int, why: str, now: float) -> None:
        """Take the news that a node is gone; its part of this step counts if it gave one."""
        self.lost.setdefault(node, why)
        self._trouble = now if self._trouble is None else self._trouble

    def due(self, now: float) -> list[tuple[int, Message]]:
        """Return the messages that are to be sent now, each with the node it is for."""
        return [*self._complete()] or [*self._stops(now)]

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
            yield node, {"ended": apart} if apart else {"step": next(iter(steps)), "parts": parts, "lost": lost}

    def _stops(self, now: float) -> Iterator[tuple[int, Message]]:
        if self._trouble is None or now < self._trouble + GRACE:
            return
        for node in range(self.nodes):
            if node not in self.lost and node not in self._parts and node not in self._stopped:
                self._stopped.add(node)
                yield node, {"stop": True}


class _Peer(NamedTuple):
    """A node that has greeted, `at` seconds since 1970 by the first node's clock."""

    channel: _Channel
    hello: Hello
    at: float


class Coordinator:
    """The first node's side, in threads. It listens from the start; `close` ends it.

    Raises ConfigError where the port cannot be listened at.
    """

    def __init__(self, first: Hello, names: tuple[str, ...], port: int, seconds: float) -> None:
        try:
            self._listening = listening(port)
        except OSError as error:
            message = f"cannot listen at port {port}: {error.strerror}"
            fix = "give --master-port (on all nodes) a port that is free on the first"
            raise ConfigError(message, fix=fix) from error
        self._first, self._names, self._seconds = first, names, seconds
        self._channels: set[_Channel] = set()
        self._members: dict[int, _Peer] = {}
        self._gathering: Gathering | None = None
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._until = time.monotonic() + seconds
        threading.Thread(target=self._accept, name="takes nodes into the group", daemon=True).start()
        self._thread = threading.Thread(target=self._lead, name="leads the group", daemon=True)
        self._thread.start()

    def close(self, patience: float = 0.0) -> None:
        """End the group; the other nodes have `patience` seconds to read what was sent to them, and leave."""
        until = time.monotonic() + patience
        while time.monotonic() < until and self._thread.is_alive() and any(node for node in self._members):
            time.sleep(_TICK)
        self._closed.set()
        self._thread.join()

    def _accept(self) -> None:
        """Serve each connection in a thread."""
        while not self._closed.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed, or out of files for a moment
                time.sleep(_TICK)
                continue
            threading.Thread(target=self._serve, args=(_Channel(connection),), daemon=True).start()

    def _lead(self) -> None:
        """Do what time brings: the end of the wait, beats, and what steps are due."""
        beat = 0.0
        while not self._closed.wait(_TICK):
            now = time.monotonic()
            with self._lock:
                if self._gathering is None and now > self._until:
                    why = membership.missing(self._first.nodes, self._names, self._members, self._seconds)
                    self._end({"unformed": why})
                for node, message in self._gathering.due(now) if self._gathering else ():
                    self._send(node, message)
                for node in [*self._members] if now > beat else ():
                    self._send(node, {"beat": True})
            beat = now + BEAT if now > beat else beat
        # A thread that waits in accept() is woken by nothing but this.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            for channel in self._channels:
                channel.close()

    def _serve(self, channel: _Channel) -> None:
        """Take the messages of a connection, whoever it is from, until it ends."""
        node: int | None = None
        why = "its envcheck ended"
        with self._lock:
            self._channels.add(channel)
        try:
            for message in channel.messages():
                if node is None:
                    node = self._greeted(channel, message)
                    if node is None:
                        break
                elif "leave" in message:
                    why = str(message["leave"])
                    break
                elif "put" in message:
                    self._put(node, message)
        except TimeoutError:
            why = f"it was silent for {SILENCE:g} s"
        except (OSError, TypeError, ValueError, RecursionError) as error:
            why = f"its connection broke: {getattr(error, 'strerror', None) or error}"
        with self._lock:
            channel.close()
            self._channels.discard(channel)
            if node is not None:
                self._members.pop(node, None)  # before the group has formed it may come again
                if self._gathering is not None:
                    self._gathering.lose(node, why, time.monotonic())

    def _put(self, node: int, message: Message) -> None:
        with self._lock:
            if self._gathering is not None:
                trouble = message.get("trouble") is True
                part = message.get("part")
                self._gathering.put(node, str(message["put"]), part, time.monotonic(), trouble=trouble)

    def _greeted(self, channel: _Channel, message: Message) -> int | None:
        """Take a greeting; return the node's number, None for what cannot be of the group."""
        received = time.time()
        try:
            hello = msgspec.convert(message, Hello)
        except msgspec.ValidationError:
            return None  # whoever that is
        with self._lock:
            refusal = membership.refusal(self._first, hello, {node: peer.hello for node, peer in self._members.items()})
            if refusal is not None and refusal.whose == "node":
                channel.send({"refused": refusal.why})
            elif self._gathering is not None:
                channel.send({"unformed": "the group began without this node"})
            elif refusal is not None:
                channel.send({"refused": refusal.why})
                self._end({"refused": refusal.why})
            else:
                self._members[hello.node] = _Peer(channel, hello, received)
                if len(self._members) == self._first.nodes:
                    self._begin()
                return hello.node
        return None

    def _begin(self) -> None:
        """Tell all nodes who takes part, and the first at which of its addresses the others reach it."""
        self._gathering = Gathering(self._first.nodes)
        peers = [self._members[node] for node in sorted(self._members)]
        ahead = [peer.hello.time - peer.at for peer in peers]
        group: Message = {
            "names": [peer.hello.name for peer in peers],
            "hosts": [peer.hello.host for peer in peers],
            "clocks": [round(clock - ahead[0], 3) for clock in ahead],
            "seconds": round(self._seconds - (self._until - time.monotonic()), 3),
        }
        reached = peers[-1].channel.connection.getsockname()[0]
        for node in range(len(peers)):
            self._send(node, {"begin": group, "reached": "" if node else reached})

    def _end(self, message: Message) -> None:
        for node in [*self._members]:
            self._send(node, message)
        self._closed.set()

    def _send(self, node: int, message: Message) -> None:
        """Send a message to a node; one that cannot take it is lost, as its own thread then sees."""
        if node in self._members:
            channel = self._members[node].channel
            try:
                channel.send(message)
            except OSError:
                channel.close()


class GroupMember:
    """A node in a group: `join` makes one. `stopped` is called when its ranks wait for others in vain."""

    def __init__(self, channel: _Channel, messages: Iterator[Message], begun: FormedGroup) -> None:
        self._channel, self._messages, self.begun = channel, messages, begun
        self._inbox: queue.Queue[Message | None] = queue.Queue()
        self.stopped: Callable[[], None] = lambda: None
        self._why = "the first node's envcheck ended"
        threading.Thread(target=self._read, name="reads from the group", daemon=True).start()

    @classmethod
    def join(cls, hello: Hello, address: str, port: int, seconds: float) -> GroupMember:
        """Greet the first node and wait until all are there.

        Raise NotFormedError where they do not come within the time, ConfigError where this node cannot be of the group.
        """
        channel = _Channel(_connected(address, port, time.monotonic() + seconds))
        messages = channel.messages()
        try:
            channel.send(msgspec.to_builtins(hello))
            threading.Thread(target=_say_there, args=(channel,), name="is in the group", daemon=True).start()
            first = next(messages, None)
            if first is None:
                why = f"the first node, {address}, ended before all nodes were there"
                raise _unformed(why)
            return cls(channel, messages, _begun(first, channel.connection))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            channel.close()
            why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", "")
            why = f"the first node, {address} port {port}: {why or 'what answers there is not envcheck'}"
            raise _unformed(why) from error
        except EnvcheckError:
            channel.close()
            raise

    def exchange(self, step: str, part: Any, *, trouble: bool = False) -> StepParts:
        """Give this node's part of a step and return all nodes'. Raise LostGroupError where the group has ended."""
        try:
            self._channel.send({"put": step, "part": part, "trouble": trouble})
        except OSError as error:
            raise LostGroupError(self._why) from error
        while (message := self._inbox.get()) is not None:
            if "ended" in message:
                raise LostGroupError(str(message["ended"]))
            if message.get("step") == step:
                parts = {int(node): value for node, value in message["parts"].items()}
                return StepParts(parts, {int(node): str(why) for node, why in message["lost"].items()})
        self._inbox.put(None)
        raise LostGroupError(self._why)

    def leave(self, why: str = "") -> None:
        """Leave the group; with `why` before its end, which the others then say of this node."""
        if why:
            with contextlib.suppress(OSError):
                self._channel.send({"leave": why})
        self._channel.close()

    def _read(self) -> None:
        try:
            for message in self._messages:
                if "stop" in message:
                    self.stopped()
                else:
                    self._inbox.put(message)
        except TimeoutError:
            self._why = f"the first node was silent for {SILENCE:g} s"
        except (OSError, TypeError, ValueError, RecursionError) as error:
            self._why = f"the connection to the first node broke: {getattr(error, 'strerror', None) or error}"
        self._inbox.put(None)
        self.stopped()


def listening(port: int) -> socket.socket:
    """Return a socket that listens on all addresses of this machine, of IPv6 and IPv4 where it has both."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
        except OSError:
            pass  # IPv6 is compiled in and switched off, or the port is taken: IPv4 says which
    return socket.create_server(("", port), backlog=4096)


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that no process listens on."""
    with contextlib.ExitStack() as held:
        return [int(held.enter_context(listening(0)).getsockname()[1]) for _ in range(count)]


def _say_there(channel: _Channel) -> None:
    """Send beats until the connection is closed."""
    with contextlib.suppress(OSError):
        while True:
            time.sleep(BEAT)
            channel.send({"beat": True})


def _unformed(why: str) -> NotFormedError:
    return NotFormedError(f"the group did not form: {why}", fix="see why that node did not start, and start it again")


def _connected(address: str, port: int, until: float) -> socket.socket:
    """Return a connection to the first node, which may not be up yet. Raise NotFormedError after the time."""
    while True:
        try:
            return socket.create_connection((address, port), timeout=max(until - time.monotonic(), 1.0))
        except socket.gaierror as error:
            why = f"the first node's name, {address[:100]}, does not resolve: {error.strerror}"
        except UnicodeError:
            why = f"{address[:100]!r} is not a name"
        except OSError as error:
            why = f"cannot connect to the first node, {address} port {port}: {error.strerror or error}"
        if time.monotonic() + _AGAIN > until:
            raise _unformed(why)
        time.sleep(_AGAIN)


def _begun(message: Message, connection: socket.socket) -> FormedGroup:
    if "refused" in message:
        why = f"this node cannot be of the group: {message['refused']}"
        raise ConfigError(why, fix=_SAME)
    if "unformed" in message:
        raise _unformed(str(message["unformed"]))
    group, reached = message["begin"], str(message.get("reached", ""))
    address = reached or str(connection.getpeername()[0])
    local = reached or str(connection.getsockname()[0])
    numbers = [float(clock) for clock in group["clocks"]]
    return FormedGroup(group["names"], group["hosts"], numbers, float(group["seconds"]), *map(_plain, (address, local)))


def _plain(address: str) -> str:
    """Return an address without the form that IPv4 has on a socket of IPv6, and without a zone."""
    return address.removeprefix("::ffff:").partition("%")[0]
