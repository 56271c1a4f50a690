"""Sums of products in plain Python: matrix products, and convolutions as lists of which elements meet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from operator import mul
from typing import NamedTuple

from envcheck.checks.env.support.operators import seeded_numbers

# Seen with torch 2.13 and 2.14 on a CPU with AMX, in 2-D and 3-D; right with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16.
FLAW = (
    "oneDNN's AMX kernel computes bf16 convolutions wrongly where the last dimension has a stride and one output "
    "(pytorch/pytorch#169688, #188426)"
)


def matmul(left: Sequence[float], right: Sequence[float], inner: int, columns: int) -> list[float]:
    """Return left (rows x inner) times right (inner x columns), all row-major."""
    lines = [right[column::columns] for column in range(columns)]
    rows = (left[start : start + inner] for start in range(0, len(left), inner))
    return [sum(map(mul, row, line)) for row in rows for line in lines]


def transposed(values: Sequence[float], columns: int) -> list[float]:
    """Return a row-major matrix of that many columns with rows and columns swapped."""
    return [value for column in range(columns) for value in values[column::columns]]


def linear(x: Sequence[float], weight: Sequence[float], bias: Sequence[float] | None, inner: int) -> list[float]:
    """Return x @ weight^T + bias; weight is outputs x inner."""
    lines = [weight[start : start + inner] for start in range(0, len(weight), inner)]
    added = bias or [0.0] * len(lines)
    rows = (x[start : start + inner] for start in range(0, len(x), inner))
    return [sum(map(mul, row, line)) + more for row in rows for line, more in zip(lines, added)]


def meet(
    count: int, triples: Iterable[tuple[int, int, int]], left: Sequence[float], right: Sequence[float]
) -> list[float]:
    """Return `count` sums: for each (place, a, b) the product left[a] * right[b] is added at its place."""
    sums = [0.0] * count
    for place, one, other in triples:
        sums[place] += left[one] * right[other]
    return sums


def count(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)


class Convolution(NamedTuple):
    """Shapes and options of a convolution of any number of dimensions."""

    images: int
    channels: int
    filters: int
    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def flaw(self) -> str:
        """What oneDNN is known to get wrong of this form in bf16; empty for nothing."""
        return FLAW if len(self.out) > 1 and self.out[-1] == 1 and self.stride[-1] > 1 else ""

    @property
    def out(self) -> tuple[int, ...]:
        """Return the output's sizes (torch.nn.Conv2d's documentation, Shape)."""
        fields = zip(self.sizes, self.kernel, self.stride, self.padding, self.dilation)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in fields)

    @property
    def left_over(self) -> tuple[int, ...]:
        """How much longer the input is than what the transposed convolution makes of the output by itself."""
        fields = zip(self.sizes, self.out, self.kernel, self.stride, self.padding, self.dilation)
        return tuple(n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, m, k, s, p, d in fields)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of images, weights and output."""
        weights = (self.filters, self.channels // self.groups, *self.kernel)
        return (self.images, self.channels, *self.sizes), weights, (self.images, self.filters, *self.out)

    def _taps(self) -> list[tuple[int, int, int]]:
        """Return (output place, input place, kernel place) of one channel, one filter, one image."""
        steps, taps = seeded_numbers.strides(self.sizes), []
        positions = enumerate(itertools.product(*map(range, self.out)))
        kernel = list(enumerate(itertools.product(*map(range, self.kernel))))
        for place, at in positions:
            for tap, offset in kernel:
                fields = zip(at, offset, self.stride, self.padding, self.dilation)
                where = [a * s - p + o * d for a, o, s, p, d in fields]
                if all(0 <= w < n for w, n in zip(where, self.sizes)):
                    taps.append((place, sum(w * step for w, step in zip(where, steps)), tap))
        return taps

    def triples(self) -> list[tuple[int, int, int]]:
        """Return (output, input, weight) of every product that a convolution adds up."""
        inputs, outputs, taps = math.prod(self.sizes), math.prod(self.out), math.prod(self.kernel)
        mine, ours = self.channels // self.groups, self.filters // self.groups
        one = self._taps()
        terms = []
        for image, filter_, channel in itertools.product(range(self.images), range(self.filters), range(mine)):
            source = (image * self.channels + filter_ // ours * mine + channel) * inputs
            target, weight = (image * self.filters + filter_) * outputs, (filter_ * mine + channel) * taps
            terms += [(target + a, source + b, weight + c) for a, b, c in one]
        return terms
