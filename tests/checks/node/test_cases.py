"""Each side of each rule of the node checks, as cases.yaml has it: the machine in, status, code and culprit out."""

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from envcheck.checks import ERROR, PASS, SKIP, View
from envcheck.node.snapshot import Signal
from envcheck.runner.planning import discover
from tests import builders
from tests.tables import each

Row = dict[str, Any]
JUDGES = {module.id: module.judge for module in discover() if module.kind == "node"}
CASES: dict[str, list[Row]] = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))


def signals(values: Row) -> dict[str, Signal]:
    """Return signals by their names: {reason: …, why: …} stands for one without a value."""
    return {
        name: Signal(**value) if isinstance(value, dict) and "why" in value else Signal(value)
        for name, value in values.items()
    }


def view_of(row: Row) -> View:
    """Return the view of a machine with what the row changes; an empty environment is of no torch."""
    name = row.get("machine", "h100x8")
    view = builders.cpu_view() if name == "cpu" else builders.gpu_view(name)
    for index, values in row.get("gpus", {}).items():
        view = builders.put_gpu(view, range(99) if index == "all" else [index], **signals(values))
    view = builders.put(view, **{n.replace(".", "__"): value for n, value in signals(row.get("node", {})).items()})
    changed = row.get("environment", view.environment)
    environment = {**view.environment, **changed} if changed else {}
    return dataclasses.replace(view, environment=environment, promises=row.get("promises", {}))


@each("check, row", [(check, row) for check, rows in CASES.items() for row in rows])
def test_a_check_says_of_a_machine_what_the_case_says(check: str, row: Row) -> None:
    outcome = JUDGES[check](view_of(row))
    told = (outcome.status, outcome.code, outcome.culprit, max(len(outcome.findings), 1))
    assert told == (row["status"], row.get("code", ""), row.get("culprit", ""), row.get("findings", 1)), outcome.summary
    assert bool(outcome.remedy) or outcome.status in (PASS, SKIP, ERROR)
