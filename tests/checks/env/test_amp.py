"""What mixed precision came to, judged."""

import math

from envcheck.checks import FAIL, PASS, View
from envcheck.checks.env import amp
from tests.builders import Entry, group


def cases(absent: str = "") -> Entry:
    return {name: {"absent": "no"} if absent and name.endswith(absent) else {"off": 0.0} for name in amp.names()}


def entries(world: int = 8, *, gpu: bool = True, absent: str = "") -> list[Entry]:
    return group({"seed": 5, "cases": cases(absent)}, world, gpu=gpu, capability=[9, 0] if gpu else [])


def test_each_way_mixed_precision_is_wrong_is_named(h100: View) -> None:
    rows: list[tuple[str, Entry, str]] = [
        ("matmul, bfloat16", {"wrong": "gives torch.float32 under autocast"}, "gives torch.float32"),
        ("softmax, float16", {"raised": "RuntimeError: CUDA error"}, "softmax, float16 raised RuntimeError: CUDA"),
        ("training, bfloat16", {"off": math.nan}, "training, bfloat16 is off by nan"),
        ("training, float16", {"off": 0.021}, "training, float16 is off by 0.021"),
        ("conv2d, float16", {"absent": "no"}, "conv2d, float16 is missing"),
        ("scaler: shrinks on inf", {"wrong": "the scale: 1024"}, "the scale: 1024"),
        ("scaler: scales a loss", {"absent": "no"}, "is missing"),
    ]
    wrong = []
    for name, result, message in rows:
        ranks = entries()
        ranks[4]["cases"][name] = result
        outcome = amp.judge(h100, ranks)
        if outcome.status != FAIL or "rank 4 on GPU-4" not in outcome.summary or message not in outcome.summary:
            wrong.append((name, outcome))
    assert not wrong


def test_a_loss_just_within_the_tolerance_passes(h100: View) -> None:
    ranks = entries()
    ranks[4]["cases"]["training, bfloat16"]["off"] = 0.0199
    assert amp.judge(h100, ranks).status == PASS


def test_fp16_is_owed_on_gpus_and_bf16_wherever_it_is_native(h100: View, cpu: View) -> None:
    assert amp.judge(cpu, entries(2, gpu=False, absent=", float16")).status == PASS
    assert amp.judge(h100, entries(absent=", float16")).status == FAIL
    assert amp.judge(cpu, entries(2, gpu=False, absent="bfloat16")).status == FAIL
    assert amp.judge(h100, entries(absent="bfloat16")).status == FAIL
    old = [{**entry, "capability": [7, 5]} for entry in entries(absent="bfloat16")]
    assert amp.judge(h100, old).status == PASS
