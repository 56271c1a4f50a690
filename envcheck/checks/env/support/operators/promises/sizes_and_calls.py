"""What is right for small tensors, and the first time, may be wrong for large ones, and for every 50th call.

Large products are made of small whole numbers, so that every element of them is exact in fp32 (below 2^24), and are
compared exactly through random signs, in which every element counts (Freivalds 1977).
"""

from __future__ import annotations

import array
import ctypes
import math
import random
from collections.abc import Callable, Sequence
from itertools import chain
from operator import mul
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.cases.norms import log_softmax, normalized, softmax
from envcheck.checks.env.support.operators.promises.random_numbers import Promise

# One more than a multiple of every tile's size.
LARGE_SIZE, ROWS = 1025, 1024
# The second is more than a vocabulary of 2^16, and than what one thread or block of a kernel takes.
WIDE = (4097, 70_001)
CALLS = 110
SMALL = 15


def _whole(source: random.Random, count: int) -> list[float]:
    """Return whole numbers from -16 to 15, exact in every dtype."""
    return array.array(
        "f", (byte % 32 - 16 for byte in source.getrandbits(8 * count).to_bytes(count, "little"))
    ).tolist()


def _lines(values: Sequence[float], width: int) -> list[Sequence[float]]:
    return [values[i : i + width] for i in range(0, len(values), width)]


def _summed(lines: list[Sequence[float]], signs: list[int]) -> list[float]:
    """Return each line times the signs."""
    return [sum(map(mul, line, signs)) for line in lines]


def _product_is(made: Any, left: list[float], right: list[float], inner: int, source: random.Random) -> bool:
    """Return whether made equals left right^T, both with lines of `inner` numbers."""
    others = _lines(right, inner)
    signs = [source.choice((-1, 1)) for _ in others]
    through = list(map(sum, zip(*[line if s > 0 else [-v for v in line] for s, line in zip(signs, others)])))
    rows = _lines(seeded_numbers.read(made), len(others))
    return _summed(rows, signs) == [sum(map(mul, line, through)) for line in _lines(left, inner)]


def products(torch: Any, device: Any, source: random.Random) -> str:
    """Judge products of a thousand rows and columns in every form, and the gradients of a linear layer."""
    torch.set_float32_matmul_precision("highest")
    left, right = _whole(source, ROWS * LARGE_SIZE), _whole(source, ROWS * LARGE_SIZE)
    a, b = (seeded_numbers.tensor(torch, v, (ROWS, LARGE_SIZE), "float32", device) for v in (left, right))
    turned = b.t()
    plain = torch.matmul(a, turned)
    if not _product_is(plain, left, right, LARGE_SIZE, source):
        return f"matmul of {ROWS} x {LARGE_SIZE} x {ROWS}"
    expected = _bytes(plain)
    forms: dict[str, Callable[[], Any]] = {
        "@": lambda: a @ turned,
        "Tensor.matmul": lambda: a.matmul(turned),
        "mm": lambda: torch.mm(a, turned),
        "Tensor.mm": lambda: a.mm(turned),
        "bmm": lambda: torch.bmm(a[None], turned[None])[0],
        "linear": lambda: torch.nn.functional.linear(a, b),
        "einsum": lambda: torch.einsum("ij,kj->ik", a, b),
        "addmm": lambda: torch.addmm(torch.zeros(ROWS, device=device), a, turned),
    }
    # The products are exact: the order of adding changes no bit.
    wrong = [name for name, make in forms.items() if _bytes(make()) != expected]
    return ", ".join(f"{name} of {ROWS} x {LARGE_SIZE} x {ROWS}" for name in wrong)


def _bytes(made: Any) -> bytes:
    """Return a tensor's memory; a sum of whole numbers may be 0.0 or -0.0."""
    return _raw(made.detach() + 0.0)


def gradients(torch: Any, device: Any, source: random.Random) -> str:
    """Judge the three gradients of a linear layer of a thousand inputs and outputs."""
    rows, inner, outputs = 33, LARGE_SIZE, ROWS
    x, w = _whole(source, rows * inner), _whole(source, outputs * inner)
    up = _whole(source, rows * outputs)
    a, b, c = (
        torch.nn.Parameter(seeded_numbers.tensor(torch, v, shape, "float32", device))
        for v, shape in ((x, (rows, inner)), (w, (outputs, inner)), ([0.0] * outputs, (outputs,)))
    )
    made = torch.nn.functional.linear(a, b, c)
    made.backward(seeded_numbers.tensor(torch, up, (rows, outputs), "float32", device))
    if not _product_is(made, x, w, inner, source):
        return f"linear of {rows} x {inner} x {outputs}"
    sums = list(map(sum, zip(*_lines(up, outputs))))
    turned = [list(chain.from_iterable(zip(*_lines(v, n)))) for v, n in ((up, outputs), (x, inner), (w, inner))]
    wrong = []
    if seeded_numbers.read(c.grad) != sums:
        wrong.append("bias")
    if not _product_is(b.grad, turned[0], turned[1], rows, source):
        wrong.append("weight")
    if not _product_is(a.grad, up, turned[2], outputs, source):
        wrong.append("input")
    return ", ".join(f"gradient of the {name} of a linear layer {inner} x {outputs}" for name in wrong)


def wide_lines(torch: Any, device: Any, source: random.Random) -> str:
    """Judge normalisation, softmax, losses, sums, order and lookups of lines of four and of seventy thousand."""
    return ", ".join(filter(None, (_wide_line(torch, device, source, count) for count in WIDE)))


def _wide_line(torch: Any, device: Any, source: random.Random, count: int) -> str:
    f = torch.nn.functional
    values = seeded_numbers.rounded(seeded_numbers.uniform(source, count), "float32")
    x, target = seeded_numbers.tensor(torch, values, (1, count), "float32", device), source.randrange(count)
    logs, total = log_softmax(values), math.fsum(values)
    running = [math.fsum(values[: i + 1]) for i in (0, 1000, count - 1)]
    table = seeded_numbers.tensor(torch, values, (count, 1), "float32", device)
    chosen = [source.randrange(count) for _ in range(50)]
    index = seeded_numbers.tensor(torch, chosen, (50,), "int64", device)
    place = torch.tensor([target], device=device)
    rows: dict[str, tuple[Any, list[float]]] = {
        "softmax": (f.softmax(x, dim=1), softmax(values)),
        "log_softmax": (f.log_softmax(x, dim=1), logs),
        "layer_norm": (f.layer_norm(x, (count,)), normalized(values, 1e-5)),
        "cross_entropy": (f.cross_entropy(x, place), [-logs[target]]),
        "sum": (x.sum(), [total]),
        "mean": (x.mean(), [total / count]),
        "cumsum": (torch.cumsum(x, dim=1)[0, [0, 1000, count - 1]], running),
        "sort": (torch.sort(x, dim=1)[0], sorted(values)),
        "topk": (torch.topk(x, 3, dim=1)[0], sorted(values)[:-4:-1]),
        "embedding": (f.embedding(index, table), [values[i] for i in chosen]),
        "gelu": (f.gelu(x), [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in values]),
        "exp": (torch.exp(x), list(map(math.exp, values))),
        "tanh": (torch.tanh(x), list(map(math.tanh, values))),
        "relu": (f.relu(x), [max(v, 0.0) for v in values]),
        "+": (x + x, [v + v for v in values]),
        "add": (torch.add(x, x), [v + v for v in values]),
        "*": (x * x, [v * v for v in values]),
        "mul": (torch.mul(x, x), [v * v for v in values]),
        "torch.sum": (torch.sum(x), [total]),
        "argmax": (torch.argmax(x), [float(values.index(max(values)))]),
    }
    # A sum of n terms is off by u sqrt(n) of their size at most; a mean of terms of either sign may cancel.
    limit, size = 64 * math.sqrt(count) * seeded_numbers.UNIT_ROUNDOFF["float32"], math.sqrt(count)
    scale = {"sum": size, "torch.sum": size, "mean": 1 / size, "cumsum": size}
    wrong = []
    for name, (made, right) in rows.items():
        actual, least = seeded_numbers.read(made), scale.get(name, 0.0)
        off = [abs(p - q) for p, q in zip(actual, right)]
        top = max([least, *map(abs, right)])
        if len(actual) != len(right) or not all(distance <= limit * top for distance in off):
            wrong.append(f"{name} of {count}")
    return ", ".join(wrong)


def calls(torch: Any, device: Any, source: random.Random) -> dict[str, Callable[[], Any]]:
    """Return calls of common operators on small tensors, by name."""
    f = torch.nn.functional

    def made(*shape: int) -> Any:
        numbers = seeded_numbers.rounded(seeded_numbers.uniform(source, math.prod(shape)), "float32")
        return seeded_numbers.tensor(torch, numbers, shape, "float32", device)

    a, b, c, line = made(SMALL, SMALL), made(SMALL, SMALL), made(SMALL), made(1, 2, SMALL)
    image, kernel = made(1, 2, 6, 6), made(3, 2, 3, 3)
    index = torch.arange(SMALL, device=device)
    heads = [made(1, 2, 5, 8) for _ in range(3)]
    by_name: dict[str, Callable[[], Any]] = {
        "linear": lambda: f.linear(a, b, c),
        "matmul": lambda: torch.matmul(a, b),
        "@": lambda: a @ b,
        "mm": lambda: torch.mm(a, b),
        "bmm": lambda: torch.bmm(a[None], b[None]),
        "conv1d": lambda: f.conv1d(line, made_kernel),
        "conv2d": lambda: f.conv2d(image, kernel),
        "layer_norm": lambda: f.layer_norm(a, (SMALL,), c, c),
        "softmax": lambda: f.softmax(a, dim=1),
        "log_softmax": lambda: f.log_softmax(a, dim=1),
        "cross_entropy": lambda: f.cross_entropy(a, index),
        "embedding": lambda: f.embedding(index, a),
        "gelu": lambda: f.gelu(a),
        "silu": lambda: f.silu(a),
        "relu": lambda: f.relu(a),
        "mse_loss": lambda: f.mse_loss(a, b),
        "+": lambda: a + b,
        "*": lambda: a * b,
        "sum": lambda: torch.sum(a),
        "mean": lambda: torch.mean(a),
        "exp": lambda: torch.exp(a),
        "sort": lambda: torch.sort(a)[0],
        "to bfloat16": lambda: a.to(torch.bfloat16),
    }
    made_kernel = made(2, 2, 3)
    if hasattr(f, "scaled_dot_product_attention"):
        by_name["attention"] = lambda: f.scaled_dot_product_attention(*heads)
    return by_name


def repeated(torch: Any, device: Any, source: random.Random) -> str:
    """Judge that a call that is repeated a hundred times gives the same bits each time."""
    wrong = []
    for name, call in calls(torch, device, source).items():
        bits = [_raw(torch.stack([call() for _ in range(CALLS)]))]
        size = len(bits[0]) // CALLS
        odd = [i for i in range(CALLS) if bits[0][i * size : (i + 1) * size] != bits[0][:size]]
        wrong += [f"{name}: of {CALLS} equal calls number {odd[0] + 1} gave other bits"] if odd else []
    return "; ".join(wrong)


def _raw(made: Any) -> bytes:
    host = made.detach().cpu().contiguous()
    return ctypes.string_at(host.data_ptr(), host.numel() * host.element_size())


LARGE: dict[str, Promise] = {
    "large products": products,
    "gradients of a large linear layer": gradients,
}
WIDE_LINES: dict[str, Promise] = {"wide lines": wide_lines}
REPEATED: dict[str, Promise] = {"repeated calls": repeated}
