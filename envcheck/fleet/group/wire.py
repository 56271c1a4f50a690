"""Messages between nodes: a line of JSON each, over TCP."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any, Final

# What the ranks of a node measure at most: 64 of them, and what each may leave (group_ending.RESULT_LIMIT).
LONGEST: Final = 64 << 20
# How often a node says that it is there, and how long its silence is borne.
BEAT, SILENCE = 2.0, 30.0


class Lines:
    """What came over a connection, cut into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def take(self, received: bytes) -> list[dict[str, Any]]:
        """Return the messages that are complete now. Raise ValueError for what is not one."""
        self._rest += received
        if len(self._rest) > LONGEST:
            message = "a message is too long"
            raise ValueError(message)
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            text = "a message is not an object"
            raise ValueError(text)
        return messages


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message whole. Raise OSError where it cannot be sent."""
    connection.sendall(json.dumps(message).encode() + b"\n")


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
