"""Turn a mangled C++ name into the one of the source, through the demangler that this machine's libstdc++ has.

`abi::__cxa_demangle` is part of the C++ runtime that torch itself needs (Itanium C++ ABI, 3.4), so that no program
(c++filt) is needed where torch is installed.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

_FUNCTION = "__cxa_demangle"
_RUNTIMES = ("libstdc++.so.6", "libc++abi.so.1")
# Characters of a name that is demangled: names come from files that nobody vouches for.
_LONGEST = 4096


class _Demangler(NamedTuple):
    convert: Any
    free: Any

    def __call__(self, mangled: str) -> str | None:
        status = ctypes.c_int(0)
        text = self.convert(mangled.encode(), None, None, ctypes.byref(status))
        if not text:
            return None
        try:
            return ctypes.string_at(text).decode("utf-8", "replace")
        finally:
            self.free(text)


@functools.lru_cache(1)
def _demangler() -> _Demangler | None:
    for name in _RUNTIMES:
        try:
            convert, free = getattr(ctypes.CDLL(name), _FUNCTION), ctypes.CDLL(None).free
        except (OSError, AttributeError):
            continue
        convert.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        convert.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        return _Demangler(convert, free)
    return None


def demangled(symbol: str) -> str:
    """Return the C++ name of a mangled symbol; the symbol itself if it is not mangled or nothing here demangles."""
    mangled = symbol.startswith("_Z") and "\0" not in symbol and len(symbol) <= _LONGEST
    call = _demangler() if mangled else None
    return (call(symbol) if call else None) or symbol
