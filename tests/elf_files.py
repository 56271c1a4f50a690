"""ELF libraries that tests make: the tables that a reader looks at, and no code."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

PTX, CUBIN = 1, 2
_DYNAMIC, _DYNSYM, _STRTAB, _PROGBITS, _VERNEED = 6, 11, 3, 1, 0x6FFFFFFE


class MadeLibrary(NamedTuple):
    """What a library is to have. `code` are rows of (kind, architecture), for example (CUBIN, 90).

    `registers` is the size of the section in which it registers its code with the CUDA runtime.
    """

    needed: Sequence[str] = ()
    undefined: Sequence[str] = ()
    exported: Sequence[str] = ()
    weak: Sequence[str] = ()
    versions: Sequence[str] = ()
    code: Sequence[tuple[int, int]] = ()
    soname: str = ""
    runpath: str = ""
    machine: int = 62
    registers: int = 0


class _Strings:
    def __init__(self) -> None:
        self.data = bytearray(b"\0")

    def add(self, text: str) -> int:
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def fatbin(code: Sequence[tuple[int, int]], payload: bytes = b"\1" * 40) -> bytes:
    """Return a container for each entry, as nvcc pads them."""
    containers = b""
    for kind, architecture in code:
        entry = struct.pack("<HHIQ12xI32x", kind, 0x101, 64, len(payload), architecture) + payload
        container = struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, len(entry)) + entry
        containers += container + bytes(-len(container) % 8)
    return containers


def _versions(names: Sequence[str], strings: _Strings) -> bytes:
    if not names:
        return b""
    rows = b"".join(
        struct.pack("<IHHII", 0, 0, 2 + number, strings.add(name), 16 if number + 1 < len(names) else 0)
        for number, name in enumerate(names)
    )
    return struct.pack("<HHIII", 1, len(names), strings.add("libc.so.6"), 16, 0) + rows


def library(made: MadeLibrary) -> bytes:
    strings, names = _Strings(), _Strings()
    symbols = bytes(24)
    for listed, info, section in ((made.undefined, 0x12, 0), (made.weak, 0x22, 0), (made.exported, 0x12, 1)):
        symbols += b"".join(struct.pack("<IBBHQQ", strings.add(name), info, 0, section, 0, 0) for name in listed)
    entries = [(1, strings.add(name)) for name in made.needed]
    entries += [(14, strings.add(made.soname))] if made.soname else []
    entries += [(29, strings.add(made.runpath))] if made.runpath else []
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in (*entries, (0, 0)))
    versions = _versions(made.versions, strings)
    contents = [
        (".dynsym", _DYNSYM, symbols, 2),
        (".dynstr", _STRTAB, bytes(strings.data), 0),
        (".dynamic", _DYNAMIC, dynamic, 2),
        (".gnu.version_r", _VERNEED, versions, 2),
        (".nv_fatbin", _PROGBITS, fatbin(made.code), 0),
        (".nvFatBinSegment", _PROGBITS, bytes(made.registers), 0),
    ]
    body, headers = b"", [bytes(64)]
    for name, kind, data, link in contents:
        body += bytes(-len(body) % 8)
        headers.append(
            struct.pack("<IIQQQQIIQQ", names.add(name), kind, 0, 0, 64 + len(body), len(data), link, 0, 8, 0)
        )
        body += data
    own = names.add(".shstrtab")
    headers.append(struct.pack("<IIQQQQIIQQ", own, _STRTAB, 0, 0, 64 + len(body), len(names.data), 0, 0, 1, 0))
    body += bytes(names.data)
    identity = b"\x7fELF\2\1\1".ljust(16, b"\0")
    numbers = (3, made.machine, 1, 0, 0, 64 + len(body), 0, 64, 56, 0, 64, len(headers), len(headers) - 1)
    return struct.pack("<16sHHIQQQIHHHHHH", identity, *numbers) + body + b"".join(headers)
