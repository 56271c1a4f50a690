"""What a signal's value may be: each type is a function that tells whether a value fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

ValueType = Callable[[Any], bool]
_MOST: Final = float(1 << 64)
_VERSION: Final = re.compile(r"\d+(\.\d+)*\S*")
_CAPABILITY: Final = re.compile(r"\d+\.\d+")


def number(value: Any) -> bool:
    """Tell whether it is a number that is not negative."""
    return signed(value) and bool(value >= 0)


def signed(value: Any) -> bool:
    """Tell whether it is a number; what has more than 64 bits counts or measures nothing."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_MOST < value < _MOST


def whole(value: Any) -> bool:
    """Tell whether it counts something."""
    return number(value) and int(value) == value


def index(value: Any) -> bool:
    """Tell whether it is a number of something, or -1 for none."""
    return whole(value) or (signed(value) and value == -1)


def text(value: Any) -> bool:
    """Tell whether it is text that says something."""
    return isinstance(value, str) and bool(value)


def string(value: Any) -> bool:
    """Tell whether it is text, which may be empty."""
    return isinstance(value, str)


def flag(value: Any) -> bool:
    """Tell whether it is true or false."""
    return isinstance(value, bool)


def version(value: Any) -> bool:
    """Tell whether it begins as versions do."""
    return isinstance(value, str) and bool(_VERSION.fullmatch(value))


def capability(value: Any) -> bool:
    """Tell whether it is a compute capability, "9.0"."""
    return isinstance(value, str) and bool(_CAPABILITY.fullmatch(value))


def unlimited(value: Any) -> bool:
    """Tell whether it is a limit: a number, or "unlimited"."""
    return value == "unlimited" or number(value)


def one_of(*words: str) -> ValueType:
    """Return the type of one of these words."""
    return lambda value: isinstance(value, str) and value in words


def maybe(type_: ValueType) -> ValueType:
    """Return the type of what may be none."""
    return lambda value: value is None or type_(value)


def listed(type_: ValueType) -> ValueType:
    """Return the type of a list of such."""
    return lambda value: isinstance(value, list) and all(map(type_, value))


def mapped(type_: ValueType) -> ValueType:
    """Return the type of such, by name."""
    return lambda value: isinstance(value, Mapping) and all(isinstance(k, str) and type_(v) for k, v in value.items())


def fields(**types: ValueType) -> ValueType:
    """Return the type of an object with at least these fields."""
    return lambda value: (
        isinstance(value, Mapping) and all(name in value and type_(value[name]) for name, type_ in types.items())
    )
