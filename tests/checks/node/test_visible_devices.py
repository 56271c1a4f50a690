"""CUDA_VISIBLE_DEVICES as CUDA reads it."""

import json
import subprocess
from pathlib import Path

import pytest

from envcheck.checks.node import visible_devices
from tests.tables import each

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
