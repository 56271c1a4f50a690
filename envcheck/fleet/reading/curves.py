"""The bandwidth curves of a report: what the page of a fleet lays over each other."""

from __future__ import annotations

from typing import Final

import msgspec

from envcheck.fleet.reading.report_parts import OutcomePart

# GB/s by message size in bytes, by rising size.
CurvePoints = list[tuple[float, float]]
LONGEST_NAME: Final = 120


class _PointRow(msgspec.Struct):
    size: float = msgspec.field(name="bytes")
    busbw: float | None = None
    algbw: float | None = None


_CURVE: Final = msgspec.json.Decoder(list[_PointRow])
_CURVES: Final = msgspec.json.Decoder(dict[str, list[_PointRow]])


def curves_of(outcomes: list[OutcomePart]) -> dict[str, CurvePoints]:
    """Return each check's curves by name: "all-reduce-bandwidth", or "collective-bandwidth: broadcast"."""
    curves = {}
    for outcome in outcomes:
        details = outcome.details
        try:
            one = {outcome.id: _CURVE.decode(details.curve)} if bytes(details.curve) else {}
            several = _CURVES.decode(details.curves) if bytes(details.curves) else {}
        except msgspec.DecodeError:
            continue
        named = one | {f"{outcome.id}: {name}": rows for name, rows in several.items()}
        for name, rows in named.items():
            points = sorted((row.size, _rate(row)) for row in rows if row.size >= 1 and _rate(row) > 0)
            if len(points) > 1:
                curves[name[:LONGEST_NAME]] = points
    return curves


def _rate(row: _PointRow) -> float:
    return row.busbw or row.algbw or 0.0
