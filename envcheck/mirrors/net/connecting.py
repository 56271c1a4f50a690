"""Connect to a host that may have several addresses, some of which may drop every packet.

Each address in turn would cost a whole timeout. Here the next address is tried while the earlier ones are still waited
for, as RFC 8305 ("Happy Eyeballs") advises, so that all of them together take one timeout.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

# Seconds until the next address is tried too.
_NEXT: Final = 1.0


def connect(host: str, port: int, timeout: float, options: Sequence[tuple[Any, ...]] = ()) -> socket.socket:
    """Return a socket to the first address that answers. Raise TimeoutError after `timeout` seconds, or OSError.

    `options` are those of `setsockopt`. The look-up of the name has no time limit of its own.
    """
    addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    until = time.monotonic() + timeout
    with selectors.DefaultSelector() as waiting, contextlib.ExitStack() as opened:
        refused: OSError | None = None
        for number, (family, kind, protocol, _, address) in enumerate(addresses, 1):
            try:
                candidate = opened.enter_context(socket.socket(family, kind, protocol))
                _begin(candidate, address, options)
            except OSError as error:
                refused = error
                continue
            waiting.register(candidate, selectors.EVENT_WRITE)
            last = number == len(addresses)
            answered, refused = _first(waiting, until if last else min(until, time.monotonic() + _NEXT), refused)
            if answered is not None:
                return _detached(answered, timeout)
        answered, refused = _first(waiting, until, refused)
        if answered is not None:
            return _detached(answered, timeout)
        raise TimeoutError if waiting.get_map() else refused or OSError(errno.EADDRNOTAVAIL, "no address")


def _begin(candidate: socket.socket, address: Any, options: Sequence[tuple[Any, ...]]) -> None:
    for option in options:
        candidate.setsockopt(*option)
    candidate.settimeout(0)
    code = candidate.connect_ex(address)
    if code not in {0, errno.EINPROGRESS}:
        raise OSError(code, os.strerror(code))


def _first(
    waiting: selectors.BaseSelector, until: float, refused: OSError | None
) -> tuple[socket.socket | None, OSError | None]:
    """Return the first socket that is connected before `until`, or None, and why the last one was refused."""
    while waiting.get_map() and (left := until - time.monotonic()) > 0:
        for key, _ in waiting.select(left):
            candidate = key.fileobj
            assert isinstance(candidate, socket.socket)  # noqa: S101 (nothing else is registered)
            code = candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == 0:
                return candidate, refused
            refused = OSError(code, os.strerror(code))
            waiting.unregister(candidate)
    return None, refused


def _detached(answered: socket.socket, timeout: float) -> socket.socket:
    """Return the connection as a socket of its own, which stays open when the others are closed."""
    connection = socket.socket(fileno=answered.detach())
    connection.settimeout(timeout)
    return connection
