"""What one native library needs and holds, and how it binds to torch, by the symbols it leaves undefined.

libtorch's C++ interface changes with each minor of torch; its symbols are mangled names in the namespaces c10, at,
torch and caffe2 (Itanium C++ ABI, 5.1). The stable ABI (torch/csrc/stable, torch/csrc/inductor/aoti_torch) is C:
`aoti_torch_…` and `torch_…`, and later torches keep it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

from envcheck.binaries.elf import Elf, gpu_code

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
