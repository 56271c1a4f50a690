"""Where the files that ship with envcheck are: the checkout's top level, or the wheel's `_data`."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_path(name: str) -> Path:
    """Return the shipped `matrix.yaml`, `templates` or `images`, preferring the wheel's copy."""
    packed = _PACKAGE / "_data" / name
    return packed if packed.exists() else _PACKAGE.parent / name
