"""The dashboard's structure: places, sources, and that each query is PromQL over what there is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envcheck.mirrors.site.dashboard import dashboard
from envcheck.mirrors.site.render import render
from tests.mirrors.site.test_render import site

DATA = Path(__file__).parents[2] / "data"
PANELS: list[dict[str, Any]] = json.loads(dashboard())["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_every_metric_asked_for_is_exported_or_recorded(tmp_path: Path) -> None:
    files = render(site(tmp_path))
    exported = set(re.findall(r"counter (\S+) by", files["mtail/mirror.mtail"]))
    exported |= set(re.findall(r"echo \"(\w+)", files["sync/main.sh"]))
    rules = files["prometheus/rules.yml"]
    assert len(exported) > 5
    recorded = set(re.findall(r"- record: (\S+)", rules))
    requests = set(re.findall(r"envcheck_mirror[\w:]*", " ".join(QUERIES)))
    assert requests <= exported | recorded
    assert set(re.findall(r"envcheck_mirror[\w:]*", rules)) <= exported | recorded


@pytest.mark.promtool
def test_every_query_is_promql(tmp_path: Path, promtool: str) -> None:
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(QUERIES)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    completed = subprocess.run(
        [promtool, "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.parametrize(
    ("right", "wrong", "valid"), [("", "", True), ("gridPos", "gridpos", False), ("expr", "x", False)]
)
def test_its_model_is_what_grafana_publishes(tmp_path: Path, right: str, wrong: str, *, valid: bool) -> None:
    (tmp_path / "dashboard.json").write_text(dashboard().replace(f'"{right}"', f'"{wrong}"'))
    schema = str(DATA / "grafana-dashboard.schema.json")
    judge = [sys.executable, "-m", "check_jsonschema", "--schemafile", schema, str(tmp_path / "dashboard.json")]
    completed = subprocess.run(judge, capture_output=True, text=True, check=False)
    assert (completed.returncode == 0) == valid, completed.stdout
