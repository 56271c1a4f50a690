"""The alerts, each on both sides of its limit, judged by promtool from series of mtail and the node exporter."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envcheck.mirrors.site import render
from tests.mirrors.site.test_render import site

pytestmark = pytest.mark.promtool
HOUR = 60
PREFIX = "envcheck_mirror_"


def downloads(ok: str, error: str, truncated: str, client_abort: str) -> dict[str, str]:
    data = {"ok": ok, "error": error, "truncated": truncated, "client_abort": client_abort}
    return {f'{PREFIX}downloads_total{{outcome="{outcome}"}}': values for outcome, values in data.items()}


def rate(per_minute: float, seconds: float) -> dict[str, str]:
    return {
        f'{PREFIX}download_bytes_total{{size="large"}}': f"0+{per_minute:.0f}x180",
        f'{PREFIX}download_seconds_total{{size="large"}}': f"0+{seconds}x180",
    }


def storage(used: float) -> dict[str, str]:
    return {
        'node_filesystem_size_bytes{mountpoint="/srv",fstype="ext4"}': "1000000x180",
        'node_filesystem_avail_bytes{mountpoint="/srv",fstype="ext4"}': f"{1000000 * (1 - used):.0f}x180",
        'node_filesystem_size_bytes{mountpoint="/tmp",fstype="tmpfs"}': "1000000x180",
        'node_filesystem_avail_bytes{mountpoint="/tmp",fstype="tmpfs"}': "0x180",
    }


UP = {'up{job="envcheck-mirror", instance="127.0.0.1:8547"}': "1x300"}
CASES: list[tuple[str, dict[str, str], int, bool]] = [
    # A hundred a minute: 6000 an hour, of which six may fail.
    ("MirrorDownloadsFail", downloads("0+100x180", "0+1x180", "0x180", "0x180"), 2 * HOUR, True),
    ("MirrorDownloadsFail", downloads("0+100x180", "0x180", "0+1x180", "0x180"), 2 * HOUR, True),
    ("MirrorDownloadsFail", downloads("0+10000x180", "0+1x180", "0x180", "0x180"), 2 * HOUR, False),
    ("MirrorDownloadsFail", downloads("0+100x180", "0x180", "0x180", "0+100x180"), 2 * HOUR, False),
    ("MirrorDownloadsFail", downloads("0+2x180", "0+1x180", "0x180", "0x180"), 2 * HOUR, False),
    ("MirrorDownloadsFail", downloads("0x180", "0+10x180", "0x180", "0x180"), 2 * HOUR, True),
    ("MirrorSlow", rate(60 * 49e6, 60), 2 * HOUR, True),
    ("MirrorSlow", rate(60 * 51e6, 60), 2 * HOUR, False),
    ("MirrorSlow", rate(0, 0), 2 * HOUR, False),
    ("MirrorStorageFull", storage(0.86), HOUR, True),
    ("MirrorStorageFull", storage(0.84), HOUR, False),
    ("MirrorStale", {f'{PREFIX}sync_success_timestamp_seconds{{name="main"}}': "0x300"}, 37 * HOUR, True),
    ("MirrorStale", {f'{PREFIX}sync_success_timestamp_seconds{{name="main"}}': "0x300"}, 35 * HOUR, False),
    ("MirrorNeverSynced", UP, 37 * HOUR, True),
    ("MirrorNeverSynced", UP, 35 * HOUR, False),
    ("MirrorNeverSynced", {**UP, f'{PREFIX}sync_success_timestamp_seconds{{name="other"}}': "0x300"}, 37 * HOUR, True),
    ("MirrorNeverSynced", {**UP, f'{PREFIX}sync_success_timestamp_seconds{{name="main"}}': "0x300"}, 37 * HOUR, False),
    ("MirrorDown", {'up{job="envcheck-mirror"}': "1 1 0x180"}, HOUR, True),
    ("MirrorDown", {'up{job="envcheck-mirror"}': "1x180"}, HOUR, False),
]


def case(number: int, alert: str, series: dict[str, str], at: int) -> dict[str, Any]:
    query = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
    return {
        "name": f"{number} {alert}",
        "interval": "10m" if at > 3 * HOUR else "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{at}m", "exp_samples": [{"labels": "{}", "value": int(CASES[number][3])}]}
        ],
    }


def judged(tmp_path: Path, promtool: str, *command: str) -> subprocess.CompletedProcess[str]:
    for path, content in render(site(tmp_path)).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    return subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)


def test_every_alert_fires_on_one_side_of_its_limit_and_not_on_the_other(tmp_path: Path, promtool: str) -> None:
    tests = [case(number, alert, series, at) for number, (alert, series, at, _) in enumerate(CASES)]
    data = {"rule_files": ["prometheus/rules.yml"], "evaluation_interval": "5m", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(data))  # JSON is YAML
    done = judged(tmp_path, promtool, "test", "rules", "tests.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_configuration_and_no_alert_is_without_a_case(tmp_path: Path, promtool: str) -> None:
    done = judged(tmp_path, promtool, "check", "config", "prometheus/prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    rules = (tmp_path / "prometheus/rules.yml").read_text()
    named = {line.split()[-1] for line in rules.splitlines() if "- alert:" in line}
    assert named == {alert for alert, _, _, fires in CASES if fires} == {a for a, _, _, fires in CASES if not fires}
    assert rules.count(" fix: ") == len(named)


def test_a_fix_names_no_unit_that_is_not_rendered(tmp_path: Path) -> None:
    files = render(site(tmp_path))
    rules = files["prometheus/rules.yml"].replace("{{ $labels.name }}", "main")
    named = set(re.findall(r"systemctl status ([^`]+)`", rules))
    assert {"envcheck-mirror-sync-main.service"} <= named
    assert {f"systemd/{unit}" for unit in named if "*" not in unit} <= files.keys()
