"""A node's connection to the first node of its group."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from envcheck.errors import ConfigError, EnvcheckError, UnavailableError
from envcheck.fleet.group import wire
from envcheck.fleet.group.roll_call import Hello

_AGAIN: Final = 0.3
_ANSWER: Final = 10.0  # over the first node's own time, which names who is missing
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


class GroupMember:
    """A node in a group: `join` makes one. `stopped` is called when its ranks wait for others in vain."""

    def __init__(self, connection: socket.socket, begun: FormedGroup) -> None:
        self._connection, self.begun = connection, begun
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.stopped: Callable[[], None] = lambda: None
        self._why = "the first node's envcheck ended"

    @classmethod
    def join(cls, hello: Hello, address: str, port: int, seconds: float) -> GroupMember:
        """Greet the first node and wait until all are there.

        Raise NotFormedError where they do not come within the time, ConfigError where this node cannot be of the group.
        """
        until = time.monotonic() + seconds
        connection = _connected(address, port, until)
        try:
            connection.settimeout(max(until - time.monotonic(), 0) + _ANSWER)
            wire.send(connection, msgspec.to_builtins(hello))
            lines, first = wire.Lines(), list[dict[str, Any]]()
            while not first:
                received = connection.recv(1 << 16)
                if not received:
                    why = f"the first node, {address}, ended before all nodes were there"
                    raise _unformed(why)
                first = lines.take(received)
            member = cls(connection, _begun(first[0], connection))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            connection.close()
            why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", "")
            why = f"the first node, {address} port {port}: {why or 'what answers there is not envcheck'}"
            raise _unformed(why) from error
        except EnvcheckError:
            connection.close()
            raise
        for message in first[1:]:
            member._receive(message)
        threading.Thread(target=member._read, args=(lines,), name="reads from the group", daemon=True).start()
        threading.Thread(target=member._say_there, name="is in the group", daemon=True).start()
        return member

    def exchange(self, step: str, part: Any, *, trouble: bool = False) -> StepParts:
        """Give this node's part of a step and return all nodes'. Raise LostGroupError where the group has ended."""
        try:
            self._send({"put": step, "part": part, "trouble": trouble})
        except OSError as error:
            raise LostGroupError(self._why) from error
        while True:
            message = self._inbox.get()
            if message is None:
                self._inbox.put(None)
                raise LostGroupError(self._why)
            if "ended" in message:
                raise LostGroupError(str(message["ended"]))
            if message.get("step") == step:
                parts = {int(node): value for node, value in message["parts"].items()}
                return StepParts(parts, {int(node): str(why) for node, why in message["lost"].items()})

    def leave(self, why: str = "") -> None:
        """Leave the group; with `why` before its end, which the others then say of this node."""
        if why:
            with contextlib.suppress(OSError):
                self._send({"leave": why})
        self._closed.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _send(self, message: dict[str, Any]) -> None:
        with self._lock:
            wire.send(self._connection, message)

    def _read(self, lines: wire.Lines) -> None:
        self._connection.settimeout(wire.SILENCE)
        try:
            while received := self._connection.recv(1 << 20):
                for message in lines.take(received):
                    self._receive(message)
        except TimeoutError:
            self._why = f"the first node was silent for {wire.SILENCE:g} s"
        except (OSError, ValueError, RecursionError) as error:
            self._why = f"the connection to the first node broke: {getattr(error, 'strerror', None) or error}"
        self._inbox.put(None)
        self.stopped()

    def _receive(self, message: dict[str, Any]) -> None:
        if "stop" in message:
            self.stopped()
        elif "beat" not in message:
            self._inbox.put(message)

    def _say_there(self) -> None:
        with contextlib.suppress(OSError):
            while not self._closed.wait(wire.BEAT):
                self._send({"beat": True})


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


def _begun(message: dict[str, Any], connection: socket.socket) -> FormedGroup:
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
