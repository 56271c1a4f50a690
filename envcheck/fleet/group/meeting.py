"""How nodes meet and give each other their parts: lines of JSON over TCP, carried by the first node's envcheck.

docs/fleet-group.md says why torch.distributed.TCPStore does not carry them.
"""

import asyncio
import contextlib
import functools
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import msgspec

from envcheck.errors import EnvcheckError, UnavailableError, refuse
from envcheck.fleet.group import membership
from envcheck.fleet.group.membership import Hello

Message = dict[str, Any]
# What the ranks of a node measure at most: 64 of them, and what each may leave (group_ending.RESULT_LIMIT).
LONGEST: Final = 64 << 20
# How often a node says that it is there, and after how much silence it is lost, in seconds.
BEAT, SILENCE = 2.0, 20.0
# What the others have left once a node or its ranks are lost: long enough for each to see it by itself.
GRACE = 4.0
_TICK: Final = 0.1
_AGAIN: Final = 0.3
_ITSELF: Final = ("localhost", "127.0.0.1", "::1")
_BROKEN: Final = (OSError, TypeError, ValueError, RecursionError)


class NotFormedError(UnavailableError):
    """The group did not form: undetermined, and no fault of any hardware's (exit 3)."""


class LostGroupError(Exception):
    """The group has ended for this node; the text says why."""


class FormedGroup(NamedTuple):
    """A group that has formed. `address` is the first node's, `local` that of this one on the way to it."""

    names: list[str]
    seconds: float
    address: str
    local: str


# What nodes gave for a step, and why others gave nothing.
StepParts = tuple[dict[int, Any], dict[int, str]]
_T = TypeVar("_T")


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop that all connections of this process are served by, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="meets the group", daemon=True).start()
    return loop


def _awaited(coroutine: Coroutine[Any, Any, _T]) -> _T:
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()


def _send(writer: asyncio.StreamWriter, message: Message | bytes) -> None:
    if not writer.is_closing():
        writer.write(message if isinstance(message, bytes) else _line(message))


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


async def _received(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message but a beat, None at the end. Raise a TimeoutError after silence, or one of _BROKEN."""
    # The kernel resets the connection of a process that is killed with a beat unread: that is the end, too.
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while (line := await asyncio.wait_for(reader.readline(), SILENCE)).endswith(b"\n"):
            message = json.loads(line)
            if not isinstance(message, dict):
                text = "a message is not an object"
                raise TypeError(text)
            if "beat" not in message:
                return message
    return None


class _Peer(NamedTuple):
    writer: asyncio.StreamWriter
    hello: Hello


class Coordinator:
    """The first node's side. It listens from the start, or raises ConfigError; `close` ends it."""

    def __init__(self, first: Hello, names: tuple[str, ...], port: int, seconds: float) -> None:
        self._first, self._names, self._until = first, names, time.monotonic() + seconds
        self._seconds = seconds
        self._writers: set[asyncio.StreamWriter] = set()
        self._peers: dict[int, _Peer] = {}
        self._parts: dict[int, tuple[str, Any]] = {}
        self._lost: dict[int, str] = {}
        self._stopping: asyncio.TimerHandle | None = None
        self._begun = False
        self._ended = asyncio.Event()
        try:
            serving = asyncio.start_server(self._serve, None, port, limit=LONGEST, backlog=4096)
            self._server = _awaited(serving)
        except OSError as error:
            fix = "set MASTER_PORT on all nodes to a port that is free on the first"
            refuse(f"cannot listen at port {port}: {error.strerror}", fix)
        self._leading = asyncio.run_coroutine_threadsafe(self._lead(), _loop())

    def close(self, patience: float = 0.0) -> None:
        """End the group; the other nodes have `patience` seconds to read what was sent to them, and leave."""
        until = time.monotonic() + patience
        while time.monotonic() < until and not self._ended.is_set() and any([*self._peers]):
            time.sleep(_TICK)
        _loop().call_soon_threadsafe(self._ended.set)
        self._leading.result()

    async def _lead(self) -> None:
        """Do what time brings: beats, and the end of the wait."""
        while not self._ended.is_set():
            self._tell({"beat": True})
            left = self._until - time.monotonic()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), BEAT if self._begun else max(0.0, min(BEAT, left)))
            if not self._begun and time.monotonic() > self._until:
                why = membership.missing(self._first.nodes, self._names, self._peers, self._seconds)
                self._end({"unformed": why})
        self._server.close()
        for writer in [*self._writers]:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take the messages of a connection, whoever it is from, until it ends."""
        node: int | None = None
        why = "its envcheck ended"
        self._writers.add(writer)
        try:
            while message := await _received(reader):
                if node is None:
                    node = self._greeted(writer, message)
                    if node is None:
                        break
                elif "leave" in message:
                    why = str(message["leave"]) or why
                    break
                elif "put" in message:
                    self._parts[node] = str(message["put"]), message.get("part")
                    self._due(trouble=message.get("trouble") is True)
        except asyncio.TimeoutError:
            why = f"it was silent for {SILENCE:g} s"
        except _BROKEN as error:
            why = f"its connection broke: {getattr(error, 'strerror', None) or error}"
        writer.close()
        self._writers.discard(writer)
        if node is not None:
            del self._peers[node]  # before the group has formed it may come again
            if self._begun:
                self._lost.setdefault(node, why)
                self._due(trouble=True)

    def _greeted(self, writer: asyncio.StreamWriter, message: Message) -> int | None:
        """Take a greeting; return the node's number, None for what cannot be of the group."""
        try:
            hello = msgspec.convert(message, Hello)
        except msgspec.ValidationError:
            return None  # whoever that is
        first = self._first
        if hello.run != first.run:
            name, run, own = membership.short(hello.name), membership.short(hello.run), membership.short(first.run)
            answer = {"refused": f"{name} is of run {run!r}, and {first.name} leads run {own!r} at this port"}
        elif self._begun:
            answer = {"unformed": "the group began without this node"}
        elif why := membership.refusal(first, hello, {node: peer.hello for node, peer in self._peers.items()}):
            answer = {"refused": why}
            self._end(answer)
        else:
            self._peers[hello.node] = _Peer(writer, hello)
            if len(self._peers) == first.nodes:
                self._begin()
            return hello.node
        _send(writer, answer)
        return None

    def _begin(self) -> None:
        """Tell all nodes who takes part, and the first at which of its addresses the others reach it."""
        self._begun = True
        peers = [self._peers[node] for node in sorted(self._peers)]
        seconds = round(self._seconds - (self._until - time.monotonic()), 3)
        group: Message = {"begin": [peer.hello.name for peer in peers], "seconds": seconds}
        reached = peers[-1].writer.get_extra_info("sockname")[0]
        for node, peer in enumerate(peers):
            _send(peer.writer, {**group, "reached": "" if node else reached})

    def _due(self, *, trouble: bool) -> None:
        """Give all their parts once each live node gave its own; in `trouble` stop the ranks that wait in the end."""
        live = sorted(self._peers, reverse=True)  # the first node may leave once it has its own
        if live and all(node in self._parts for node in live):
            steps = {self._parts[node][0] for node in live}
            parts = {str(node): part for node, (step, part) in self._parts.items() if step in steps}
            lost = {str(node): why for node, why in self._lost.items()}
            self._parts = {}
            if self._stopping is not None:
                self._stopping.cancel()
                self._stopping = None
            message: Message = {"step": next(iter(steps)), "parts": parts, "lost": lost}
            if len(steps) > 1:
                message = {"ended": f"nodes are at different steps: {', '.join(sorted(steps))}"}
            line = _line(message)  # once: with as many nodes as parts its length grows with their square
            for node in live:
                _send(self._peers[node].writer, line)
        elif trouble and self._stopping is None:
            self._stopping = _loop().call_later(GRACE, lambda: self._tell({"stop": True}, self._parts))

    def _tell(self, message: Message, but: Collection[int] = ()) -> None:
        for node, peer in self._peers.items():
            if node not in but:
                _send(peer.writer, message)

    def _end(self, message: Message) -> None:
        self._tell(message)
        self._ended.set()


class GroupMember:
    """A node in a group: `join` makes one. `stopped` is called when its ranks wait for others in vain."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begun: FormedGroup) -> None:
        self.begun = begun
        self.stopped: Callable[[], None] = lambda: None
        self._reader, self._writer = reader, writer
        self._inbox: queue.Queue[Message | None] = queue.Queue()
        self._why = "the first node's envcheck ended"
        self._reading = asyncio.create_task(self._read())

    @classmethod
    def join(cls, hello: Hello, address: str, port: int, seconds: float) -> "GroupMember":
        """Greet the first node and wait for all. Raise NotFormedError, or ConfigError where it refuses this node."""
        return _awaited(cls._joined(hello, address, port, time.monotonic() + seconds))

    @classmethod
    async def _joined(cls, hello: Hello, address: str, port: int, until: float) -> "GroupMember":
        reader, writer = await _connected(address, port, until)
        try:
            _send(writer, msgspec.to_builtins(hello))
            _say_there(writer)
            first = await _received(reader)
            if first is None:
                _unformed(f"the first node, {address}, ended before all nodes were there")
            return cls(reader, writer, _begun(first, writer))
        except (KeyError, asyncio.TimeoutError, *_BROKEN) as error:
            writer.close()
            why = "no answer" if isinstance(error, asyncio.TimeoutError) else getattr(error, "strerror", "")
            _unformed(f"the first node, {address} port {port}: {why or 'what answers there is not envcheck'}")
        except EnvcheckError:
            writer.close()
            raise

    def exchange(self, step: str, part: Any, *, trouble: bool = False) -> StepParts:
        """Give this node's part of a step and return all nodes'. Raise LostGroupError where the group has ended."""
        message = {"put": step, "part": part, "trouble": trouble}
        _loop().call_soon_threadsafe(_send, self._writer, message)
        while (answer := self._inbox.get()) is not None:
            if "ended" in answer:
                raise LostGroupError(str(answer["ended"]))
            if answer.get("step") == step:
                parts = {int(node): value for node, value in answer["parts"].items()}
                return parts, {int(node): str(why) for node, why in answer["lost"].items()}
        self._inbox.put(None)
        raise LostGroupError(self._why)

    def leave(self, why: str = "") -> None:
        """Leave the group; with `why` before its end, which the others then say of this node."""
        _awaited(self._left(why))

    async def _left(self, why: str) -> None:
        # The first node closes, so that no beat is left unread here: the reset that it makes would eat the word.
        _send(self._writer, {"leave": why})
        await asyncio.wait([self._reading], timeout=1)
        self._writer.close()

    async def _read(self) -> None:
        try:
            while message := await _received(self._reader):
                if "stop" in message:
                    self.stopped()
                else:
                    self._inbox.put(message)
        except asyncio.TimeoutError:
            self._why = f"the first node was silent for {SILENCE:g} s"
        except _BROKEN as error:
            self._why = f"the connection to the first node broke: {getattr(error, 'strerror', None) or error}"
        self._inbox.put(None)
        self.stopped()


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that no process listens on."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in sockets]


def _say_there(writer: asyncio.StreamWriter) -> None:
    if not writer.is_closing():
        _send(writer, {"beat": True})
        _loop().call_later(BEAT, _say_there, writer)


def _unformed(why: str) -> NoReturn:
    refuse(f"the group did not form: {why}", "see why that node did not start, and start it again", NotFormedError)


async def _connected(address: str, port: int, until: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection to the first node, which may not be up yet. Raise NotFormedError after the time."""
    while True:
        try:
            connecting = asyncio.open_connection(address, port, limit=LONGEST)
            return await asyncio.wait_for(connecting, max(until - time.monotonic(), 1.0))
        except socket.gaierror as error:
            why = f"the first node's name, {address[:100]}, does not resolve: {error.strerror}"
        except UnicodeError:
            why = f"{address[:100]!r} is not a name"
        except (OSError, asyncio.TimeoutError) as error:
            cause = getattr(error, "strerror", "") or str(error) or "no answer"
            itself = ", and that is this node itself: give MASTER_ADDR the first node's name" * (address in _ITSELF)
            why = f"cannot connect to the first node, {address} port {port}: {cause}{itself}"
        if time.monotonic() + _AGAIN > until:
            _unformed(why)
        await asyncio.sleep(_AGAIN)


def _begun(message: Message, writer: asyncio.StreamWriter) -> FormedGroup:
    if "refused" in message:
        fix = "start all nodes with the same command and environment, and each group at a port of its own"
        refuse(f"this node cannot be of the group: {message['refused']}", fix)
    if "unformed" in message:
        _unformed(str(message["unformed"]))
    # Without the form that IPv4 has on a socket of IPv6, and without a zone.
    address, local = (
        (message["reached"] or str(writer.get_extra_info(name)[0])).removeprefix("::ffff:").partition("%")[0]
        for name in ("peername", "sockname")
    )
    return FormedGroup(message["begin"], float(message["seconds"]), address, local)
