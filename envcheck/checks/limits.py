"""What values have to reach, as data (`limits.json`), each with its source, unit and date. Standard library only.

A row is chosen by `check` and by whatever else it holds of `gpu`, `transport`, `gpus` and `pcie` (the generation of 16
lanes). `fail` and `warn` are bounds; `spec` is what the maker states, `ceiling` what physics allows. `measurements` are
public figures of healthy machines, which every floor lies below. A row whose figures come from fewer than two
repositories says `verified: false`, and then only warns; so does a share of the data sheet, for a GPU without a row.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from envcheck.checks import Limit, Outcome, too_slow, warned

FILE = Path(__file__).with_name("limits.json")
_AXES = ("gpu", "transport", "gpus", "pcie")
# Rows of PCIe are for this many lanes.
LANES = 16


@functools.cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return data


@functools.cache
def rows() -> tuple[dict[str, Any], ...]:
    """Return every row of the file; its source names its measurements."""
    return tuple(_quoted(row) for row in _data()["limits"])


def _quoted(row: dict[str, Any]) -> dict[str, Any]:
    figures = ", ".join(f"{one['value']:g} ({one['source']})" for one in row.get("measurements") or [])
    return {**row, "source": f"{row['source']}; measured: {figures}"} if figures else row


def find(check: str, **where: Any) -> dict[str, Any] | None:
    """Return the row for this check at this place (a list matches its members), else by the data sheet, or None."""
    found = next((row for row in rows() if row["check"] == check and _matches(row, where)), None)
    return found or by_data_sheet(check, where.get("gpu"))


def by_data_sheet(check: str, gpu: Any) -> dict[str, Any] | None:
    """Return a floor that no healthy board is known to miss: a share of what the maker states, which only warns."""
    shares, row = _data()["shares"], next((row for row in _data()["peaks"] if gpu in row["gpu"] and check in row), None)
    if row is None:
        return None
    share = shares.get(check) or row.get("share", shares["gemm"])
    floor, unit = round(row[check] * share, 1), "GB/s" if check == "hbm-copy" else "TFLOP/s"
    source = f"{share:.0%} of the data sheet's {row[check]:g}, as nobody has published a figure ({row['source']})"
    bounds = {"fail": floor, "warn": floor, "spec": row[check], "ceiling": row[check] * shares["ceiling"]}
    return {"check": check, **bounds, "unit": unit, "source": source, "verified": False}


def limit(check: str, bound: str, **where: Any) -> Limit:
    """Return the bound "fail" or "warn" of the one row there has to be. Raises KeyError where there is none."""
    row = find(check, **where)
    if row is None:
        raise KeyError(check)
    return Limit(row[bound], row["unit"], row["source"], row.get("kind", "at least"))


def pcie(check: str, generation: Any, lanes: Any) -> dict[str, Any] | None:
    """Return the row for a PCIe link of so many lanes, its figures scaled to them, or None for a link without a row."""
    row = find(check, pcie=generation)
    if row is None or not isinstance(lanes, int) or not 0 < lanes <= LANES:
        return None
    share = lanes / LANES
    scaled = {key: round(row[key] * share, 2) for key in ("fail", "warn", "spec", "ceiling")}
    return {**row, **scaled, "source": f"{row['source']}; here x{lanes} of generation {generation}"}


def of_rate(check: str, rate: float, note: str = "", **where: Any) -> dict[str, Any] | None:
    """Return the row whose bounds are shares, as GB/s of this rate, or None where there is none."""
    row = find(check, **where)
    if row is None:
        return None
    scaled: dict[str, Any] = {
        bound: round(row[bound] * rate, 2) for bound in ("fail", "warn", "ceiling") if bound in row
    }
    return {**row, **scaled, "unit": "GB/s", "source": f"{row['source']}; here {note or f'of {rate:g} GB/s'}"}


def verified(row: dict[str, Any]) -> bool:
    """Return whether a row rests on at least two public sources, so that it may fail a machine."""
    return row.get("verified") is not False


def short(
    row: dict[str, Any], value: float, shown: str, *, fix: str, cause: str = "", share: float = 1.0, **about: Any
) -> Outcome | None:
    """Return the finding that a value is below a row's bounds, or None. A row that is not verified only warns.

    `shown` names the value; `cause` follows it. `share` scales the floor, for a GPU that is capped on purpose.
    """
    floor, advice = (Limit(row[bound], row["unit"], row["source"]) for bound in ("fail", "warn"))
    if value >= advice.value:
        return None
    judged: dict[str, Any] = {"fix": fix, "value": value, **about}
    if value >= floor.value * share:
        return warned(f"{shown}: low{cause}", limit=advice, code="speed.low", **judged)
    floor = _scaled(floor, share)
    if not verified(row):
        text = f"{shown}: slow{cause}; the limit is unverified (fewer than two public sources), so it only warns"
        return warned(text, limit=floor, code="speed.unverified", **judged)
    return too_slow(f"{shown}: slow{cause}", limit=floor, code="speed.slow", **judged)


def _scaled(floor: Limit, share: float) -> Limit:
    if share == 1:
        return floor
    why = f"{floor.source}; times {share:.2f} for the cap: speed falls as clocks do, and less than power does (ours)"
    return Limit(round(floor.value * share, 1), floor.unit, why, floor.kind)


def _matches(row: dict[str, Any], where: dict[str, Any]) -> bool:
    held = ((row[axis], where.get(axis)) for axis in _AXES if axis in row)
    return all(value in allowed if isinstance(allowed, list) else value == allowed for allowed, value in held)
