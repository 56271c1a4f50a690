"""Which network interface of this machine has an address: gloo is given the name of one."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

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
