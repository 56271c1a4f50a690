"""CUDA_VISIBLE_DEVICES as CUDA reads it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.checks import FAIL, PASS, SKIP, WARN, View
from envcheck.checks.node import visible_devices
from tests.tables import each

Node = Callable[..., View]
UUIDS = ["GPU-a1", "GPU-b2"]
CASES = [(None, 2), ("", 0), ("1", 1), ("1,0", 2), ("0,2,1", 1), ("GPU-a", 1), ("GPU-", 0), ("MIG-x", 1), ("-1,0", 0)]
CASES += [("0,0", 0), ("1gpu, 0", 2), ("0,,1", 1), ("GPU-a1,GPU-b2", 2), ("GPU-a1, GPU-b2", 1), ("GPU-a1,0", 1)]
CASES += [("0,GPU-b2", 1), ("GPU-a,GPU-a1", 0), ("MIG-x,MIG-y", 1), ("NoDevFiles", 0), ("+1", 1), ("x", 0)]


@each("value, gpus", CASES)
def test_cuda_visible_devices_as_cuda_reads_it(value: str | None, gpus: int) -> None:
    assert visible_devices.parse(value, UUIDS).gpus == gpus


@pytest.mark.torch
def test_indices_are_read_as_torch_reads_them(torch_python: Path) -> None:
    values = ["0", "0,1", "1,0", "0,0", "1gpu,0x", "0,,1", "-1,0", "0,-1,1", "", " 1 , 0 ", "+1", "x,0", "1,1gpu"]
    code = """
import json, os, sys, torch
for value in json.loads(sys.argv[1]):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
    print(json.dumps(torch.cuda._parse_visible_devices()))
"""
    command = [str(torch_python), "-c", code, json.dumps(values)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    read = [visible_devices.parse(value, UUIDS) for value in values]
    mine = [[] if one.repeated is not None else one.chosen for one in read]
    assert mine == [json.loads(line) for line in completed.stdout.splitlines()]


@each(
    "name, value, status, word",
    [
        ("h100x8", None, SKIP, "is not set"),
        ("h100x8", "0,1,2,3,4,5,6,7", PASS, "8 of 8"),
        ("h100x8", "", PASS, "0 of 8"),
        ("h100x8", "-1", PASS, "0 of 8"),
        ("h100x8", "0,3", PASS, "2 of 8"),
        ("h100x8", "0,1,8", WARN, "8 is ignored, CUDA shows 2"),
        ("h100x8", "8", FAIL, "8 is ignored, CUDA shows 0"),
        ("h100x8", "0,1,-1,3", WARN, "-1, 3 are ignored"),
        ("h100x8", "0,,1", WARN, "'', 1 are ignored"),
        ("h100x8", "0,1,1", FAIL, "1 comes twice"),
        ("h100x8", "0gpu", WARN, "0gpu counts"),
        ("mig", "MIG-a", PASS, "as written"),
        ("mig", "MIG-a,MIG-b", WARN, "2 MIG instances"),
        ("mixed", "0", WARN, "fastest first"),
    ],
)
def test_each_mistake_is_named(node: Node, put: Node, name: str, value: str | None, status: str, word: str) -> None:
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    outcome = visible_devices.judge(put(node(name), env=environment))
    assert outcome.status == status, outcome
    assert word in outcome.summary


def test_unlike_gpus_counted_by_pci_bus_or_named_by_uuid_are_sound(node: Node, put: Node) -> None:
    view = node("mixed")
    by_bus = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_devices.judge(put(view, env=by_bus)).status == PASS
    by_name = {"CUDA_VISIBLE_DEVICES": view.snapshot.gpus[0].uuid}
    assert visible_devices.judge(put(view, env=by_name)).status == PASS
