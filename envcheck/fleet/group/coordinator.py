"""The first node's side of a group: takes the other nodes' greetings, and carries each node's parts to all others.

It runs in a thread of the first node's envcheck, which is a member of the group like the others.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from typing import Any, Final

from envcheck.errors import ConfigError
from envcheck.fleet.group import roll_call, wire
from envcheck.fleet.group.gathering import Gathering, Message
from envcheck.fleet.group.roll_call import Hello

import msgspec  # isort: skip

_TICK: Final = 0.1
# A node that does not read what is sent to it for so long is lost.
_SENDING: Final = 15.0
_CHUNK: Final = 1 << 20


class _Peer:
    """A connection; `hello` once it has greeted."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.lines = connection, wire.Lines()
        self.hello: Hello | None = None
        self.heard = time.monotonic()


class Coordinator:
    """Listens from the start; `close` ends it. Raises ConfigError where the port cannot be listened at."""

    def __init__(self, first: Hello, names: tuple[str, ...], port: int, seconds: float) -> None:
        try:
            self._listening = wire.listening(port)
        except OSError as error:
            message = f"cannot listen at port {port}: {error.strerror}"
            raise ConfigError(
                message, fix="give --master-port (on all nodes) a port that is free on the first"
            ) from error
        self._first, self._names, self._seconds = first, names, seconds
        self._members: dict[int, tuple[_Peer, float]] = {}
        self._gathering: Gathering | None = None
        self._closed = threading.Event()
        self._until = time.monotonic() + seconds
        self._beat = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="leads the group", daemon=True)
        self._thread.start()

    def close(self, patience: float = 0.0) -> None:
        """End the group; the other nodes have `patience` seconds to read what was sent to them, and leave."""
        until = time.monotonic() + patience
        while time.monotonic() < until and self._thread.is_alive() and self._others_here():
            time.sleep(_TICK)
        self._closed.set()
        self._thread.join()

    def _others_here(self) -> bool:
        return any(node and peer.connection.fileno() >= 0 for node, (peer, _) in list(self._members.items()))

    def _serve(self) -> None:
        with self._selector, self._listening:
            while not self._closed.is_set():
                for key, _ in self._selector.select(_TICK):
                    if key.fileobj is self._listening:
                        self._accept()
                    else:
                        self._read(key.data)
                self._look()
            for key in list(self._selector.get_map().values()):
                if key.data is not None:
                    key.data.connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listening.accept()
            connection.settimeout(_SENDING)
            self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _read(self, peer: _Peer) -> None:
        try:
            received = peer.connection.recv(_CHUNK)
            messages = peer.lines.take(received)
        except (OSError, ValueError, RecursionError) as error:
            self._drop(peer, f"its connection broke: {getattr(error, 'strerror', None) or error}")
            return
        if not received:
            self._drop(peer, "its envcheck ended")
            return
        peer.heard = time.monotonic()
        for message in messages:
            self._take(peer, message)

    def _take(self, peer: _Peer, message: Message) -> None:
        if peer.hello is None:
            self._greet(peer, message)
        elif "leave" in message:
            self._drop(peer, str(message["leave"]))
        elif self._gathering is not None and "put" in message:
            trouble = message.get("trouble") is True
            part = message.get("part")
            self._gathering.put(peer.hello.node, str(message["put"]), part, time.monotonic(), trouble=trouble)

    def _greet(self, peer: _Peer, message: Message) -> None:
        received = time.time()
        try:
            hello = msgspec.convert(message, Hello)
        except msgspec.ValidationError:
            self._drop(peer, "")  # whoever that is
            return
        came = {node: member.hello for node, (member, _) in self._members.items() if member.hello}
        refusal = roll_call.refusal(self._first, hello, came)
        if refusal is not None and refusal.whose == "node":
            self._send(peer, {"refused": refusal.why})
            self._drop(peer, "")
        elif self._gathering is not None:
            self._send(peer, {"unformed": "the group began without this node"})
            self._drop(peer, "")
        elif refusal is not None:
            for one in [peer, *(member for member, _ in self._members.values())]:
                self._send(one, {"refused": refusal.why})
            self._closed.set()
        else:
            peer.hello = hello
            self._members[hello.node] = (peer, received)
            if len(self._members) == self._first.nodes:
                self._begin()

    def _begin(self) -> None:
        """Tell all nodes who takes part, and the first at which of its addresses the others reach it."""
        self._gathering = Gathering(self._first.nodes)
        greetings = {node: (peer.hello, at) for node, (peer, at) in self._members.items() if peer.hello}
        offsets = roll_call.clock_offsets(greetings)
        nodes = sorted(greetings)
        group: dict[str, Any] = {
            "names": [greetings[node][0].name for node in nodes],
            "hosts": [greetings[node][0].host for node in nodes],
            "clocks": [round(offsets[node] - offsets[0], 3) for node in nodes],
            "seconds": round(self._seconds - (self._until - time.monotonic()), 3),
        }
        reached = self._members[nodes[-1]][0].connection.getsockname()[0]
        for node, (peer, _) in self._members.items():
            self._send(peer, {"begin": group, "reached": reached if node == 0 else ""})

    def _look(self) -> None:
        """Do what time brings: the end of the wait, beats, lost nodes, and what steps are due."""
        now = time.monotonic()
        if self._gathering is None:
            if now > self._until:
                why = roll_call.missing(self._first.nodes, self._names, self._members, self._seconds)
                for peer, _ in self._members.values():
                    self._send(peer, {"unformed": why})
                self._closed.set()
            return
        for node, message in self._gathering.due(now):
            self._send(self._members[node][0], message)
        if now < self._beat:
            return
        self._beat = now + wire.BEAT
        for peer, _ in self._members.values():
            if now - peer.heard > wire.SILENCE:
                self._drop(peer, f"it was silent for {wire.SILENCE:g} s")
            else:
                self._send(peer, {"beat": True})

    def _send(self, peer: _Peer, message: Message) -> None:
        if peer.connection.fileno() < 0:
            return
        try:
            wire.send(peer.connection, message)
        except OSError as error:
            self._drop(peer, f"it does not answer: {error.strerror or error}")

    def _drop(self, peer: _Peer, why: str) -> None:
        if peer.connection.fileno() < 0:
            return
        self._selector.unregister(peer.connection)
        peer.connection.close()
        if peer.hello is None:
            return
        if self._gathering is not None:
            self._gathering.lose(peer.hello.node, why, time.monotonic())
        else:
            del self._members[peer.hello.node]  # it may come again
