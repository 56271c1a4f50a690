"""Where the files that ship with envcheck are: the checkout's top level, or the wheel's `_data`. Drop-in packages."""

from __future__ import annotations

import importlib
import os
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Final, TypeVar

from envcheck.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent
# The module of such a package that is none of its kind.
_APART: Final = "registry"
Kind = TypeVar("Kind")


def data_path(name: str) -> Path:
    """Return the shipped `matrix.yaml`, `templates` or `images`, preferring the wheel's copy."""
    packed = _PACKAGE / "_data" / name
    return packed if packed.exists() else _PACKAGE.parent / name


def own_images() -> Path:
    """Return the images/ that may be written: the checkout's. An installed package's own data is left as it is."""
    if (_PACKAGE / "_data").exists():
        message = "this envcheck is installed, its images/ are not yours to change"
        raise ConfigError(message, fix="give --images DIR, or work in a checkout")
    return data_path("images")


def state_path(*parts: str) -> Path:
    """Return a path below where environments and logs are kept: $ENVCHECK_HOME, else the user's data directory."""
    home = os.environ.get("ENVCHECK_HOME")
    if home:
        return Path(home, *parts)
    return xdg("XDG_DATA_HOME", ".local/share").joinpath("envcheck", *parts)


def xdg(variable: str, default: str) -> Path:
    """Return one of the user's base directories; a relative one is to be ignored (XDG Base Directory, 0.8)."""
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / default


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
