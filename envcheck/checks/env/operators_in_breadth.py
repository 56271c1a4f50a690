"""What is right for one size may be wrong for the next: the check `operators`, many times and larger.

Seen in the wild: a kernel that is wrong from a certain size on, for one stride, or for one combination of options. Each
round draws other sizes, memory layouts and options; the seed is in the report, and ENVCHECK_SEED repeats it.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Measured, Rank
from envcheck.checks.env import operators

CHECK = Check(
    promise="each operator equals its formula for many sizes, memory layouts and options",
    level="full",
    seconds=100.0,
    cpu_seconds=48.0,
    timeout=600.0,
    ranks=0,
)

ROUNDS, SIZE = 12, 3
judge = operators.judge


def families() -> tuple[Any, ...]:
    """Return the operators that are used less often and run at this level only; `judge` does without their modules."""
    from envcheck.checks.env.support.operators.cases.in_breadth import (
        counting,
        functions,
        image_sizes,
        images,
        likelihoods,
        line_statistics,
        losses,
        matrices,
        matrix_factors,
        selections,
        spectra,
        transforms,
    )
    from envcheck.checks.env.support.operators.cases.in_breadth.layers import (
        attention_layers,
        convolutions,
        pooling,
        transformer_layers,
    )

    return (
        losses,
        likelihoods,
        matrix_factors,
        matrices,
        pooling,
        images,
        image_sizes,
        functions,
        line_statistics,
        selections,
        counting,
        spectra,
        transforms,
        convolutions,
        attention_layers,
        transformer_layers,
    )


def measure(rank: Rank) -> Measured:
    """Run every operator a dozen times with larger sizes, and those that are used less often six times."""
    return operators.survey(rank, ROUNDS, SIZE, families())
