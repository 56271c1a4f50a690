"""What `fleet render prometheus` writes over DCGM's exporter: each rule finds its GPU, and is silent on a sound job."""

import json
import subprocess
import textwrap
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from envcheck.cli import cli

SOUND = {"GPU_UTIL": 95, "FB_FREE": 30000, "FB_USED": 50000, "POWER_USAGE": 600}
# Percent, MiB and watts of a GPU that drew 700 W before, and its alert.
GPUS: dict[str, tuple[dict[str, int], str]] = {
    "sound": (SOUND, ""),
    "free": ({"GPU_UTIL": 0, "FB_FREE": 79000, "FB_USED": 600, "POWER_USAGE": 70}, ""),
    "waits": ({**SOUND, "GPU_UTIL": 79}, "GpuWaits"),
    "full": ({**SOUND, "FB_FREE": 12000, "FB_USED": 68000}, "GpuMemoryNearlyFull"),
    "cool": ({**SOUND, "POWER_USAGE": 340}, "GpuBusyAtLowPower"),
}


@pytest.mark.promtool
def test_each_rule_finds_its_gpu_and_no_other(tmp_path: Path, promtool: str) -> None:
    series = [
        {"series": f'DCGM_FI_DEV_{name}{{gpu="{gpu}"}}', "values": f"{700 if 'POWER' in name else value} {value}x60"}
        for gpu, (values, _) in GPUS.items()
        for name, value in values.items()
    ]
    firing = 'ALERTS{{alertname="{1}",alertstate="firing",gpu="{0}",severity="ticket"}}'
    samples = [{"labels": firing.format(gpu, alert), "value": 1} for gpu, (_, alert) in GPUS.items() if alert]
    query = {"expr": 'ALERTS{alertstate="firing"}', "eval_time": "1h", "exp_samples": samples}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [query]}
    words = ["fleet", "render", "prometheus", "--hosts", "n[08-09],gpu1.example", "-o", str(tmp_path)]
    assert CliRunner().invoke(cli, words).exit_code == 0
    [job] = yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["n08:9400", "n09:9400", "gpu1.example:9400"]
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": ["dcgm.rules.yml"], "tests": [test]}))
    for command in (["test", "rules", "test.yml"], ["check", "config", "prometheus.yml"]):
        completed = subprocess.run([promtool, *command], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.promtool
def test_the_rules_over_a_fleet_are_rules(tmp_path: Path, promtool: str) -> None:
    page = (Path(__file__).parents[1] / "docs/fleet.md").read_text()
    rules = textwrap.indent(page.split("```yaml\n")[1].split("```")[0], "  ")
    (tmp_path / "rules.yml").write_text(f"groups:\n- name: fleet\n  rules:\n{rules}")
    command = [promtool, "check", "rules", str(tmp_path / "rules.yml")]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (completed.returncode, "2 rules found" in completed.stdout) == (0, True), completed.stdout + completed.stderr
