"""Dropout inside attention: which weights are dropped, how the others are scaled, and whether the gradient agrees.

With queries of zeros all weights are equal, and with the identity as V the output is the matrix of weights itself. The
gradient of V is that matrix, turned, times what comes from above: it is wrong where the backward pass drops others.
"""

from __future__ import annotations

import math
import random
from operator import mul
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers

HEADS, TOKENS, KEYS = 4, 128, 32
# Flash attention draws 8 bits a weight: its share is off by up to 1/255.
GRAIN = 1 / 255
# So many standard deviations are seen once in 5e8 runs.
DEVIATIONS = 6


def run(torch: Any, dtype: str, device: Any, source: random.Random) -> dict[str, float]:
    """Return how far the kept weights and the gradient of V are from their formulas; infinite for a wrong share."""
    share = source.uniform(0.15, 0.45)
    torch.manual_seed(source.randrange(1 << 30))
    shapes = ((1, HEADS, TOKENS, KEYS), (1, HEADS, KEYS, KEYS))
    query = seeded_numbers.tensor(torch, [0.0] * math.prod(shapes[0]), shapes[0], dtype, device)
    key, up = ([source.randint(-127, 127) / 64 for _ in range(math.prod(shape))] for shape in (shapes[1], shapes[0]))
    identity = [float(i == j) for _ in range(HEADS) for i in range(KEYS) for j in range(KEYS)]
    value = torch.nn.Parameter(seeded_numbers.tensor(torch, identity, shapes[1], dtype, device))
    key = seeded_numbers.tensor(torch, key, shapes[1], dtype, device)
    made = torch.nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=share, is_causal=False)
    made.backward(seeded_numbers.tensor(torch, up, shapes[0], dtype, device))
    weights = seeded_numbers.read(made)
    kept = 1 / (KEYS * (1 - share))
    errors = {"output": seeded_numbers.apart(weights, [kept if weight else 0.0 for weight in weights])}
    dropped = sum(not weight for weight in weights) / len(weights)
    if abs(dropped - share) > DEVIATIONS * math.sqrt(share * (1 - share) / len(weights)) + GRAIN:
        errors["share that is dropped"] = 1e300
    expected = []
    for head in range(HEADS):
        start, stop = head * TOKENS * KEYS, (head + 1) * TOKENS * KEYS
        columns = [weights[start + key : stop : KEYS] for key in range(KEYS)]
        above = [up[start + width : stop : KEYS] for width in range(KEYS)]
        expected += [sum(map(mul, column, line)) for column in columns for line in above]
    errors["gradient of V"] = seeded_numbers.apart(seeded_numbers.read(value.grad), expected)
    return {part: min(error, 1e300) for part, error in errors.items()}
