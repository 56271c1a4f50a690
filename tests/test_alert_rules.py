"""The alert rules of the docs: over DCGM's exporter each one finds its GPU, and is silent on a sound job."""

import json
import subprocess
import textwrap
from pathlib import Path

import pytest

RULES = Path(__file__).parents[1] / "docs" / "examples" / "dcgm.rules.yml"
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
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": [str(RULES)], "tests": [test]}))
    command = [promtool, "test", "rules", str(tmp_path / "test.yml")]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.promtool
def test_the_rules_over_a_fleet_are_rules(tmp_path: Path, promtool: str) -> None:
    page = (RULES.parents[1] / "fleet.md").read_text()
    rules = textwrap.indent(page.split("```yaml\n")[1].split("```")[0], "  ")
    (tmp_path / "rules.yml").write_text(f"groups:\n- name: fleet\n  rules:\n{rules}")
    command = [promtool, "check", "rules", str(tmp_path / "rules.yml")]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (completed.returncode, "2 rules found" in completed.stdout) == (0, True), completed.stdout + completed.stderr
