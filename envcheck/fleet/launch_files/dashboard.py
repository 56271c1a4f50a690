"""The Grafana dashboard of a fleet, over the metrics of `fleet report --prometheus`."""

from __future__ import annotations

from typing import Final

from envcheck.mirrors.site.dashboard import Panel, document

PANELS: Final = (
    Panel(
        "Share of nodes that passed",
        "percentunit",
        {"passed": 'sum(envcheck_fleet_nodes{state="pass"}) / sum(envcheck_fleet_nodes)'},
        kind="stat",
        limit=0.99,
        below=True,
        width=6,
    ),
    Panel("Failed", "short", {"nodes": 'sum(envcheck_fleet_nodes{state="fail"})'}, kind="stat", limit=1, width=6),
    Panel(
        "Missing, stale or undetermined",
        "short",
        {"nodes": 'sum(envcheck_fleet_nodes{state=~"missing|stale|error"})'},
        kind="stat",
        limit=1,
        width=6,
    ),
    Panel(
        "Age of this answer",
        "s",
        {"age": "time() - max(envcheck_fleet_timestamp_seconds)"},
        kind="stat",
        limit=7200,
        width=6,
    ),
    Panel("Nodes by state", "short", {"{{state}}": "sum by (state) (envcheck_fleet_nodes)"}),
    Panel("Nodes that are not fit", "short", {"{{node}} {{state}}": "envcheck_fleet_node_unfit"}),
    Panel("Failed checks", "short", {"{{check}} {{code}}": "count by (check, code) (envcheck_fleet_failed_check)"}),
    Panel(
        "Failed checks by GPU",
        "short",
        {"{{node}} {{gpu}}": 'count by (node, gpu) (envcheck_fleet_failed_check{gpu!=""})'},
    ),
    Panel(
        "Values far from their group (z)", "short", {"{{node}} {{check}}": "abs(envcheck_fleet_outlier_score)"}, limit=8
    ),
    Panel("Signals in which nodes differ", "short", {"{{signal}}": "envcheck_fleet_drift_nodes"}),
    Panel("Nodes by kind", "short", {"{{gpu}} {{cell}} {{driver}}": "envcheck_fleet_group_nodes"}),
    Panel("Files that are no reports", "short", {"{{kind}}": 'envcheck_fleet_files{kind!="report"}'}),
)


def dashboard() -> str:
    """Return the dashboard as JSON that Grafana imports."""
    return document("envcheck-fleet", "envcheck fleet", PANELS)
