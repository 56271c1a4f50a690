"""Reports of nodes that differ in a few things from a recorded one, as plain data."""

import copy
import functools
import json
import zlib
from pathlib import Path
from typing import Any, Final

RECORDED: Final = Path(__file__).parents[1] / "data/reports"
# When the recorded runs began and ended.
STARTED: Final = 1795251600.0
ENDED: Final = STARTED + 120


@functools.cache
def _recorded(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return document


def node_report(node: str, recorded: str = "h200x1", **values: float) -> dict[str, Any]:
    """Return the recorded report as of another node; `values` are those of checks, "gemm_throughput=700.0"."""
    document = copy.deepcopy(_recorded(recorded))
    document["host"]["name"] = node
    for number, gpu in enumerate(document["snapshot"]["gpus"]):
        gpu["uuid"] = f"GPU-{zlib.crc32(node.encode()):08x}-0000-4000-8000-{number:012d}"
    for check, value in values.items():
        outcome_of(document, check.replace("_", "-"))["value"] = value
    return document


def outcome_of(document: dict[str, Any], check: str) -> dict[str, Any]:
    data: dict[str, Any] = next(outcome for outcome in document["outcomes"] if outcome["id"] == check)
    return data


def failing(document: dict[str, Any], check: str = "gemm-throughput", culprit: str = "") -> dict[str, Any]:
    outcome_of(document, check).update(status="fail", code="speed.slow", culprit=culprit, summary="slow")
    document["verdict"].update(status="fail", exit_code=1, sentence=f"FAIL: {check}")
    return document


def write(folder: Path, *documents: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for document in documents:
        (folder / f"{document['host']['name']}.json").write_text(json.dumps(document), encoding="utf-8")
    return folder
