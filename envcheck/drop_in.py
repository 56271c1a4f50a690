"""Packages to which a file is added: every module but `registry` is one of a kind, under its own name."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Final, TypeVar

# The module of such a package that is none of its kind.
_APART: Final = "registry"
Kind = TypeVar("Kind")


def names(package: ModuleType) -> tuple[str, ...]:
    """Return the name of each of the package's modules, sorted; none of them is imported."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.name != _APART))


def named(package: ModuleType, name: str, attribute: str, kind: type[Kind]) -> Kind:
    """Return what the module of that name holds as `attribute`. Raises TypeError where it is not of that kind."""
    value = getattr(importlib.import_module(f"{package.__name__}.{name}"), attribute)
    if not isinstance(value, kind):
        message = f"{package.__name__}.{name}.{attribute} is no {kind.__name__}"
        raise TypeError(message)
    return value
