"""A cuDNN that is loaded, and convolves something else.

Seen in the wild: a second cuDNN on the loader's path whose kernels do not match, TF32 left on for convolutions though
matmul has it off (torch's default), a deterministic algorithm that was chosen and is not there, a kernel that is wrong
for groups or strides only, or for channels that lie last in memory. Output and gradients are compared with sums of
products in plain Python, with options and sizes from a seed; transposed convolutions add up the same products.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.env.support.operators import products_reference, seeded_numbers
from envcheck.checks.support import process_group
from envcheck.checks.training import plain_math
from envcheck.counting import counted

CHECK = Check(
    promise="convolutions and their gradients equal a formula in plain Python, in every dtype the device has",
    level="standard",
    seconds=2.0,
    cpu_seconds=0.9,
    timeout=90.0,
    ranks=0,
)

PARTS = ("output", "input gradient", "weight gradient")
# Not in 16 bits, whose sums of numbers of either sign lose more than their result shows (`operators` judges these), and
# not in older reports.
ALSO = "bias gradient"
FORMS = ("plain", "channels last", "transposed")
USUAL = 7
ACCUMULATED = 1e-4


def limit(dtype: str) -> Limit:
    """Return the largest relative Frobenius error a correct convolution of this dtype has."""
    source = (
        "0.0001 for fp32, wide of the 0.000005 of Winograd algorithms and below the 0.0003 of TF32; plus 2 unit "
        "roundoffs of a 16-bit result (ours)"
    )
    return Limit(ACCUMULATED + 2 * plain_math.UNIT_ROUNDOFF[dtype], "relative error", source, "at most")


def measure(rank: Rank) -> Measured:
    """Convolve in each dtype; say how far from float64 the output and the gradients are."""
    import torch

    device = process_group.device_of(rank)
    torch.backends.cudnn.allow_tf32 = False
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    seed, probe = seeded_numbers.seed(rank.rank), torch.zeros(1, device=device)
    entry: Measured = {**process_group.standing(rank, probe), "capability": list(capability), "seed": seed}
    entry["cudnn"] = bool(torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled)
    source = seeded_numbers.source(seed)
    examples = [_example(shape, source) for shape in shapes(source)]
    errors: dict[str, dict[str, float]] = {}
    for dtype in plain_math.dtypes(entry):
        runs = [_errors(torch, device, dtype, *run) for run in _runs(device, dtype, examples)]
        errors[dtype] = {part: max(run[part] for run in runs if part in run) for part in runs[-1]}
    return {**entry, "errors": errors}


def _runs(device: Any, dtype: str, examples: list[Example]) -> list[tuple[Example, str]]:
    """Return each example in each form; the first ones, plain, where oneDNN has flaws (products_reference.FLAW)."""
    if device.type == "cpu" and dtype != "float32":
        return [(example, FORMS[0]) for example in examples[:USUAL]]
    return [(example, form) for example in examples for form in FORMS]


class Example(NamedTuple):
    """A convolution, its inputs (exact in 16 bits), its output and gradients, and a number for each channel."""

    shape: products_reference.Convolution
    inputs: tuple[list[float], list[float], list[float]]
    expected: tuple[list[float], list[float], list[float]]
    bias: list[float]


def shapes(source: random.Random) -> list[products_reference.Convolution]:
    """Return convolutions of one to three dimensions: plain, strided and dilated, grouped, large."""

    def odd(low: int, high: int) -> int:
        return 2 * source.randint(low, high) + 1

    make, one, two = products_reference.Convolution, (1, 1), (2, 2)
    return [
        make(2, 8, 12, (odd(4, 6), odd(4, 6)), (3, 3), one, one, one),
        make(1, 3, 16, (odd(7, 9), odd(7, 9)), (5, 3), two, (2, 1), one),
        make(2, 6, 9, (odd(4, 6), odd(4, 6)), (3, 3), (1, 2), (0, 2), (2, 1), groups=3),
        make(1, 12, 12, (odd(4, 6), odd(4, 6)), (3, 3), one, one, one, groups=12),
        make(2, 17, 11, (odd(2, 4), odd(2, 4)), one, one, (0, 0), one),
        make(2, 5, 7, (odd(10, 20),), (5,), (2,), (3,), (2,)),
        make(1, 3, 4, (5, odd(2, 3), 6), (3, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 2)),
        make(1, 3, 4, (3 * odd(2, 3) + 2, 18), (7, 7), (3, 3), (3, 3), one),
        make(2, 4, 6, (2 * odd(3, 4),), (3,), (2,), (1,), (1,), groups=2),
        make(1, 64, 64, (2, 2), (3, 3), one, one, one),
        make(9, 4, 6, (3, 5), (3, 3), one, (3, 3), (3, 2), groups=2),
        make(1, 2, 3, (3, odd(30, 40)), (3, 3), one, one, one),
        make(1, 6, 12, (odd(4, 6), 6, 3), (3, 3, 3), (2, 2, 1), (1, 1, 1), (1, 1, 1), groups=6),
    ]


def _example(shape: products_reference.Convolution, source: random.Random) -> Example:
    sizes = [products_reference.count(dims) for dims in shape.shapes]
    images, weights, upstream = ([source.randint(-127, 127) / 64 for _ in range(n)] for n in sizes)
    triples = shape.triples()
    output = products_reference.meet(sizes[2], triples, images, weights)
    first = products_reference.meet(sizes[0], ((x, y, w) for y, x, w in triples), upstream, weights)
    second = products_reference.meet(sizes[1], ((w, y, x) for y, x, w in triples), upstream, images)
    bias = [source.randint(-127, 127) / 64 for _ in range(max(shape.channels, shape.filters))]
    return Example(shape, (images, weights, upstream), (output, first, second), bias)


def _errors(torch: Any, device: Any, dtype: str, example: Example, form: str) -> dict[str, float]:
    """Return each part's relative distance from its reference; only the plain form has no bias."""
    images, weights, upstream = (
        seeded_numbers.tensor(torch, x, shape, dtype, device) for x, shape in zip(example.inputs, example.shape.shapes)
    )
    (output, first, second), (shape, _, out) = example.expected, example.shape.shapes
    if form == "transposed":
        # Every product goes the other way.
        images, upstream, output, first, shape, out = upstream, images, first, output, out, shape
    if form == "channels last" and len(out) > 3:  # noqa: PLR2004 (a line has no other layout)
        last = torch.channels_last if len(out) == 4 else torch.channels_last_3d  # noqa: PLR2004
        images, weights, upstream = (x.contiguous(memory_format=last) for x in (images, weights, upstream))
    bias = example.bias[: out[1]] if form != "plain" else []
    leaves = [torch.nn.Parameter(images), torch.nn.Parameter(weights)]
    if bias:
        leaves.append(torch.nn.Parameter(seeded_numbers.tensor(torch, bias, (out[1],), dtype, device)))
    made = _called(torch, example.shape, leaves, transposed=form == "transposed")
    made.backward(upstream)
    with torch.no_grad():
        repeated = _called(torch, example.shape, leaves, transposed=form == "transposed")
    raised, sums = _with_bias(output, seeded_numbers.read(upstream), bias, out)
    results = [made, *(leaf.grad for leaf in leaves)]
    parts = (*PARTS, ALSO) if dtype == "float32" else PARTS
    errors = {
        part: seeded_numbers.apart(seeded_numbers.read(x), right)
        for part, x, right in zip(parts, results, (raised, first, second, sums))
    }
    return {**errors, "output": max(errors["output"], seeded_numbers.apart(seeded_numbers.read(repeated), raised))}


def _called(torch: Any, c: products_reference.Convolution, leaves: list[Any], *, transposed: bool) -> Any:
    """Return the convolution of images and weights, and of a bias where there is one."""
    options = {"stride": c.stride, "padding": c.padding, "dilation": c.dilation, "groups": c.groups}
    if len(leaves) > 2:  # noqa: PLR2004
        options["bias"] = leaves[2]
    if transposed:
        options["output_padding"] = c.left_over
    name = f"conv{'_transpose' if transposed else ''}{len(c.sizes)}d"
    return getattr(torch.nn.functional, name)(*leaves[:2], **options)


def _with_bias(
    output: list[float], upstream: list[float], bias: list[float], out: tuple[int, ...]
) -> tuple[list[float], list[float]]:
    """Return the output raised by each channel's bias, and the bias's gradient."""
    if not bias:
        return output, []
    inner = products_reference.count(out[2:])
    channels = [place // inner % len(bias) for place in range(len(output))]
    sums = [0.0] * len(bias)
    for channel, value in zip(channels, upstream):
        sums[channel] += value
    return [value + bias[channel] for channel, value in zip(channels, output)], sums


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on every rank, dtype and part whose error is above its bound, or is not a number."""
    problem = process_group.problem(view, ranks, backend=False)
    if problem is not None:
        return problem
    findings = [finding for entry in ranks for finding in _findings(view, entry)]
    if findings:
        return worst(findings, otherwise=findings[0])
    every = [(dtype, error) for entry in ranks for dtype, parts in entry["errors"].items() for error in parts.values()]
    dtype, error = max(every, key=lambda pair: pair[1] / limit(pair[0]).value)
    return passed(
        f"convolutions agree with plain Python on {counted(len(ranks), 'rank')}; closest to its bound: {dtype}",
        value=error,
        unit="relative error",
        limit=limit(dtype),
        errors=ranks[0]["errors"],
        seed=ranks[0].get("seed"),
    )


def _findings(view: View, entry: Measured) -> Iterator[Outcome]:
    if view.mode == "gpu" and entry.get("cudnn") is False:
        fix = "install a torch wheel with cuDNN, or enable it"
        yield failed(f"rank {entry['rank']} has no cuDNN", fix=fix, code="convolution.no-cudnn")
    for dtype in plain_math.dtypes(entry):
        errors, bound = (entry.get("errors") or {}).get(dtype) or {}, limit(dtype)
        if not {*PARTS} <= {*errors} <= {*PARTS, ALSO} or not isinstance(entry.get("cudnn"), bool):
            summary = f"rank {entry['rank']} measured no {dtype} convolution"
            yield undecided(summary, fix="see the check's log", code="convolution.unmeasured")
            continue
        for part, error in errors.items():
            if not process_group.finite(error) or not 0 <= error <= bound.value:
                yield _wrong(entry, dtype, part, error)


def _wrong(entry: Measured, dtype: str, part: str, error: Any) -> Outcome:
    return failed(
        f"rank {entry['rank']} on {entry['device']}: the {part} of a {dtype} convolution is off by {error}",
        fix="look for a second cuDNN (LD_LIBRARY_PATH, conda); on this GPU alone, run the matmul check and take it out",
        value=error if process_group.finite(error) else None,
        unit="relative error",
        limit=limit(dtype),
        code="convolution.wrong",
        culprit=f"rank {entry['rank']} on {entry['device']}",
        rank=entry["rank"],
        errors=entry["errors"],
        seed=entry.get("seed"),
    )
