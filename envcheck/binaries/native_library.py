"""What one native library needs and holds, and how it binds to torch, by the symbols it leaves undefined.

libtorch's C++ interface changes with each minor of torch; its symbols are mangled names in the namespaces c10, at,
torch and caffe2 (Itanium C++ ABI, 5.1). The stable ABI (torch/csrc/stable, torch/csrc/inductor/aoti_torch) is C:
`aoti_torch_…` and `torch_…`, and later torches keep it.

ELF: sections, dynamic entries, symbols and version needs (System V gABI 4 and 5, LSB 10.7), GPUs.
Only 64-bit little-endian files are read: CUDA and torch exist for no other. A file that is damaged, or made to
exhaust memory or time, raises BinaryError with one line.

Fatbins: a section holds containers: magic, u16 version, u16 header size, u64 body size. A body is a row of entries:
u16 kind, u16 version, u32 header size, u64 payload size, and at byte 28 the u32 architecture (90 for sm_90). NVIDIA
does not document the layout. It was compared with the architectures that 102 wheels were built for.
The suffixes a and f (sm_90a, sm_120f) are not in this header. Nothing is decompressed.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

MAGIC = b"\x7fELF"
MACHINES = {62: "x86_64", 183: "aarch64"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT, _PT_DYNAMIC = struct.Struct("<I28xQ16x"), 2
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_NEED, _NEED_NAME = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_DYNSYM, _DYNAMIC_SECTION, _NOBITS, _VERNEED = 11, 6, 8, 0x6FFFFFFE
_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 14, 15, 29
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
# Their number is CUDA's major (11.2 of libnvrtc is CUDA 11).
_OF_MAJOR = re.compile(r"lib(?:cudart|nvrtc|cublas|cublasLt|nvJitLink|npp\w+|nvjpeg)\.so\.(\d+)")
# Others number themselves: (name, number) -> CUDA major (release notes of the CUDA toolkits 11.8, 12.9 and 13.0).
_OWN_NUMBER = {("cufft", "10"): "11", ("cufft", "11"): "12", ("cufft", "12"): "13", ("cusolver", "12"): "13"}
_NUMBERED = re.compile(r"lib(cufft|cusolver)\.so\.(\d+)")
_TOOLKIT = re.compile(
    r"lib(?:cudart|nvrtc(?:-builtins)?|cublas(?:Lt)?|nvJitLink|npp\w+|nvjpeg|cufftw?|cufile\w*|curand|cusolver(?:Mg)?|"
    r"cusparse(?:Lt)?|cudnn\w*|nccl|nvshmem\w*|cupti|nvToolsExt|nvfatbin|nvvm)(?:[-.][0-9a-f]{8})?\.so\b"
)
# Brought by the driver. A build machine has none.
DRIVER = ("libcuda.so", "libnvidia-", "libnvcuvid.so", "libnvcuextend.so")
_TORCH = re.compile(r"lib(?:torch|c10)(?:_\w+)?\.so\b")
_CPP = re.compile(r"_Z(?:T[ISTV]|GV|GR)?N[rVK]*[RO]?(?:3c10|2at|5torch|6caffe2)(?![a-z_])")
_STABLE = re.compile(r"(?:aoti_torch|torch)_[a-z]\w*")
_PYTHON = re.compile(r"THP[A-Z]\w*")
# A std::string of the old C++ ABI is `Ss`, of the new one `NSt7__cxx1112basic_string…` (GCC manual, Dual ABI).
_NEW_STRING, _OLD_STRING = "__cxx11", re.compile(r"Ss(?![a-z])")
STABLE, CPP, NONE = "torch stable ABI", "libtorch C++", "no torch symbols"
MIXED = "mixed: some libraries on the stable ABI, others "
_GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")
# How the paths of libraries for several machines name theirs.
_MACHINE_WORDS = {"x86_64": ("x86_64", "x86-64", "amd64"), "aarch64": ("aarch64", "arm64", "sbsa")}


class BinaryError(ValueError):
    """A file that cannot be read as what it should be; the text is one line."""


def refuse_if(wrong: object, text: str) -> None:
    """Raise BinaryError where something is wrong with a file."""
    if wrong:
        raise BinaryError(text)


class Section(NamedTuple):
    """One section: its name, type, where its bytes are, and the section it links to."""

    name: str
    kind: int
    offset: int
    size: int
    link: int


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
        start = self.read(0, min(self.size, _HEADER.size), "the header")
        refuse_if(start[:4] != MAGIC, "not an ELF file")
        refuse_if(start[4:5] == b"\1", "a 32-bit ELF file")
        refuse_if(start[4:6] != b"\2\1", "an ELF file that is not 64-bit little-endian")
        refuse_if(len(start) < _HEADER.size, f"a truncated ELF file: {self.size} bytes")
        _, _, machine, _, _, first, at, _, _, _, segments, each, count, names = _HEADER.unpack(start)
        self.machine = MACHINES.get(machine, f"machine {machine}")
        rows = _SEGMENT.iter_unpack(self.read(first, segments * _SEGMENT.size, "the table of segments"))
        self.loaded = any(kind == _PT_DYNAMIC and size for kind, size in rows)
        self.sections = self._sections(at, each, count, names)

    def read(self, offset: int, size: int, label: str) -> bytes:
        """Return bytes of the file. Raises BinaryError if they are not all in it, or more than any real table has."""
        refuse_if(size > _LARGEST_TABLE, f"{label} claims {size} bytes")
        end = offset + size
        refuse_if(end > self.size, f"{label} ends at byte {end}, and the file has {self.size}: truncated or damaged")
        self.file.seek(offset)
        data = self.file.read(size)
        refuse_if(len(data) != size, f"{label} could not be read: the file changed")
        return data

    def _sections(self, at: int, each: int, count: int, names: int) -> list[Section]:
        refuse_if(not at or not count, "no table of sections: its symbols cannot be read")
        refuse_if(each != _SECTION.size, f"sections of {each} bytes, not {_SECTION.size}")
        rows = list(_SECTION.iter_unpack(self.read(at, count * each, "the table of sections")))
        refuse_if(names >= count, "the section with the names of sections does not exist")
        texts = self.read(rows[names][4], rows[names][5], "the names of sections")
        return [Section(_text(texts, row[0]), row[1], row[4], row[5], row[6]) for row in rows]

    def _one(self, kind: int) -> Section | None:
        return next((s for s in self.sections if s.kind == kind and s.size), None)

    def _content(self, section: Section) -> bytes:
        return self.read(section.offset, section.size, section.name or "a section")

    def _strings(self, section: Section) -> bytes:
        linked = self.sections[section.link : section.link + 1]
        refuse_if(not linked or linked[0].kind == _NOBITS, f"{section.name} names no table of strings")
        return self._content(linked[0])

    def dynamic(self) -> Dynamic:
        """Return the dynamic section; an empty one where the file has none."""
        section = self._one(_DYNAMIC_SECTION)
        if section is None:
            # A tool that drops sections leaves a library that loads, and of which nothing could be read here.
            refuse_if(self.loaded, "its sections do not show the dynamic table that the loader reads")
            return Dynamic((), "", ())
        strings, content = self._strings(section), self._content(section)
        values: dict[int, list[str]] = {tag: [] for tag in (_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH)}
        rows = _DYNAMIC.iter_unpack(content[: len(content) // _DYNAMIC.size * _DYNAMIC.size])
        for tag, value in itertools.takewhile(lambda row: row[0], itertools.islice(rows, _MOST_ENTRIES)):
            if tag in values:
                values[tag].append(_text(strings, value))
        # DT_RUNPATH replaces DT_RPATH (ld.so(8)).
        search = tuple(p for text in values[_DT_RUNPATH] or values[_DT_RPATH] for p in text.split(":") if p)
        return Dynamic(tuple(values[_DT_NEEDED]), next(iter(values[_DT_SONAME]), ""), search)

    def symbols(self) -> Iterator[Symbol]:
        """Yield the dynamic symbols that other libraries can see or that this one needs."""
        section = self._one(_DYNSYM)
        if section is None:
            return
        refuse_if(section.size % _SYMBOL.size, f"{section.name} has {section.size} bytes: no whole symbols")
        strings, read = self._strings(section), 0
        for name, info, other, where, _, _ in _SYMBOL.iter_unpack(self._content(section)):
            binding, hidden = info >> 4, other & 3
            if not name or binding not in (_GLOBAL, _WEAK, _UNIQUE) or (where and hidden in (1, 2)):
                continue
            text = _text(strings, name)
            # Names share their ends, and no more: a file where they overlap at length was made to cost time.
            read += len(text)
            refuse_if(read > 8 * len(strings) + _MOST_ENTRIES, "the names of symbols overlap")
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
    refuse_if(at + layout.size > len(content), "the list of needed versions ends outside its section")
    return layout.unpack_from(content, at)


def _text(strings: bytes, at: int) -> str:
    end = strings.find(b"\0", at, at + _MOST_ENTRIES) if at < len(strings) else -1
    refuse_if(end < 0, "a name of a table of strings has no end")
    return strings[at:end].decode("utf-8", "replace")


def gpu_code(elf: Elf) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return for which GPUs a library has code, as compute capabilities in order: SASS, which runs, then PTX.

    Raises BinaryError if a container is damaged, or hidden.
    """
    kinds: dict[int, set[int]] = {_PTX: set(), _CUBIN: set()}
    for section in elf.sections:
        if section.name in SECTIONS and section.size:
            for kind, architecture in _entries(elf, section):
                kinds.setdefault(kind, set()).add(architecture)
    hidden = not kinds[_CUBIN] and not kinds[_PTX] and any(s.name == REGISTERED and s.size for s in elf.sections)
    refuse_if(hidden, "it registers GPU code, and its sections show none")
    sass, ptx = (tuple(f"{number // 10}.{number % 10}" for number in sorted(kinds[kind])) for kind in (_CUBIN, _PTX))
    return sass, ptx


def ordered(capabilities: set[str]) -> tuple[str, ...]:
    """Return compute capabilities in ascending order."""
    return tuple(sorted(capabilities, key=lambda text: tuple(map(int, text.split(".")))))


def _entries(elf: Elf, section: Section) -> Iterator[tuple[int, int]]:
    at, end = section.offset, section.offset + section.size
    elf.read(end - 1, 1, section.name)
    while (at := _next_container(elf, at, end)) + _CONTAINER.size <= end:
        _, _, header, body = _CONTAINER.unpack(elf.read(at, _CONTAINER.size, section.name))
        inner, after = at + header, at + header + body
        refuse_if(header < _CONTAINER.size or after > end, f"a container of {section.name} ends outside of it")
        while inner + _ENTRY.size <= after:
            kind, _, size, payload, architecture = _ENTRY.unpack(elf.read(inner, _ENTRY.size, section.name))
            outside = size < _ENTRY.size or inner + size + payload > after
            refuse_if(outside, f"an entry of {section.name} ends outside its container")
            if kind in (_PTX, _CUBIN):
                unknown = not _LOWEST <= architecture < _HIGHEST
                refuse_if(unknown, f"{section.name} has an entry for architecture {architecture}, which no GPU has")
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


def _name(library: str) -> str:
    """Return the name of a library without its directory: DT_NEEDED may hold a path."""
    return library.rpartition("/")[2]


def cuda_majors(libraries: Iterable[str]) -> list[str]:
    """Return the CUDA majors that the names of libraries say, in order: "12" of libcudart.so.12."""
    matches = [
        match for name in map(_name, libraries) for match in (_OF_MAJOR.match(name), _NUMBERED.match(name)) if match
    ]
    majors = {match[1] if match.re is _OF_MAJOR else _OWN_NUMBER.get((match[1], match[2])) for match in matches}
    return sorted(filter(None, majors), key=int)


def is_nvidias(library: str) -> bool:
    """Return whether this is a library of the CUDA toolkit or beside it, bundled under a hashed name or not."""
    return bool(_TOOLKIT.match(_name(library)))


def is_drivers(library: str) -> bool:
    """Return whether the driver brings this library."""
    return _name(library).startswith(DRIVER)


def is_torch_library(library: str) -> bool:
    """Return whether torch brings this library."""
    return bool(_TORCH.match(_name(library)))


def is_torch_symbol(symbol: str) -> bool:
    """Return whether only torch's libraries would define a symbol of this name."""
    return bool(_CPP.match(symbol) or _STABLE.fullmatch(symbol) or _PYTHON.fullmatch(symbol))


def abi(undefined: Iterable[str]) -> str:
    """Return how a library binds to torch: "libtorch C++ (cxx11abi=1)", the stable ABI, both ("mixed: …"), or not."""
    symbols = [name for name in undefined if is_torch_symbol(name)]
    cpp = [name for name in symbols if not _STABLE.fullmatch(name)]
    # All torch wheels since 2.7 have the new ABI.
    old = any(map(_OLD_STRING.search, cpp)) and not any(_NEW_STRING in name for name in cpp)
    parts = [f"{CPP} (cxx11abi={0 if old else 1})"] if cpp else []
    return together([*parts, *([STABLE] if len(cpp) < len(symbols) else [])])


def together(abis: Iterable[str]) -> str:
    """Return how several libraries bind to torch, from the answer of each."""
    answers = set(abis) - {NONE}
    cpp = ", ".join(sorted({part.removeprefix(MIXED) for part in answers} - {STABLE}))
    if not cpp:
        return STABLE if answers else NONE
    return cpp if answers <= {cpp} else MIXED + cpp


class Library(NamedTuple):
    """One library, as its headers and tables say.

    `size` is in bytes. `needed` are the libraries that the loader must find, `search` where this one says to look.
    `torch_symbols` are the symbols that torch must define. `glibc` is the newest version of it that is needed, "" if
    none is. `sass` and `ptx` are compute capabilities, "9.0".
    """

    path: str
    size: int
    machine: str
    needed: tuple[str, ...]
    soname: str
    search: tuple[str, ...]
    torch_symbols: tuple[str, ...]
    abi: str
    glibc: str
    sass: tuple[str, ...]
    ptx: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the file's name without its directory."""
        return self.path.rpartition("/")[2]


def is_foreign(library: Library, machine: str) -> bool:
    """Return whether a library is for another machine ("x86_64") than this one, and its path does not say so."""
    words = _MACHINE_WORDS.get(library.machine, ())
    return machine in _MACHINE_WORDS and library.machine != machine and not any(w in library.path for w in words)


def read_library(file: BinaryIO, path: str) -> Library:
    """Return what a library needs and holds. Raises BinaryError if it is no ELF library that can be read."""
    elf = Elf(file)
    dynamic, code = elf.dynamic(), gpu_code(elf)
    needed = [s.name for s in elf.symbols() if not s.defined and not s.weak and is_torch_symbol(s.name)]
    versions = [match[1] for version in elf.versions() if (match := _GLIBC.fullmatch(version))]
    glibc, symbols = max(versions, key=dotted, default=""), tuple(sorted(set(needed)))
    return Library(path, elf.size, elf.machine, *dynamic, symbols, abi(needed), glibc, *code)


def dotted(version: str) -> tuple[int, ...]:
    """Return "2.17" as (2, 17), to compare."""
    return tuple(int(part) for part in version.split("."))
