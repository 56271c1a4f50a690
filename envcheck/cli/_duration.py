"""A time as people type it, and a number that is one."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import click

_WRITTEN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}


class Duration(click.ParamType[float]):
    """Seconds, from "90", "90s", "10m" or "2h"; more than none."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; anything else is a usage error."""
        found = _WRITTEN.fullmatch(str(value).strip())
        seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is no time: write 90s, 10m or 2h", param, ctx)
        return seconds


class Finite(click.FloatRange):
    """A number within bounds: NaN lies outside of none, and infinity of few."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; anything else is a usage error."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number
