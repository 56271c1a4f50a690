"""Report formats: each module of this folder is one, under its own name, and holds a `FORMAT`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from envcheck.reports.model import RunReport


class Format(NamedTuple):
    """How a report is written. `appends`: at the end of its file, as the steps of a CI job share one summary."""

    render: Callable[[RunReport], str]
    suffix: str
    appends: bool = False


def names() -> tuple[str, ...]:
    """Return the name of each format, sorted; none of them is imported."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def named(name: str) -> Format:
    """Return the format of that name. Raises TypeError where its module has no FORMAT."""
    value = importlib.import_module(f"{__name__}.{name}").FORMAT
    if not isinstance(value, Format):
        message = f"{__name__}.{name}.FORMAT is no Format"
        raise TypeError(message)
    return value
