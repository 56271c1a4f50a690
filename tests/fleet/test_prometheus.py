"""What Prometheus and Grafana can rely on: `fleet report --prometheus`, the alert rules over it and the dashboard."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from envcheck.cli import cli
from envcheck.fleet.launch_files import PANELS
from envcheck.reports.formats.prometheus import prometheus
from envcheck.reports.model import load
from tests.fleet.node_reports import RECORDED, failing, node_report, outcome_of, write

METRIC = re.compile(r"envcheck_\w+(?::\w+)*")


def fleet(*words: str) -> None:
    """Run a command of the group."""
    result = CliRunner().invoke(cli, ["--quiet", "fleet", *words])
    assert isinstance(result.exception, (SystemExit, type(None))), result.exception


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the metrics of a fleet with every kind of fault, and hostile names."""
    at = tmp_path_factory.mktemp("fleet")
    nodes = {f"n{number}": node_report(f"n{number}", gemm_throughput=700.0 + number) for number in range(1, 15)}
    uuid = nodes["n3"]["snapshot"]["gpus"][0]["uuid"]
    failing(nodes["n3"], culprit=f"GPU 0 ({uuid})")
    outcome_of(nodes["n5"], "gemm-throughput")["value"] = 400.0
    nodes["n7"]["snapshot"]["signals"]["host.kernel"]["value"] = 'old"\n\\'
    nodes["n8"]["ended"] = ""
    nodes["n9"]["started"] = nodes["n9"]["ended"] = "2001-01-01T00:00:00+00:00"
    hostile = node_report('x"\n\\{} 1')
    write(at, *nodes.values())
    (at / "hostile.json").write_text(json.dumps(hostile))
    (at / "junk.json").write_text("hello")
    fleet("report", str(at), "--expect", "n[1-16]", "--max-age", "90000h", "--prometheus", str(at / "fleet.prom"))
    return (at / "fleet.prom").read_text()


@pytest.fixture(scope="module")
def monitoring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where rules.yml and dashboard.json are rendered."""
    at = tmp_path_factory.mktemp("monitoring")
    fleet("render", "prometheus", "-o", str(at))
    return at


def test_the_numbers_are_those_of_the_answer(metrics: str) -> None:
    lines = metrics.splitlines()
    states = {"pass": 11, "fail": 1, "error": 2, "missing": 2, "stale": 1}
    for state, count in states.items():
        assert f'envcheck_fleet_nodes{{state="{state}"}} {float(count)}' in lines
    assert 'envcheck_fleet_verdict{status="fail"} 1.0' in lines
    assert 'envcheck_fleet_node_unfit{node="n3",state="fail"} 1.0' in lines
    assert 'envcheck_fleet_node_unfit{node="n1",state="pass"} 1.0' not in lines
    assert 'envcheck_fleet_drift_nodes{signal="host.kernel"} 1.0' in lines
    assert 'envcheck_fleet_files{kind="ignored"} 1.0' in lines
    assert any(re.match(r'envcheck_fleet_outlier_score\{node="n5",check="gemm-throughput".*\} -', one) for one in lines)
    assert any(
        re.match(r'envcheck_fleet_failed_check\{node="n3",gpu="GPU-.*code="speed.slow"\} 1.0', one) for one in lines
    )


def test_the_parser_of_prometheus_reads_every_line_and_hostile_names_as_they_are(metrics: str) -> None:
    families = {family.name: family for family in text_string_to_metric_families(metrics)}
    samples = [sample for family in families.values() for sample in family.samples]
    assert len(samples) == sum(not line.startswith("#") for line in metrics.splitlines())
    assert all(family.documentation and family.type == "gauge" for family in families.values())
    unfit = {sample.labels["node"] for sample in families["envcheck_fleet_node_unfit"].samples}
    assert 'x"\n\\{} 1' in unfit


def test_rules_and_dashboard_ask_for_metrics_that_exist(metrics: str, monitoring: Path) -> None:
    exported = set(re.findall(r"(?m)^# TYPE (\S+)", metrics + prometheus(load(RECORDED / "h100x8-slow-gpu.json"))))
    rules = (monitoring / "rules.yml").read_text()
    recorded = set(re.findall(r"- record: (\S+)", rules))
    expressions = " ".join(re.findall(r"(?m)expr: (.*)$", rules))
    queries = " ".join(query for panel in PANELS for query in panel.queries.values())
    assert recorded
    used = set(METRIC.findall(f"{expressions} {queries}"))
    assert used <= exported | recorded
    assert {one for one in exported if one.startswith("envcheck_fleet")} - used <= {
        "envcheck_fleet_info",
        "envcheck_fleet_verdict",
        "envcheck_fleet_drifting_signals",
        "envcheck_fleet_outliers",
    }


def test_the_dashboard_is_what_grafana_imports(monitoring: Path) -> None:
    schema = str(RECORDED.parent / "grafana-dashboard.schema.json")
    judge = [sys.executable, "-m", "check_jsonschema", "--schemafile", schema, str(monitoring / "dashboard.json")]
    done = subprocess.run(judge, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.promtool
def test_promtool_finds_nothing_to_say(metrics: str, promtool: str) -> None:
    done = subprocess.run([promtool, "check", "metrics"], input=metrics, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.promtool
def test_every_query_and_rule_is_promql(monitoring: Path, tmp_path: Path, promtool: str) -> None:
    queries = [query for panel in PANELS for query in panel.queries.values()]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    for path in (tmp_path / "queries.yml", monitoring / "rules.yml"):
        done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


# Each alert with a series that fires it and one that is just not enough.
ALERTS = {
    "FleetNodeFailed": (
        'envcheck_fleet_node_unfit{node="n3",state="fail"} 1',
        'envcheck_fleet_node_unfit{node="n3",state="stale"} 1',
    ),
    "FleetNodeUndetermined": (
        'envcheck_fleet_node_unfit{node="n3",state="missing"} 1',
        'envcheck_fleet_node_unfit{node="n3",state="fail"} 1',
    ),
    "FleetOutlier": ('envcheck_fleet_outlier_score{node="n3"} -8.1', 'envcheck_fleet_outlier_score{node="n3"} -8'),
    "FleetDrift": ('envcheck_fleet_drift_nodes{signal="a"} 1', 'envcheck_fleet_drift_nodes{signal="a"} 0'),
    "FleetReportOld": ("envcheck_fleet_timestamp_seconds 1", "envcheck_fleet_timestamp_seconds 1801"),
    "FleetReportAbsent": ("up 1", "envcheck_fleet_timestamp_seconds 1801"),
    "NodeCheckFailed": ('envcheck_check_status{status="fail"} 1', 'envcheck_check_status{status="fail"} 0'),
    "NodeRunUndetermined": ('envcheck_run_verdict{verdict="error"} 1', 'envcheck_run_verdict{verdict="fail"} 1'),
}


def cases() -> Iterator[dict[str, Any]]:
    """Yield promtool's test of each alert an hour after the first sample: it fires once, or not at all."""
    for alert, series in ALERTS.items():
        for fires, text in zip((True, False), series, strict=True):
            name, _, value = text.rpartition(" ")
            expression = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
            sample = {"labels": "{}", "value": float(fires)}
            yield {
                "interval": "1m",
                "input_series": [{"series": name, "values": f"{value}+0x60"}],
                "promql_expr_test": [{"expr": expression, "eval_time": "1h", "exp_samples": [sample]}],
            }
    for passed, fires in ((4, True), (5, False)):
        counts = {"pass": passed, "stale": 10 - passed}
        yield {
            "interval": "1m",
            "input_series": [
                {"series": f'envcheck_fleet_nodes{{state="{state}"}}', "values": f"{count}+0x60"}
                for state, count in counts.items()
            ],
            "promql_expr_test": [
                {
                    "expr": 'count(ALERTS{alertname="FleetHalfUnfit"}) or vector(0)',
                    "eval_time": "1h",
                    "exp_samples": [{"labels": "{}", "value": float(fires)}],
                }
            ],
        }


@pytest.mark.promtool
def test_each_alert_fires_where_it_must_and_only_there(monitoring: Path, tmp_path: Path, promtool: str) -> None:
    alerts = set(re.findall(r"- alert: (\S+)", (monitoring / "rules.yml").read_text()))
    assert alerts == {*ALERTS, "FleetHalfUnfit"}
    document = {"rule_files": [str(monitoring / "rules.yml")], "tests": [*cases()]}
    (tmp_path / "tests.yml").write_text(json.dumps(document))
    done = subprocess.run([promtool, "test", "rules", str(tmp_path / "tests.yml")], capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
