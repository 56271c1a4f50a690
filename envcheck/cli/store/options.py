"""The format of a size and a version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from envcheck.counting import counted

if TYPE_CHECKING:
    from envcheck.mirrors.store.versions import VersionSummary

_UNITS: Final = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}


def format_bytes(size: int) -> str:
    """Return a size as text, in powers of a thousand."""
    for unit, factor in _UNITS.items():
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def format_version(version: VersionSummary) -> str:
    """Return one line about a version."""
    if version.error:
        return f"version {version.number:<4} {'current' if version.current else '':<8} cannot be read: {version.error}"
    content = f"{counted(version.wheels, 'wheel')}, {counted(version.models, 'model')}, {format_bytes(version.bytes)}"
    return f"version {version.number:<4} {'current' if version.current else '':<8} {content}"
