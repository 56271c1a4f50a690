"""Bytes, as people write them."""

from __future__ import annotations

import re
from typing import Any, Final

import click

_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class Size(click.ParamType[int]):
    """Bytes: 50G or 50g is 50 thousand million."""

    name = "size"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return bytes; none only where that is a wish that can be had."""
        found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([KMGT]?)B?", str(value).upper())
        size = int(float(found[1]) * _UNITS[found[2]]) if found else -1
        if size < (0 if self._zero else 1):
            self.fail(f"{value!r} is no size; write 50G for 50 000 000 000 bytes", param, ctx)
        return size
