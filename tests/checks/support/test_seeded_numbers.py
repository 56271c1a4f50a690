"""Words that plain Python draws, in tensors of a real torch on the CPU: read back, and seen by a blind torch too."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks.support import exact_data

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, sys, tempfile
import torch
from envcheck.checks import Rank
from envcheck.checks.env import peer_to_peer
from envcheck.checks.support import exact_data

words = exact_data.Words(torch, 3)
made = words.tensor(2 * exact_data.BLOCK + 5)
told = {"first": int(made[0]) & 0xFFFFFFFF, "blocks": len({bytes(words.block(place)) for place in range(20)})}
told["sound"] = [words.wrong(made), words.wrong(made.bitwise_not(), -1), words.wrong(made, -1)]
told["spoilt"] = []
for place in (0, exact_data.BLOCK, made.numel() - 1):
    spoilt = made.clone()
    spoilt[place] ^= 1 << 20
    told["spoilt"].append(words.wrong(spoilt))
swapped = made.clone()
swapped[[5, 9]] = swapped[[9, 5]]
told["swapped"] = words.wrong(swapped)

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


@pytest.fixture(scope="module")
def distances(torch_python: Path) -> dict[str, Any]:
    """Return what the script says of words that are right, spoilt, swapped, and copied by a torch that sees nothing."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(torch_python), "-c", SCRIPT]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    answer: dict[str, Any] = json.loads(completed.stdout)
    return answer


@pytest.mark.torch
def test_each_block_is_another_one_and_a_wrong_word_is_seen_wherever_it_is(distances: dict[str, Any]) -> None:
    assert distances["blocks"] == 20
    assert distances["sound"] == [0, 0, 3]
    assert distances["spoilt"] == [1, 1, 1]
    assert distances["swapped"] == 1


@pytest.mark.torch
def test_a_torch_that_sees_no_difference_hides_none_from_the_probe(distances: dict[str, Any]) -> None:
    first = {"count": 1, "index": 4098, "xor": "0x2", "transfer": 0}
    assert [pair["wrong"] for pair in distances["blind"]] == [{"copy engine": first}] * 2


def test_the_first_difference_is_found_in_any_piece() -> None:
    one = bytes(100_000)
    for place in (0, 4095, 4096, 24_999):
        other = bytearray(one)
        other[4 * place + 1] = 3
        assert exact_data.first_difference(one, bytes(other)) == (place, 0x300)
    assert exact_data.first_difference(one, one) is None
