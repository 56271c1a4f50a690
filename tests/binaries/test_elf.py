"""The reader agrees with pyelftools on real libraries, and a file made to harm it gives one line."""

import io
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from envcheck.binaries.native_library import (
    BinaryError,
    Elf,
    abi,
    cuda_majors,
    is_drivers,
    is_foreign,
    is_nvidias,
    is_torch_library,
    read_library,
    together,
)
from envcheck.binaries.native_library import is_torch_symbol as symbol_is_torchs
from tests.elf_files import CUBIN, PTX, MadeLibrary, library
from tests.tables import beside, each

CASES = beside(__file__)

WHOLE = library(
    MadeLibrary(
        needed=["libc10.so", "libcudart.so.12"],
        undefined=["_ZN3c105ErrorC1Ev", "malloc"],
        exported=["PyInit__C"],
        weak=["_ZN2at3weakEv"],
        versions=["GLIBC_2.17", "GLIBC_2.4", "GLIBCXX_3.4.30"],
        code=[(CUBIN, 80), (CUBIN, 120), (CUBIN, 90), (PTX, 90), (16, 100)],
        soname="_C.so",
        runpath="$ORIGIN/../nvidia:/opt/lib",
    )
)


def read(data: bytes) -> object:
    return read_library(io.BytesIO(data), "x/_C.so")


def complaint(data: bytes) -> str | None:
    try:
        read(data)
    except BinaryError as error:
        return str(error)
    return None


def test_a_library_is_read_whole() -> None:
    actual = read_library(io.BytesIO(WHOLE), "x/_C.so")
    assert (actual.name, actual.size, actual.machine, actual.soname) == ("_C.so", len(WHOLE), "x86_64", "_C.so")
    assert actual.needed == ("libc10.so", "libcudart.so.12")
    assert actual.search == ("$ORIGIN/../nvidia", "/opt/lib")
    assert actual.torch_symbols == ("_ZN3c105ErrorC1Ev",)  # the loader does without a weak one
    assert (actual.abi, actual.glibc) == ("libtorch C++ (cxx11abi=1)", "2.17")
    assert (actual.sass, actual.ptx) == (("8.0", "9.0", "12.0"), ("9.0",))  # 16 is no code that runs


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_library_gives_one_line_or_is_read(changes: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for at, value in changes:
        data[at] = value
    assert "\n" not in (complaint(bytes(data)) or "")


@each(
    ("data", "words"),
    [
        (b"", "not an ELF file"),
        (b"PK\3\4", "not an ELF file"),
        (b"\x7fELF\1\1" + bytes(58), "32-bit"),
        (b"\x7fELF\2\2" + bytes(58), "not 64-bit little-endian"),
        (WHOLE[:40], "truncated ELF file: 40 bytes"),
        (WHOLE[:-10], "truncated or damaged"),
        (WHOLE[:40] + bytes(8) + WHOLE[48:], "no table of sections"),
        (WHOLE[:40] + struct.pack("<Q", 1 << 62) + WHOLE[48:], f"and the file has {len(WHOLE)}"),
        (WHOLE.replace(b"\x40\0\0\0\x28", b"\x08\0\0\0\x28"), "an entry of .nv_fatbin ends outside"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, words: str) -> None:
    with pytest.raises(BinaryError, match=words):
        read(data)


def test_code_that_is_registered_and_not_found_is_no_library_without_code() -> None:
    assert complaint(library(MadeLibrary(registers=24))) == "it registers GPU code, and its sections show none"
    assert complaint(library(MadeLibrary(registers=24, code=[(PTX, 90)]))) is None


def test_a_library_whose_sections_hide_its_dynamic_table_is_not_read_as_one_that_needs_nothing() -> None:
    hidden = WHOLE.replace(struct.pack("<II", len("\0.dynsym\0.dynstr\0"), 6), struct.pack("<II", 17, 1))
    assert complaint(hidden) is None
    table = struct.pack("<Q", len(hidden)).join([hidden[:32], hidden[40:56]]) + struct.pack("<H", 1) + hidden[58:]
    segment = struct.pack("<I28xQ16x", 2, 64)  # PT_DYNAMIC
    assert complaint(table + segment) == "its sections do not show the dynamic table that the loader reads"


def test_names_that_overlap_cost_no_time() -> None:
    long = "x" * 60_000
    symbol = struct.pack("<IBBHQQ", 1, 0x12, 0, 0, 0, 0)
    many = library(MadeLibrary(undefined=[long, *["y"] * 50_000]))
    at = many.find(symbol)
    many = many[:at] + symbol * 50_001 + many[at + 24 * 50_001 :]
    begun = time.process_time()
    with pytest.raises(BinaryError, match="overlap"):
        read(many)
    assert time.process_time() - begun < 5
    assert read(library(MadeLibrary(undefined=[long] * 3)))


@each(
    ("machine", "path", "here", "foreign"),
    [
        (183, "x/_C.so", "x86_64", True),
        (62, "x/_C.so", "x86_64", False),
        (183, "x/aarch64/_C.so", "x86_64", False),
        (183, "x/_C.cpython-312-x86_64-linux-gnu.so", "x86_64", True),
        (243, "x/_C.so", "x86_64", True),
        (62, "x/_C.so", "riscv64", False),
    ],
)
def test_a_library_for_another_machine_is_foreign(machine: int, path: str, here: str, *, foreign: bool) -> None:
    assert is_foreign(read_library(io.BytesIO(library(MadeLibrary(machine=machine))), path), here) is foreign


def real_libraries() -> Iterator[Path]:
    """Yield libraries of this machine and of installed packages; small ones, because pyelftools is slow."""
    own = [*Path("/usr/lib/x86_64-linux-gnu").glob("*.so*"), *Path("/usr/lib/aarch64-linux-gnu").glob("*.so*")]
    installed = [p for place in sys.path if "site-packages" in place for p in Path(place).rglob("*.so*")]
    small = [p for p in (*sorted(own), *sorted(installed)) if p.is_file() and not p.is_symlink()]
    elf = [p for p in small if p.stat().st_size < 1 << 20 and p.read_bytes()[:5] == b"\x7fELF\2"]
    yield from elf[:: max(len(elf) // 30, 1)]


def test_real_libraries_are_read_as_pyelftools_reads_them() -> None:
    compared = 0
    for path in real_libraries():
        with path.open("rb") as file:
            ours, theirs = Elf(file), ELFFile(file)
            dynamic: Any
            symbols: Any
            dynamic, symbols = theirs.get_section_by_name(".dynamic"), theirs.get_section_by_name(".dynsym")
            if dynamic is None or symbols is None:
                continue
            needed = [tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
            assert list(ours.dynamic().needed) == needed, path
            bindings = {"STB_GLOBAL", "STB_WEAK", "STB_LOOS"}
            undefined = {
                s.name
                for s in symbols.iter_symbols()
                if s.name and s.entry.st_shndx == "SHN_UNDEF" and s.entry.st_info.bind in bindings
            }
            assert {s.name for s in ours.symbols() if not s.defined} == undefined, path
            section: Any = theirs.get_section_by_name(".gnu.version_r")
            rows = section.iter_versions() if section is not None else []
            expected = {aux.name for _, auxiliaries in rows for aux in auxiliaries if not aux.entry.vna_flags & 2}
            assert ours.versions() == expected, path
            compared += 1
    assert compared >= 20


NEW, OLD = "libtorch C++ (cxx11abi=1)", "libtorch C++ (cxx11abi=0)"
STABLE, NONE = "torch stable ABI", "no torch symbols"
MIXED = f"mixed: some libraries on the stable ABI, others {NEW}"


@each(
    ("symbols", "answer"),
    [
        (["_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"], NEW),
        (["_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"], OLD),
        (["_ZN3c105ErrorC2ENS_14SourceLocationESs"], OLD),
        (["aoti_torch_delete_tensor_object", "torch_call_dispatcher"], STABLE),
        (["aoti_torch_delete_tensor_object", "_ZN3c1019UndefinedTensorImpl10_singletonE"], MIXED),
        (["malloc", "_ZNSt6vectorIN2at6TensorEE", "torchcodec_open", "_ZN10torchcodec4OpenEv", "cudaMalloc"], NONE),
        ([], NONE),
    ],
)
def test_how_a_library_binds_is_known_by_its_symbols(symbols: list[str], answer: str) -> None:
    assert abi(symbols) == answer


@each(
    ("symbol", "torchs"),
    [
        ("_ZTVN3c1010TensorImplE", True),
        ("_ZNK2at6Tensor4itemIaEET_v", True),
        ("_ZN6caffe28TypeMeta26_typeMetaDataInstanceEv", True),
        ("THPVariable_Wrap", True),
        ("_ZN5torchaudio4loadEv", False),  # a namespace of five letters that begins so is none of torch's
        ("_ZN10torchaudio4loadEv", False),
        ("torch", False),
    ],
)
def test_only_names_in_torchs_own_namespaces_are_torchs(symbol: str, *, torchs: bool) -> None:
    assert symbol_is_torchs(symbol) is torchs


def test_a_wheel_of_both_kinds_is_mixed() -> None:
    assert together([NONE, STABLE, NEW]) == together([MIXED, STABLE]) == together([MIXED, NEW]) == MIXED
    assert (together([NEW, NONE]), together([STABLE]), together([])) == (NEW, STABLE, NONE)


@each(("library", "majors"), CASES["names of libraries"])
def test_a_library_names_its_cuda(library: str, majors: list[str]) -> None:
    assert cuda_majors([library, "libc.so.6"]) == majors
    assert is_nvidias(library)
    assert not is_torch_library(library)


def test_the_drivers_libraries_and_torchs_are_told_apart_from_nvidias_packages() -> None:
    assert is_nvidias("libnvjpeg-1a359ba7.so.13.0.1.86")
    assert not is_nvidias("libcuda.so.1")
    assert is_drivers("libcuda.so.1")
    assert is_torch_library("libtorch_cuda.so")
    assert is_torch_library("libc10.so")
    assert not is_torch_library("libtorchaudio.so")
