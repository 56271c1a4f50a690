"""Words and matrices that plain Python draws, in a real torch on the CPU: read back, and seen by a blind torch too."""

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks.support import exact_data, training

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, math, sys, tempfile
import torch
from envcheck.checks import Rank
from envcheck.checks.env import gemm_throughput, peer_to_peer
from envcheck.checks.support import exact_data, training

words = exact_data.Words(torch, 3)
made = words.tensor(2 * exact_data.BLOCK + 5)
told = {"blocks": len({bytes(words.block(place)) for place in range(20)})}
told["sound"] = [words.wrong(made), words.wrong(made.bitwise_not(), -1), words.wrong(made, -1)]
told["spoilt"] = []
for place in (0, exact_data.BLOCK, made.numel() - 1):
    spoilt = made.clone()
    spoilt[place] ^= 1 << 20
    told["spoilt"].append(words.wrong(spoilt))
swapped = made.clone()
swapped[[5, 9]] = swapped[[9, 5]]
told["spoilt"].append(words.wrong(swapped))

# As many numbers as gemm-throughput multiplies, in one column, of which plain Python reads a few.
many = exact_data.data(torch, gemm_throughput.SIZE**2, 1, torch.device("cpu"), 3)
told["many"] = [many.numel(), float(many.std()), float(many.abs().max()), float(many[-1000:].std())]
data = exact_data.data(torch, 128, 128, torch.device("cpu"), 3)
product, told["errors"] = data @ data.t(), []
for change in (0, 40, math.nan):
    product[70, 90] += change
    told["errors"].append(exact_data.error(torch, data, data, product))
one, none = torch.ones(1), torch.tensor([math.nan])
orders = ((one, one), (none, one), (one, none), (one, None), (one, one * (1 + 2 * training.TOLERANCE)))
told["tolerances"] = [training.in_tolerances(order, [[1.0]] * 2) for order in orders]

# Nothing on the device sees a difference, and the last word of each whole copy is one bit off.
peer_to_peer.VALUES, honest = 4099, torch.Tensor.copy_
exact_data.compared = lambda *_: torch.zeros((), dtype=torch.int64)

def flips(target, source):
    honest(target, source)
    if len(target) == 4099:
        target[4098] ^= 2
    return target

torch.Tensor.copy_ = flips
told["blind"] = peer_to_peer.measure(Rank(0, 1, 0, "cpu", "gloo", tempfile.mkdtemp()))["pairs"]
json.dump(told, sys.stdout)
"""


@pytest.mark.torch
def test_what_python_drew_is_found_again_and_one_wrong_element_is_seen(torch_python: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(torch_python), "-c", SCRIPT]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    told: dict[str, Any] = json.loads(completed.stdout)
    assert (told["blocks"], told["sound"], told["spoilt"]) == (20, [0, 0, 3], [1, 1, 1, 1])
    count, spread, largest, last = told["many"]
    assert (count, spread, last) == (8192**2, pytest.approx(4 / 12**0.5, rel=0.01), pytest.approx(spread, rel=0.2))
    assert 1.9 < largest <= 2.0
    right, off, none = told["errors"]
    assert right < 1e-5
    assert 0.02 < off < none == math.inf
    assert told["tolerances"] == [0.0, math.inf, math.inf, math.inf, pytest.approx(2.0, rel=1e-2)]
    # A torch that sees no difference hides none from the probe.
    first = {"count": 1, "index": 4098, "xor": "0x2", "transfer": 0}
    assert [pair["wrong"] for pair in told["blind"]] == [{"copy engine": first}] * 2


def test_the_first_difference_is_found_in_any_piece() -> None:
    one = bytes(100_000)
    for place in (0, 4095, 4096, 24_999):
        other = bytearray(one)
        other[4 * place + 1] = 3
        assert exact_data.first_difference(one, bytes(other)) == (place, 0x300)
    assert exact_data.first_difference(one, one) is None


def test_the_chain_rule_is_that_of_differences() -> None:
    inputs, targets = training.rows(training.values(1, 6), 3), training.rows(training.values(2, 4), 2)
    weights = [training.values(3, 9), training.values(4, 3), training.values(5, 6), training.values(6, 2)]
    loss, gradients = training.two_layers(weights, inputs, targets)
    for part, place in ((0, 5), (1, 2), (2, 4), (3, 1)):
        moved = [list(numbers) for numbers in weights]
        moved[part][place] += 1e-6
        slope = (training.two_layers(moved, inputs, targets)[0] - loss) / 1e-6
        assert slope == pytest.approx(gradients[part][place], rel=1e-3)
