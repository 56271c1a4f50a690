"""Read for which GPUs a library holds code, from the headers of its fatbins. Nothing is decompressed.

A section holds containers: magic, u16 version, u16 header size, u64 body size. A body is a row of entries: u16 kind,
u16 version, u32 header size, u64 payload size, and at byte 28 the u32 architecture (90 for sm_90). NVIDIA does not
document the layout. It was compared with the architectures that 102 wheels were built for (matrix/extensions.yaml).
The suffixes a and f (sm_90a, sm_120f) are not in this header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from envcheck.binaries.elf import BinaryError, Elf, Section

# Where a library registers its GPU code with the CUDA runtime. All 106 such libraries of CUDA wheels that were read
# (torch's large ones not among them) have code in the sections below.
REGISTERED = ".nvFatBinSegment"
SECTIONS = (".nv_fatbin", "__nv_relfatbin", ".nv_relfatbin")
MAGIC = b"\x50\xed\x55\xba"
_CONTAINER, _ENTRY = struct.Struct("<4sHHQ"), struct.Struct("<HHIQ12xI")
_PTX, _CUBIN = 1, 2
_BLOCK = 1 << 16
# The architectures that CUDA has: 5.0 to 19.9, written 50 to 199.
_LOWEST, _HIGHEST = 20, 200


class GpuCode(NamedTuple):
    """Compute capabilities ("9.0"), in order: with code that runs (SASS), and with PTX, which the driver compiles."""

    sass: tuple[str, ...]
    ptx: tuple[str, ...]


def gpu_code(elf: Elf) -> GpuCode:
    """Return for which GPUs a library has code. Raises BinaryError if a container is damaged, or hidden."""
    kinds: dict[int, set[int]] = {_PTX: set(), _CUBIN: set()}
    for section in elf.sections:
        if section.name in SECTIONS and section.size:
            for kind, architecture in _entries(elf, section):
                kinds.setdefault(kind, set()).add(architecture)
    if not kinds[_CUBIN] and not kinds[_PTX] and any(s.name == REGISTERED and s.size for s in elf.sections):
        message = "it registers GPU code, and its sections show none"
        raise BinaryError(message)
    return GpuCode(_capabilities(kinds[_CUBIN]), _capabilities(kinds[_PTX]))


def _capabilities(architectures: set[int]) -> tuple[str, ...]:
    return tuple(f"{number // 10}.{number % 10}" for number in sorted(architectures))


def ordered(capabilities: set[str]) -> tuple[str, ...]:
    """Return compute capabilities in ascending order."""
    return tuple(sorted(capabilities, key=lambda text: tuple(map(int, text.split(".")))))


def _entries(elf: Elf, section: Section) -> Iterator[tuple[int, int]]:
    """Yield kind and architecture of each entry of a section's containers."""
    at, end = section.offset, section.offset + section.size
    elf.read(end - 1, 1, section.name)
    while (at := _next_container(elf, at, end)) + _CONTAINER.size <= end:
        _, _, header, body = _CONTAINER.unpack(elf.read(at, _CONTAINER.size, section.name))
        inner, after = at + header, at + header + body
        if header < _CONTAINER.size or after > end:
            message = f"a container of {section.name} ends outside of it"
            raise BinaryError(message)
        while inner + _ENTRY.size <= after:
            kind, _, size, payload, architecture = _ENTRY.unpack(elf.read(inner, _ENTRY.size, section.name))
            if size < _ENTRY.size or inner + size + payload > after:
                message = f"an entry of {section.name} ends outside its container"
                raise BinaryError(message)
            if kind in (_PTX, _CUBIN):
                if not _LOWEST <= architecture < _HIGHEST:
                    message = f"an entry of {section.name} is for architecture {architecture}, which no GPU has"
                    raise BinaryError(message)
                yield kind, architecture
            inner += size + payload
        at = after


def _next_container(elf: Elf, at: int, end: int) -> int:
    """Return where the next container begins (they are padded with zeros), or `end`."""
    while at < end:
        block = elf.read(at, min(_BLOCK, end - at), "a fatbin")
        offset_of_magic = block.find(MAGIC)
        if offset_of_magic >= 0:
            return at + offset_of_magic
        at += max(len(block) - len(MAGIC) + 1, 1)
    return end
