"""Import torch once; for each sabotage fork, put it in, run the check that has to see it, and say how that ended."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from envcheck.checks import Rank, View
from envcheck.checks.env import attention, convolution, fingerprint, fp8_training, matmul, memory_patterns, operators
from envcheck.checks.env.support.operators.cases import (
    dense_layers,
    edges,
    losses,
    norms,
    options,
    pointwise,
    recurrent_and_attention,
    reductions,
    selections,
)
from envcheck.checks.env.support.operators.cases.in_breadth import (
    counting,
    functions,
    image_sizes,
    images,
    likelihoods,
    line_statistics,
    matrices,
    matrix_factors,
    spectra,
    transforms,
)
from envcheck.checks.env.support.operators.cases.in_breadth import losses as losses_in_breadth
from envcheck.checks.env.support.operators.cases.in_breadth import selections as selections_in_breadth
from envcheck.checks.env.support.operators.cases.in_breadth.layers import (
    attention_layers,
    convolutions,
    pooling,
    transformer_layers,
)
from envcheck.checks.env.support.operators.promises import trial
from envcheck.node.snapshot import Snapshot
from tests.checks.sabotage.torch import (
    more_sabotages,
    sabotages,
    sabotages_in_breadth,
    sabotages_of_calls,
    sabotages_of_layers,
)

CHECKS = {
    "attention": attention,
    "convolution": convolution,
    "fingerprint": fingerprint,
    "fp8-training": fp8_training,
    "matmul": matmul,
    "memory-patterns": memory_patterns,
}
# Pooling has rows of every float type, without which the check does not pass.
ROWS: dict[str, Any] = {
    "pointwise": (pointwise, options),
    "dense": (dense_layers, options),
    "layers": (norms, losses, edges),
    "losses": (losses, edges),
    "order": (reductions, selections, edges, options),
    "models": (recurrent_and_attention, options),
    "losses in breadth": (losses_in_breadth, likelihoods, pooling),
    "matrices": (matrix_factors, matrices, pooling),
    "pooling": (pooling,),
    "images": (images, image_sizes, pooling),
    "functions": (functions, pooling),
    "selections": (line_statistics, selections_in_breadth, counting, pooling),
    "spectra": (spectra, pooling),
    "transforms": (transforms, pooling),
    "convolutions": (convolutions, pooling),
    "attention layers": (attention_layers, pooling),
    "transformer layers": (transformer_layers, pooling),
    **dict.fromkeys(trial.GROUPS, (pooling,)),
}
SABOTAGES = {
    **sabotages.SABOTAGES,
    **more_sabotages.SABOTAGES,
    **sabotages_in_breadth.SABOTAGES,
    **sabotages_of_layers.SABOTAGES,
    **sabotages_of_calls.SABOTAGES,
}


def measured(kind: str) -> str:
    """Run the check, and return its status and summary."""
    check: Any = CHECKS.get(kind, operators)
    if kind in ROWS:
        # Its own rows are enough: whatever is sabotaged has to be seen by them.
        operators.families, operators.LEAST = lambda: ROWS[kind], 1
        trial.GROUPS = {name: group for name, group in trial.GROUPS.items() if name == kind}
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        entry = check.measure(Rank(0, 1, 0, "cpu", "gloo", directory))
        outcome = check.judge(View(Snapshot()), [json.loads(json.dumps(entry))])
        os.chdir("/")
    return f"{outcome.status} {outcome.summary}"


def forked(kind: str, sabotage: Callable[[], None]) -> str:
    """Return what a child that is sabotaged says."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        try:
            sabotage()
            statement = measured(kind)
        except BaseException as error:  # noqa: BLE001 (it is the child's word)
            statement = f"raised {type(error).__name__}: {error}"
        os.write(writing, statement.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        statement = pipe.read().decode()
    os.waitpid(child, 0)
    return statement


if __name__ == "__main__":
    chosen = sys.argv[1:]
    sound = {f"sound {kind}": (kind, lambda: None) for kind in sorted({kind for kind, _ in SABOTAGES.values()})}
    errors = {name: forked(*one) for name, one in {**sound, **SABOTAGES}.items() if not chosen or name in chosen}
    sys.stdout.write(json.dumps(errors))
