"""A resolver that does not answer makes every process group wait, with no word about the reason.

torch's TCPStore looks up the name of each peer, and asks for it as an IPv4 address inside IPv6 (::ffff:127.0.0.1),
which a usual /etc/hosts does not have; gloo without GLOO_SOCKET_IFNAME looks up the own host name; torchrun looks up
both. glibc waits 5 s for each name server and asks it twice (resolv.conf(5): timeout, attempts).
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, passed, undecided, warned, worst
from envcheck.checks.support import process_group

# How long a lookup is waited for: enough to see that it is slow, and short enough for the level quick.
PATIENCE = 1.5
CHECK = Check(promise="the names that torchrun looks up are answered at once", level="quick", seconds=0.1, timeout=20.0)

LIMIT = Limit(0.5, "s", "ours, 2026-11: a lookup in /etc/hosts takes 1 ms, of a near name server 1 to 50 ms", "at most")
OWN, LOOPBACK, MAPPED, ADDRESS = "own host name", "localhost", "::ffff:127.0.0.1", "own address"
NEEDED = (OWN, LOOPBACK)
_OWN_LINE = (
    "add a line with this machine's address and name to /etc/hosts (`docker run --hostname NAME --add-host NAME:IP`)"
)
REMEDIES = {
    OWN: _OWN_LINE,
    LOOPBACK: "add the line `127.0.0.1 localhost` to /etc/hosts",
    MAPPED: "add the line `::ffff:127.0.0.1 localhost` to /etc/hosts",
    ADDRESS: f"{_OWN_LINE}; the same address once more with ::ffff: before it",
}
REPAIR = "or give the machine a name server that answers (`docker run --dns ADDRESS`)"


def measure(rank: Rank) -> Measured:
    """Return {lookup: {"seconds", "error", "ended"}}; a lookup that has not ended was given up after PATIENCE."""
    started = {
        OWN: _start(lambda: _forward(socket.gethostname())),
        LOOPBACK: _start(lambda: _forward("localhost")),
        MAPPED: _start(lambda: _reverse("127.0.0.1")),
    }
    concurrent.futures.wait(started.values(), PATIENCE)
    own = started[OWN]
    address = own.result()["address"] if own.done() else None
    if address and not address.startswith("127."):
        started[ADDRESS] = _start(lambda: _reverse(address))
        concurrent.futures.wait([started[ADDRESS]], PATIENCE)
    return {"rank": rank.rank, "lookups": {name: _state(future) for name, future in started.items()}}


def resolves_own_name() -> bool:
    """Return whether the own host name has an address, and a lookup says so within PATIENCE."""
    lookup = _start(lambda: _forward(socket.gethostname()))
    concurrent.futures.wait([lookup], PATIENCE)
    return lookup.done() and lookup.result()["address"] is not None


def _start(lookup: Callable[[], str | None]) -> concurrent.futures.Future[dict[str, Any]]:
    """Run a lookup on a thread of its own, which nobody has to wait for: no lookup can be interrupted."""
    future: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()

    def work() -> None:
        begun, address, error = time.monotonic(), None, None
        try:
            address = lookup()
        except (OSError, UnicodeError) as refusal:
            error = str(refusal)
        future.set_result({"seconds": round(time.monotonic() - begun, 4), "error": error, "address": address})

    threading.Thread(target=work, daemon=True).start()
    return future


def _forward(name: str) -> str | None:
    addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return next((str(entry[4][0]) for entry in addresses if entry[0] == socket.AF_INET), None)


def _reverse(address: str) -> None:
    """Look up an address's name as TCPStore does, as an IPv4 address inside IPv6; a missing name is no error.

    This calls the C library because socket.getnameinfo of Python 3.9, 3.10 and the first 3.11 releases keeps the GIL
    while it waits for the name server, which stops every other thread of the process.
    """
    packed = socket.inet_pton(socket.AF_INET6, f"::ffff:{address}")
    sockaddr_in6 = struct.pack("=HHI16sI", socket.AF_INET6, socket.htons(1), 0, packed, 0)
    host = ctypes.create_string_buffer(1025)  # NI_MAXHOST of <netdb.h>
    ctypes.CDLL(None).getnameinfo(sockaddr_in6, len(sockaddr_in6), host, len(host), None, 0, 0)


def _state(future: concurrent.futures.Future[dict[str, Any]]) -> dict[str, Any]:
    if not future.done():
        return {"seconds": PATIENCE, "error": None, "ended": False}
    return {name: value for name, value in future.result().items() if name != "address"} | {"ended": True}


def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Warn of each lookup that is slow, and of a name that cannot be resolved at all."""
    lookups = ranks[0].get("lookups") if ranks else None
    if not isinstance(lookups, dict) or not {OWN, LOOPBACK, MAPPED} <= set(lookups):
        return undecided("no name was looked up", code="name-resolution.unmeasured")
    unread = [name for name, lookup in lookups.items() if not _read(lookup)]
    if unread:
        text, code = f"the lookup of {unread[0]} was not measured", "name-resolution.unmeasured"
        return undecided(text, code=code, culprit=unread[0])
    slowest = max(lookup["seconds"] for lookup in lookups.values())
    findings = [finding for name, lookup in lookups.items() for finding in _judged(name, lookup)]
    return worst(findings, passed("every name is answered at once", value=slowest, limit=LIMIT))


def _read(lookup: Any) -> bool:
    if not isinstance(lookup, dict) or not isinstance(lookup.get("ended"), bool):
        return False
    return process_group.finite(lookup.get("seconds")) and bool(lookup["seconds"] >= 0)


def _judged(name: str, lookup: Mapping[str, Any]) -> list[Outcome]:
    seconds = lookup["seconds"]
    if not lookup.get("ended") or seconds > LIMIT.value:
        least = "" if lookup.get("ended") else "more than "
        summary = f"looking up {name} takes {least}{seconds:.1f} s; each process group over TCP waits for it"
        fix = f"{REMEDIES.get(name, _OWN_LINE)}; {REPAIR}"
        about: dict[str, Any] = {"value": seconds, "limit": LIMIT, "culprit": name}
        return [warned(summary, fix=fix, code="name-resolution.slow", **about)]
    if name in NEEDED and lookup.get("error"):
        summary = f"{name} cannot be resolved ({lookup['error']}); torchrun needs it"
        return [warned(summary, fix=REMEDIES[name], code="name-resolution.unresolved", culprit=name)]
    return []
