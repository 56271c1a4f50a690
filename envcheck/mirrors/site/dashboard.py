"""The site's Grafana dashboard. Tests check its structure and every query, but not in a real Grafana."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Final

_WIDTH: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_JUDGED: Final = 'outcome=~"ok|error|truncated"'


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel: `queries` map legends to PromQL; it turns red above `limit`, or below it if `below` is set."""

    title: str
    unit: str
    queries: dict[str, str]
    kind: str = "timeseries"
    limit: float | None = None
    below: bool = False
    width: int = 12


def _stat(title: str, unit: str, query: str, limit: float, *, below: bool = False) -> Panel:
    return Panel(title, unit, {"value": query}, kind="stat", limit=limit, below=below, width=6)


_DOWNLOADS: Final = "envcheck_mirror:download_success:ratio1h"
_AGE: Final = "max(time() - envcheck_mirror_sync_success_timestamp_seconds)"
PANELS: Final = (
    _stat("Whole downloads of the last hour", "percentunit", _DOWNLOADS, 0.999, below=True),
    _stat("Rate of large files", "Bps", "envcheck_mirror:download_rate:bytes_per_second", 50e6, below=True),
    _stat("Disk used", "percentunit", "max(envcheck_mirror:storage_used:ratio)", 0.85),
    _stat("Oldest copy", "s", _AGE, 36 * 3600),
    Panel(
        "Requests by outcome", "reqps", {"{{outcome}}": "sum by (outcome) (rate(envcheck_mirror_requests_total[5m]))"}
    ),
    Panel(
        "Failures of the mirror",
        "reqps",
        {"{{outcome}}": 'sum by (outcome) (rate(envcheck_mirror_downloads_total{outcome=~"error|truncated"}[5m]))'},
    ),
    Panel("Bytes sent", "Bps", {"{{part}}": "sum by (part) (rate(envcheck_mirror_sent_bytes_total[5m]))"}),
    Panel(
        "Answered from the cache",
        "percentunit",
        {
            "{{part}}": 'sum by (part) (rate(envcheck_mirror_responses_total{cache="HIT"}[5m])) '
            '/ sum by (part) (rate(envcheck_mirror_responses_total{cache!="NONE"}[5m]))'
        },
    ),
    Panel(
        "Downloads that count",
        "short",
        {"an hour's": f"sum(increase(envcheck_mirror_downloads_total{{{_JUDGED}}}[1h]))"},
    ),
)


def dashboard() -> str:
    """Return the site's dashboard."""
    return document("envcheck-mirror", "envcheck mirror", PANELS)


def document(uid: str, title: str, panels: Sequence[Panel]) -> str:
    """Return a dashboard as JSON that Grafana imports; the panels stand side by side in rows 24 wide."""
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    content = {
        "uid": uid,
        "title": title,
        "tags": ["envcheck"],
        "schemaVersion": 38,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {"list": [source]},
        "panels": _placed(panels),
    }
    return json.dumps(content, indent=2) + "\n"


def _placed(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    placed, x, y = [], 0, 0
    for number, panel in enumerate(panels, 1):
        height = 4 if panel.kind == "stat" else 8
        placed.append({**_panel(panel), "id": number, "gridPos": {"x": x, "y": y, "w": panel.width, "h": height}})
        x += panel.width
        if x >= _WIDTH:
            x, y = 0, y + height
    return placed


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + n), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
        for n, (legend, expr) in enumerate(panel.queries.items())
    ]
    defaults = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": _steps(panel)}}
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }


def _steps(panel: Panel) -> list[dict[str, Any]]:
    good, bad = ("red", "green") if panel.below else ("green", "red")
    first: list[dict[str, Any]] = [{"color": good if panel.limit is not None else "green", "value": None}]
    return first if panel.limit is None else [*first, {"color": bad, "value": panel.limit}]
