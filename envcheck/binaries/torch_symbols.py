"""How a library binds to torch, by the symbols it leaves undefined.

libtorch's C++ interface changes with each minor of torch; its symbols are mangled names in the namespaces c10, at,
torch and caffe2 (Itanium C++ ABI, 5.1). The stable ABI (torch/csrc/stable, torch/csrc/inductor/aoti_torch) is C:
`aoti_torch_…` and `torch_…`, and later torches keep it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_CPP = re.compile(r"_Z(?:T[ISTV]|GV|GR)?N[rVK]*[RO]?(?:3c10|2at|5torch|6caffe2)(?![a-z_])")
_STABLE = re.compile(r"(?:aoti_torch|torch)_[a-z]\w*")
_PYTHON = re.compile(r"THP[A-Z]\w*")
# A std::string of the old C++ ABI is `Ss`, of the new one `NSt7__cxx1112basic_string…` (GCC manual, Dual ABI).
_NEW_STRING, _OLD_STRING = "__cxx11", re.compile(r"Ss(?![a-z])")
STABLE, CPP, NONE = "torch stable ABI", "libtorch C++", "no torch symbols"
MIXED = "mixed: some libraries on the stable ABI, others "


def is_torchs(symbol: str) -> bool:
    """Return whether only torch's libraries would define a symbol of this name."""
    return bool(_CPP.match(symbol) or _STABLE.fullmatch(symbol) or _PYTHON.fullmatch(symbol))


def abi(undefined: Iterable[str]) -> str:
    """Return how a library binds to torch: "libtorch C++ (cxx11abi=1)", the stable ABI, both ("mixed: …"), or not."""
    symbols = [name for name in undefined if is_torchs(name)]
    cpp = [name for name in symbols if not _STABLE.fullmatch(name)]
    parts = [f"{CPP} (cxx11abi={cxx11abi(cpp)})"] if cpp else []
    return together([*parts, *([STABLE] if len(cpp) < len(symbols) else [])])


def cxx11abi(symbols: Iterable[str]) -> int:
    """Return 0 if a symbol has a std::string of the old C++ ABI, else 1, as all torch wheels since 2.7."""
    names = list(symbols)
    new = any(_NEW_STRING in name for name in names)
    return 0 if not new and any(_OLD_STRING.search(name) for name in names) else 1


def together(abis: Iterable[str]) -> str:
    """Return how several libraries bind to torch, from the answer of each."""
    answers = set(abis) - {NONE}
    cpp = ", ".join(sorted({part.removeprefix(MIXED) for part in answers} - {STABLE}))
    if not cpp:
        return STABLE if answers else NONE
    return cpp if answers <= {cpp} else MIXED + cpp
