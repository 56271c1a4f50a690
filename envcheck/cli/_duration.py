"""A time as people type it."""

from __future__ import annotations

import re
from typing import Final

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
        if seconds <= 0:
            self.fail(f"{value!r} is no time: write 90s, 10m or 2h", param, ctx)
        return seconds
