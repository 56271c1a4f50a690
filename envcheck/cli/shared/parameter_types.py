"""Values of options as people type them (a time, a size, a rate, an architecture), and what a shell offers for them."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click

from envcheck.cli.options import EXISTING_DIRECTORY, Option
from envcheck.errors import EnvcheckError

if TYPE_CHECKING:
    from envcheck.matrix.facts.model import HostArch

# Host architectures as people and Docker name them.
ARCHS: Final[dict[str, HostArch]] = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)", re.ASCII)
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([KMGT]?)B?")
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_LARGEST_UNITS: Final = dict(reversed(_UNITS.items()))


class Duration(click.ParamType[float]):
    """Seconds, from "90", "90s", "10m", "2h" or "1d"; more than 0."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; anything else is a usage error."""
        match = _TIME.fullmatch(str(value).strip())
        seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is not a time: write 90s, 10m, 2h or 1d", param, ctx)
        return seconds

    @staticmethod
    def written(seconds: float | None) -> str | None:
        """Return seconds as people type them: 600 is "10m"."""
        return None if seconds is None else _written(seconds, {"d": 86400, "h": 3600, "m": 60, "s": 1})


class FiniteRange(click.FloatRange):
    """A number within bounds: NaN and infinity are refused, which click's own type takes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; anything else is a usage error."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class Size(click.ParamType[int]):
    """Bytes, from "50G" or "50g": 50 thousand million. 0 is taken only with `zero`."""

    name = "size"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return bytes; anything else is a usage error."""
        size = int(_bytes(value))
        if size < (0 if self._zero else 1):
            self.fail(f"{value!r} is not a size; write 50G for 50 000 000 000 bytes", param, ctx)
        return size

    @staticmethod
    def written(size: int | None) -> str | None:
        """Return bytes as people type them: 128000000 is "128M"."""
        return None if size is None else _written(size, _LARGEST_UNITS)


class ByteRate(click.ParamType[float]):
    """Bytes a second, from "50M": 50 million."""

    name = "rate"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return bytes a second; anything else is a usage error."""
        rate = _bytes(value)
        if rate < 1:
            self.fail(f"{value!r} is no rate; write 50M for 50 million bytes a second", param, ctx)
        return rate

    written = staticmethod(Size.written)


def _written(number: float, units: dict[str, int]) -> str:
    """Return a number in the largest unit of which it is a whole multiple."""
    sign, factor = next(((sign, factor) for sign, factor in units.items() if number and number % factor == 0), ("", 1))
    return f"{number / factor:.15g}{sign}"


def _bytes(value: object) -> float:
    """Return a number of bytes; -1 if the text is not a size."""
    match = _BYTES.fullmatch(str(value).upper())
    return float(match[1]) * _UNITS[match[2]] if match else -1.0


def architecture(platform: str) -> HostArch:
    """Return the architecture of a platform as engines write it; "auto" is this machine's."""
    machine = os.uname().machine if platform == "auto" else platform
    return "aarch64" if machine in {"aarch64", "arm64", "linux/arm64"} else "x86_64"


def complete_cells(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the published cells that begin so; none where the matrix cannot be read: a shell is no place to say it."""
    from envcheck.matrix.file.load import load

    try:
        published = load(ctx.find_root().params.get("matrix")).cells()
    except (EnvcheckError, OSError):
        return []
    return [str(cell) for cell in published if str(cell).startswith(incomplete)]


def complete_checks(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the checks that begin so, a site's own with them; what is no check is left out."""
    from envcheck.runner.planning import discover

    try:
        modules = discover(ctx.params.get("checks"), lambda _error: None)
    except (EnvcheckError, OSError):
        return []
    return [f.id for f in modules if f.id.startswith(incomplete)]


ImagesDirectory = Annotated[Path | None, Option("--images", "Where the cells are. [images/]", type=EXISTING_DIRECTORY)]
