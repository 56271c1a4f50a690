"""Read an ELF library: sections, dynamic entries, symbols and version needs (System V gABI 4 and 5, LSB 10.7), GPUs.

Only 64-bit little-endian files are read: CUDA and torch exist for no other. A file that is damaged, or made to
exhaust memory or time, raises BinaryError with one line.

Fatbins: a section holds containers: magic, u16 version, u16 header size, u64 body size. A body is a row of entries:
u16 kind, u16 version, u32 header size, u64 payload size, and at byte 28 the u32 architecture (90 for sm_90). NVIDIA
does not document the layout. It was compared with the architectures that 102 wheels were built for.
The suffixes a and f (sm_90a, sm_120f) are not in this header. Nothing is decompressed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

MAGIC = b"\x7fELF"
MACHINES = {62: "x86_64", 183: "aarch64"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_NEED, _NEED_NAME = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_DYNSYM, _DYNAMIC_SECTION, _NOBITS, _VERNEED = 11, 6, 8, 0x6FFFFFFE
_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 14, 15, 29
_DT_SYMTAB, _DT_VERNEED = 6, 0x6FFFFFFE
_PT_DYNAMIC = 2
_GLOBAL, _WEAK, _UNIQUE = 1, 2, 10
_WEAK_VERSION = 2
# Bytes of one table, and entries of a list. libtorch_cpu.so, the largest known, has 40 MB of names.
_LARGEST_TABLE = 1 << 30
_MOST_ENTRIES = 1 << 16
# Where a library registers its GPU code with the CUDA runtime. All 106 such libraries of CUDA wheels that were read
# (torch's large ones not among them) have code in the sections below.
REGISTERED = ".nvFatBinSegment"
SECTIONS = (".nv_fatbin", "__nv_relfatbin", ".nv_relfatbin")
FATBIN_MAGIC = b"\x50\xed\x55\xba"
_CONTAINER, _ENTRY = struct.Struct("<4sHHQ"), struct.Struct("<HHIQ12xI")
_PTX, _CUBIN = 1, 2
_BLOCK = 1 << 16
# The architectures that CUDA has: 5.0 to 19.9, written 50 to 199.
_LOWEST, _HIGHEST = 20, 200


class BinaryError(ValueError):
    """A file that cannot be read as what it should be; the text is one line."""


class Section(NamedTuple):
    """One section: its name, type, where its bytes are, the section it links to, and its address in memory."""

    name: str
    kind: int
    offset: int
    size: int
    link: int
    address: int


class Symbol(NamedTuple):
    """One dynamic symbol. `defined` is whether this library has it; `weak` whether the loader may do without it."""

    name: str
    defined: bool
    weak: bool


class Dynamic(NamedTuple):
    """What the loader reads first: the libraries needed, the own name, and where to search (`$ORIGIN` unexpanded)."""

    needed: tuple[str, ...]
    soname: str
    search: tuple[str, ...]


class Elf:
    """An open ELF file. The constructor reads its header and its sections' table, and nothing else."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = file.seek(0, 2)
        _, _, machine, _, _, segments, at, _, _, segment_size, segment_count, each, count, names = self._header()
        self.machine = MACHINES.get(machine, f"machine {machine}")
        self._segments = (segments, segment_count) if segment_size == _SEGMENT.size else (0, 0)
        self.sections = self._sections(at, each, count, names)

    def _header(self) -> tuple[bytes, int, int, int, int, int, int, int, int, int, int, int, int, int]:
        start = self.read(0, min(self.size, _HEADER.size), "the header")
        if start[:4] != MAGIC:
            message = "not an ELF file"
            raise BinaryError(message)
        if start[4:5] != b"\2" or start[5:6] != b"\1":
            message = "a 32-bit ELF file" if start[4:5] == b"\1" else "an ELF file that is not 64-bit little-endian"
            raise BinaryError(message)
        if len(start) < _HEADER.size:
            message = f"a truncated ELF file: {self.size} bytes"
            raise BinaryError(message)
        return _HEADER.unpack(start)

    def read(self, offset: int, size: int, label: str) -> bytes:
        """Return bytes of the file. Raises BinaryError if they are not all in it, or more than any real table has."""
        if size > _LARGEST_TABLE:
            message = f"{label} claims {size} bytes"
            raise BinaryError(message)
        if offset + size > self.size:
            message = f"{label} ends at byte {offset + size}, and the file has {self.size}: it is truncated or damaged"
            raise BinaryError(message)
        self.file.seek(offset)
        data = self.file.read(size)
        if len(data) != size:
            message = f"{label} could not be read: the file changed"
            raise BinaryError(message)
        return data

    def _sections(self, at: int, each: int, count: int, names: int) -> list[Section]:
        if not at or not count:
            message = "no table of sections: its symbols cannot be read"
            raise BinaryError(message)
        if each != _SECTION.size:
            message = f"sections of {each} bytes, not {_SECTION.size}"
            raise BinaryError(message)
        rows = list(_SECTION.iter_unpack(self.read(at, count * each, "the table of sections")))
        if names >= count:
            message = "the section with the names of sections does not exist"
            raise BinaryError(message)
        texts = self.read(rows[names][4], rows[names][5], "the names of sections")
        return [Section(_text(texts, row[0]), row[1], row[4], row[5], row[6], row[3]) for row in rows]

    def _one(self, kind: int) -> Section | None:
        return next((s for s in self.sections if s.kind == kind and s.size), None)

    def _content(self, section: Section) -> bytes:
        return self.read(section.offset, section.size, section.name or "a section")

    def _strings(self, section: Section) -> bytes:
        if section.link >= len(self.sections) or self.sections[section.link].kind == _NOBITS:
            message = f"{section.name} names no table of strings"
            raise BinaryError(message)
        return self._content(self.sections[section.link])

    def refuse_hidden_tables(self) -> None:
        """Raise BinaryError unless the sections are the tables that the loader reads, which looks at no section.

        A tool that drops or moves sections leaves a library that loads, and of which nothing could be read here.
        """
        at, count = self._segments
        segments = _SEGMENT.iter_unpack(self.read(at, count * _SEGMENT.size, "the table of segments"))
        loaded = next((row for row in segments if row[0] == _PT_DYNAMIC and row[5]), None)
        if loaded is None:
            return  # debugging information of a library, which no loader takes
        section = self._one(_DYNAMIC_SECTION)
        if section is None or section.offset != loaded[2]:
            message = "its sections do not show the dynamic table that the loader reads"
            raise BinaryError(message)
        for tag, value in _DYNAMIC.iter_unpack(self._content(section)[: section.size // _DYNAMIC.size * _DYNAMIC.size]):
            kind = {_DT_SYMTAB: _DYNSYM, _DT_VERNEED: _VERNEED}.get(tag)
            if kind is not None and all(each.address != value for each in self.sections if each.kind == kind):
                message = f"its sections do not show the {'symbols' if kind == _DYNSYM else 'versions'} that it has"
                raise BinaryError(message)
            if not tag:
                return

    def dynamic(self) -> Dynamic:
        """Return the dynamic section; an empty one where the file has none."""
        section = self._one(_DYNAMIC_SECTION)
        if section is None:
            return Dynamic((), "", ())
        strings, content = self._strings(section), self._content(section)
        values: dict[int, list[str]] = {}
        for tag, value in _DYNAMIC.iter_unpack(content[: len(content) // _DYNAMIC.size * _DYNAMIC.size]):
            if tag in (_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH):
                values.setdefault(tag, []).append(_text(strings, value))
            if not tag or sum(map(len, values.values())) > _MOST_ENTRIES:
                break
        # DT_RUNPATH replaces DT_RPATH (ld.so(8)).
        search = values.get(_DT_RUNPATH) or values.get(_DT_RPATH) or []
        soname = values.get(_DT_SONAME) or [""]
        return Dynamic(
            tuple(values.get(_DT_NEEDED, [])), soname[0], tuple(p for s in search for p in s.split(":") if p)
        )

    def symbols(self) -> Iterator[Symbol]:
        """Yield the dynamic symbols that other libraries can see or that this one needs."""
        section = self._one(_DYNSYM)
        if section is None:
            return
        if section.size % _SYMBOL.size:
            message = f"{section.name} has {section.size} bytes, no multiple of {_SYMBOL.size}"
            raise BinaryError(message)
        strings, read = self._strings(section), 0
        for name, info, other, where, _, _ in _SYMBOL.iter_unpack(self._content(section)):
            binding, hidden = info >> 4, other & 3
            if not name or binding not in (_GLOBAL, _WEAK, _UNIQUE) or (where and hidden in (1, 2)):
                continue
            text = _text(strings, name)
            # Names share their ends, and no more: a file where they overlap at length was made to cost time.
            read += len(text)
            if read > 8 * len(strings) + _MOST_ENTRIES:
                message = f"the names of {section.name} overlap"
                raise BinaryError(message)
            yield Symbol(text, where != 0, binding == _WEAK)

    def versions(self) -> set[str]:
        """Return the symbol versions that the loader must find, for example GLIBC_2.17 and CXXABI_1.3.9."""
        section = self._one(_VERNEED)
        if section is None:
            return set()
        strings, content = self._strings(section), self._content(section)
        names, at, read = set(), 0, 0
        while True:
            _, count, _, first, after = _unpack(_NEED, content, at)
            inner = at + first
            for _ in range(count):
                _, flags, _, name, step = _unpack(_NEED_NAME, content, inner)
                names |= set() if flags & _WEAK_VERSION else {_text(strings, name)}
                inner, read = inner + step, read + 1
                if not step or read > _MOST_ENTRIES:
                    break
            at, read = at + after, read + 1
            if not after or read > _MOST_ENTRIES:
                return names


def _unpack(layout: struct.Struct, content: bytes, at: int) -> tuple[int, ...]:
    if at + layout.size > len(content):
        message = "the list of needed versions ends outside its section"
        raise BinaryError(message)
    return layout.unpack_from(content, at)


def _text(strings: bytes, at: int) -> str:
    """Return the string that begins at an offset of a table of strings."""
    end = strings.find(b"\0", at, at + _MOST_ENTRIES) if at < len(strings) else -1
    if end < 0:
        message = f"a name at byte {at} of a table of strings with {len(strings)} bytes has no end"
        raise BinaryError(message)
    return strings[at:end].decode("utf-8", "replace")


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
        offset_of_magic = block.find(FATBIN_MAGIC)
        if offset_of_magic >= 0:
            return at + offset_of_magic
        at += max(len(block) - len(FATBIN_MAGIC) + 1, 1)
    return end
