"""What values have to reach, as data (`limits.json`), each with its source, unit and date. Standard library only.

A row is chosen by `check` and by whatever else it holds of `gpu`, `transport` and `gpus`. `fail` and `warn` are bounds;
`spec` is what the maker states, `measured` what somebody saw, `ceiling` what physics allows.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from envcheck.checks import Limit

FILE = Path(__file__).with_name("limits.json")
_AXES = ("gpu", "transport", "gpus")


@functools.cache
def rows() -> tuple[dict[str, Any], ...]:
    """Return every row of the file."""
    return tuple(json.loads(FILE.read_text(encoding="utf-8"))["limits"])


def find(check: str, **where: Any) -> dict[str, Any] | None:
    """Return the row for this check at this place, or None; a list in a row matches any of its members."""
    return next((row for row in rows() if row["check"] == check and _matches(row, where)), None)


def limit(check: str, bound: str, **where: Any) -> Limit:
    """Return the bound "fail" or "warn" of the one row there has to be. Raises KeyError where there is none."""
    row = find(check, **where)
    if row is None:
        raise KeyError(check)
    return Limit(row[bound], row["unit"], row["source"], row.get("kind", "at least"))


def _matches(row: dict[str, Any], where: dict[str, Any]) -> bool:
    held = ((row[axis], where.get(axis)) for axis in _AXES if axis in row)
    return all(value in known if isinstance(known, list) else value == known for known, value in held)
