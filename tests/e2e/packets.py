"""What is in a packet: where it wants to go, and for DNS, which name it asks for."""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

ETH_P_IP, ETH_P_ARP, ETH_P_IPV6 = 0x0800, 0x0806, 0x86DD
TCP, UDP, ICMPV6, IGMP, SYN, ACK = 6, 17, 58, 2, 0x02, 0x10
# What the kernel says of its own accord on every new cable: looks for routers, tells its groups (RFC 4861, RFC 3810).
KERNELS = (133, 134, 136, 143)
SOLICITATION = 135
# Of IPv4's TCP only first packets are handed to us, so that a gigabyte of acknowledgements loses none of them:
# (code, lines to skip when true, when false, operand); see linux/filter.h.
FIRSTS = (
    (0x28, 0, 0, 12),  # the frame's type
    (0x15, 0, 8, ETH_P_IP),
    (0x30, 0, 0, 23),  # its protocol
    (0x15, 0, 6, TCP),
    (0x28, 0, 0, 20),
    (0x45, 4, 0, 0x1FFF),  # a later fragment: let it through
    (0xB1, 0, 0, 14),  # where TCP begins
    (0x50, 0, 0, 27),  # its flags
    (0x54, 0, 0, SYN | ACK),
    (0x15, 0, 1, SYN),
    (0x06, 0, 0, 0xFFFF),
    (0x06, 0, 0, 0),
)


class Destination(NamedTuple):
    """Where something went: "tcp", "udp", "dns" (a name that was asked for), "neighbour", or a protocol's number."""

    kind: str
    where: str
    port: int = 0


def destination(frame: bytes) -> Destination | None:
    """Return where an Ethernet frame wants to go; None for an answer, and for what every kernel says of itself."""
    (kind,) = struct.unpack_from("!H", frame, 12)
    if kind == ETH_P_ARP:
        asks = struct.unpack_from("!H", frame, 20) == (1,)
        return Destination("neighbour", str(ipaddress.ip_address(frame[38:42]))) if asks else None
    if kind == ETH_P_IP:
        later = bool(struct.unpack_from("!H", frame, 20)[0] & 0x1FFF)
        return _within(frame[23], frame[30:34], frame[14 + 4 * (frame[14] & 15) :], later=later)
    if kind == ETH_P_IPV6:
        # Without an address of its own yet, a kernel only makes sure that nobody else has it.
        return _within(frame[20], frame[38:54], frame[54:], later=False) if any(frame[22:38]) else None
    return Destination(f"ethernet {kind:#06x}", frame[:6].hex(":"))


def _within(protocol: int, address: bytes, content: bytes, *, later: bool) -> Destination | None:
    to = ipaddress.ip_address(address)
    if protocol == TCP and not later:
        first = content[13] & (SYN | ACK) == SYN
        return Destination("tcp", str(to), struct.unpack_from("!H", content, 2)[0]) if first else None
    if protocol == UDP and not later:
        return Destination("udp", str(to), struct.unpack_from("!H", content, 2)[0])
    if protocol == ICMPV6 and content[0] == SOLICITATION:
        requests = ipaddress.ip_address(content[8:24])
        return None if requests.is_link_local else Destination("neighbour", str(requests))
    # Before reports of multicast listeners stand hop-by-hop options (0).
    if (protocol == ICMPV6 and content[0] in KERNELS) or (protocol in {0, IGMP} and to.is_multicast):
        return None
    return Destination(f"protocol {protocol}", str(to))


def answered(query: bytes, address: str | None) -> bytes:
    """Answer a name's A; nothing for its other records; without an address, no such name (RFC 1035, section 4)."""
    _, end = asked_name(query)
    known = address is not None
    there = address if query[end : end + 2] == b"\0\1" else None
    header = query[:2] + (b"\x81\x80" if known else b"\x81\x83") + b"\0\1" + (b"\0\1" if there else b"\0\0")
    record = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + ipaddress.ip_address(there).packed if there else b""
    return header + b"\0\0\0\0" + query[12 : end + 4] + record


def asked_name(query: bytes) -> tuple[str, int]:
    """Return the name that a DNS query asks for, and where its type begins."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("latin-1").lower())
        at += 1 + query[at]
    return ".".join(labels), at + 1
