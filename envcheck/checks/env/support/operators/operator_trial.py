"""How an operator is run beside its reference: values from a seed, output and gradients against plain Python.

A `Case` is one operator with one set of options. The gradient's reference is the derivative of the case's own float64
formula along random directions, by the central difference of fourth order (error h^4 f^(5) / 30: Abramowitz & Stegun,
25.3.6), so that no backward formula of torch or of ours is believed.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from envcheck.checks import Measured
from envcheck.checks.env.support.operators import seeded_numbers

FLOATS = ("float32", "float64", "float16", "bfloat16")
WIDE = ("float32", "float64")
SINGLE = ("float32",)
# Unit roundoffs that a right kernel may be off: sums of some hundred terms in fp32, one or two roundings in 16 bits.
FACTOR = {"float64": 256.0, "float32": 128.0, "float16": 2.0, "bfloat16": 2.0}
# Looser than difference quotients need (1e-9): torch keeps 1/6 of hardsigmoid in fp32 for fp64 gradients too.
QUOTIENT = 1e-7
# A gradient is a sum of rounded terms of either sign, which may cancel: the formula knows only their sum. In 16 bits
# more of it is lost.
CANCELLED, SHARE = 8.0, 0.25
STEP = 1e-3
# Where a formula bends too much for that step, shorter ones follow it.
SHORTER_STEPS = (STEP / 8, STEP / 64)
DIRECTIONS = 2
# So often a formula is asked what rounded inputs do to it, where a result is off.
ROUNDINGS = 8
# ATen's dispatch says so of a kernel that a build lacks (AT_DISPATCH in ATen/Dispatch.h); never of fp32 and fp64.
NOT_IMPLEMENTED = re.compile(r"not implemented for '(Half|BFloat16)'|not (yet )?supported (for|with) (Half|BFloat16)")
SHORT = ("float16", "bfloat16")


class Input(NamedTuple):
    """One argument: flat values, shape, and its dtype; the dtype under test where that is empty."""

    values: Sequence[Any]
    shape: tuple[int, ...]
    dtype: str = ""


class Case(NamedTuple):
    """One operator with one set of options.

    `call(torch, *tensors)` gives a tensor or a tuple of them, `reference(*lists)` the flat values of the same, or a
    tuple of such. `wide` multiplies the tolerance, 0 asks for equality; `since` is the first torch that has it.
    `gradient` is whether it is differentiated, `layouts` whether its inputs may lie in memory with gaps. `least` is the
    size of a result of rounded terms of either sign, which may cancel: an error counts as a share of no less. `flaw` is
    what oneDNN is known to compute wrongly for this case in bf16, with its source; empty for nothing.
    """

    name: str
    call: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: tuple[Input, ...]
    gradient: bool = True
    wide: float = 1.0
    dtypes: tuple[str, ...] = FLOATS
    since: tuple[int, int] = (1, 0)
    layouts: bool = True
    least: float = 0.0
    flaw: str = ""


def dtypes(entry: Measured) -> list[str]:
    """Return the floating point types that operators are run in: fp16 on GPUs, bf16 where it is native."""
    if not entry["is_cuda"]:
        return ["float32", "float64", "bfloat16"]
    native = tuple(entry.get("capability") or ()) >= (8, 0)
    return ["float32", "float64", "float16", *(["bfloat16"] if native else [])]


def run(torch: Any, case: Case, dtype: str, device: Any, source: random.Random) -> dict[str, float]:
    """Return how far each part of the case is from its reference, in tolerances (above 1 it is wrong)."""
    lists = [list(i.values) if i.dtype else seeded_numbers.rounded(i.values, dtype) for i in case.inputs]
    leaves = [_leaf(torch, case, i, values, dtype, device, source) for i, values in zip(case.inputs, lists)]
    outputs = _tuple(case.call(torch, *leaves))
    expected = _tuple(case.reference(*lists), of=list)
    if len(outputs) != len(expected):
        return {"outputs": math.inf}
    limit = case.wide * FACTOR[dtype] * seeded_numbers.UNIT_ROUNDOFF[dtype]
    made = [seeded_numbers.read(output) for output in outputs]
    errors = {"output": max(_error(output, right, limit, case.least) for output, right in zip(made, expected))}
    if errors["output"] > 1 and limit:
        spread = _spread(lambda *moved: _tuple(case.reference(*moved), of=list), case, lists, limit, source)
        errors["output"] = max(
            _error(output, right, limit, case.least, around) for output, right, around in zip(made, expected, spread)
        )
    if case.gradient:
        errors.update(_gradients(torch, case, lists, leaves, outputs, dtype, source))
    return errors


def _tuple(value: Any, of: type = object) -> tuple[Any, ...]:
    if of is list:
        return value if isinstance(value, tuple) else (value,)
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _error(made: list[Any], expected: list[Any], limit: float, least: float, spread: Sequence[float] = ()) -> float:
    if not limit or (expected and not isinstance(expected[0], (float, complex))):
        equal = len(made) == len(expected) and all(map(seeded_numbers.same, made, expected))
        return 0.0 if equal else math.inf
    return seeded_numbers.off(made, expected, limit, least, spread)


def _spread(
    formula: Callable[..., Any], case: Case, lists: list[list[Any]], share: float, source: random.Random
) -> list[list[float]]:
    """Return how far each result of the formula moves when each of its inputs moves by this share of itself.

    A kernel that is right for inputs within their rounding is right (backward error: Higham, Accuracy and Stability of
    Numerical Algorithms, 1.5): where terms cancel, or a variance is small, the formula moves much more than its inputs.
    """
    start = formula(*lists)
    spread = [[0.0] * len(values) for values in start]
    for _ in range(ROUNDINGS):
        moved = [
            [value * (1 + source.choice((-share, share))) for value in values]
            if operand.dtype in {"", *FLOATS}
            else values
            for operand, values in zip(case.inputs, lists)
        ]
        try:
            results = formula(*moved)
        except (ArithmeticError, ValueError):  # a formula that has no value there, such as log of 1 - 1.01
            continue
        for around, values, firsts in zip(spread, results, start):
            around[:] = [max(most, abs(value - first)) for most, value, first in zip(around, values, firsts)]
    return spread


def _leaf(
    torch: Any, case: Case, operand: Input, values: list[Any], dtype: str, device: Any, source: random.Random
) -> Any:
    layout = source.choice(seeded_numbers.LAYOUTS) if case.layouts else "contiguous"
    made = seeded_numbers.tensor(torch, values, operand.shape, operand.dtype or dtype, device, layout)
    return torch.nn.Parameter(made) if case.gradient and not operand.dtype else made


def _gradients(
    torch: Any,
    case: Case,
    lists: list[list[Any]],
    leaves: list[Any],
    outputs: tuple[Any, ...],
    dtype: str,
    source: random.Random,
) -> dict[str, float]:
    """Return the error of each input's gradient along random directions, in tolerances."""
    named = str(outputs[0].dtype).rpartition(".")[2]
    upstream = [seeded_numbers.rounded(seeded_numbers.uniform(source, made.numel(), -1, 1), named) for made in outputs]
    tensors = [
        seeded_numbers.tensor(torch, up, tuple(made.shape), named, made.device) for up, made in zip(upstream, outputs)
    ]
    torch.autograd.backward(list(outputs), tensors)

    def loss(*values: list[float]) -> float:
        results = _tuple(case.reference(*values), of=list)
        return math.fsum(u * y for up, result in zip(upstream, results) for u, y in zip(up, result))

    wide = case.wide * (CANCELLED if dtype in SHORT else 1)
    limit = max(wide * FACTOR[dtype] * seeded_numbers.UNIT_ROUNDOFF[dtype], QUOTIENT)
    least = SHARE * math.sqrt(math.fsum(u * u for up in upstream for u in up))
    errors = {}
    for number, (operand, leaf) in enumerate(zip(case.inputs, leaves)):
        if operand.dtype or not operand.values:
            continue
        if leaf.grad is None:
            errors[f"gradient of input {number}"] = math.inf
            continue
        gradient = seeded_numbers.read(leaf.grad)
        errors[f"gradient of input {number}"] = max(
            _along(loss, case, lists, number, gradient, (limit, least), source) for _ in range(DIRECTIONS)
        )
    return errors


def _along(
    loss: Callable[..., float],
    case: Case,
    lists: list[list[Any]],
    number: int,
    gradient: list[float],
    limit: tuple[float, float],
    source: random.Random,
) -> float:
    direction = seeded_numbers.away_from_zero(source, len(gradient), 0.3, 1.0)
    if len(gradient) != len(lists[number]):
        return math.inf
    taken = math.fsum(g * way for g, way in zip(gradient, direction))
    size = math.sqrt(math.fsum(g * g for g in gradient))

    def slope(step: float, *values: list[Any]) -> float:
        def at(distance: float) -> float:
            moved = [value + distance * way for value, way in zip(values[number], direction)]
            return loss(*values[:number], moved, *values[number + 1 :])

        return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)

    def error(step: float, spread: float = 0.0) -> float:
        moved_slope = slope(step, *lists)
        off = abs(taken - moved_slope) / (limit[0] * max(size, abs(moved_slope), limit[1]) + QUOTIENT * 1e-3 + spread)
        return off if math.isfinite(off) else math.inf

    smallest = error(STEP)
    if smallest > 1:
        smallest = min(smallest, *map(error, SHORTER_STEPS))
    if smallest > 1:
        step = SHORTER_STEPS[-1]
        [[spread]] = _spread(lambda *moved: ([slope(step, *moved)],), case, lists, limit[0], source)
        smallest = error(step, spread)
    return smallest


def version(torch: Any) -> tuple[int, int]:
    """Return torch's major and minor version."""
    major, minor = re.match(r"(\d+)\.(\d+)", str(torch.__version__)).groups()  # type: ignore[union-attr]
    return int(major), int(minor)


def measure(
    torch: Any, cases: Iterable[Case], names: Sequence[str], device: Any, source: random.Random
) -> Iterator[dict[str, Any]]:
    """Run each case in each dtype; yield one row a case and dtype: error and worst part, or why it did not run."""
    torch_version = version(torch)
    for case in cases:
        for dtype in (name for name in names if name in case.dtypes):
            row = {"operator": case.name, "dtype": dtype}
            if torch_version < case.since:
                yield {**row, "absent": f"since torch {'.'.join(map(str, case.since))}"}
                continue
            yield {**row, **_row(torch, case, dtype, device, source)}


def _row(torch: Any, case: Case, dtype: str, device: Any, source: random.Random) -> dict[str, Any]:
    try:
        errors = run(torch, case, dtype, device, source)
        if max(errors.values()) > 1 and _flawed(torch, case, dtype, device):
            return {"known": case.flaw}
    except Exception as error:  # noqa: BLE001 (whatever an operator raises is the finding, and is quoted)
        summary = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
        if dtype in SHORT and isinstance(error, RuntimeError) and NOT_IMPLEMENTED.search(summary):
            return {"absent": summary}
        return {"raised": summary}
    part = max(errors, key=lambda name: errors[name])
    # JSON has no infinity.
    return {"error": min(errors[part], 1e300), "part": part}


def _flawed(torch: Any, case: Case, dtype: str, device: Any) -> bool:
    """Return whether a known flaw of oneDNN explains a wrong result: the same case is right without oneDNN."""
    if not case.flaw or dtype != "bfloat16" or device.type != "cpu":
        return False
    with torch.backends.mkldnn.flags(enabled=False):
        return all(error <= 1 for error in run(torch, case, dtype, device, seeded_numbers.source(0)).values())
