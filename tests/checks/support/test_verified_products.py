"""Data of the largest products, and what of a product is verified, in a real torch on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# As many numbers as gemm-throughput multiplies, in one column, of which plain Python reads a few.
SCRIPT = """
import json, math, sys
import torch
from envcheck.checks.env import gemm_throughput
from envcheck.checks.support import exact_data

many = exact_data.data(torch, gemm_throughput.SIZE**2, 1, torch.device("cpu"), 3)
told = [many.numel(), float(many.std()), float(many.abs().max()), float(many[-1000:].std())]
data = exact_data.data(torch, 128, 128, torch.device("cpu"), 3)
product = data @ data.t()
told.append(exact_data.error(torch, data, data, product))
product[70, 90] += 40
told.append(exact_data.error(torch, data, data, product))
product[70, 90] = math.nan
told.append(exact_data.error(torch, data, data, product))
json.dump(told, sys.stdout)
"""


@pytest.mark.torch
def test_data_of_the_full_size_is_made_and_one_wrong_element_is_seen(torch_python: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(torch_python), "-c", SCRIPT]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    count, spread, largest, last, right, off, none = json.loads(completed.stdout)
    assert count == 8192**2
    assert spread == pytest.approx(4 / 12**0.5, rel=0.01)
    assert 1.9 < largest <= 2.0
    assert last == pytest.approx(spread, rel=0.2)
    assert right < 1e-5
    assert off > 0.02
    assert none == float("inf")
