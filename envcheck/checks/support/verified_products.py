"""Large matrix products of which every element is verified, however often they are repeated.

Plain Python cannot compute a product of 8192^3 a second time. Its data comes from Python's generator, and plain Python
computes a corner of it. Sums of 64 elements each are compared with sums in float64 that no matrix product takes part in
(Freivalds, "Probabilistic machines can use less running time", 1977). Every repetition is then compared with that
reference bit for bit: the same product of the same bits has the same bits (NVIDIA cuBLAS documentation, Results
reproducibility).
"""

from __future__ import annotations

import array
import math
from collections.abc import Callable
from operator import mul
from typing import Any

from envcheck.checks.collectives import exact_numbers
from envcheck.checks.support import seeded_numbers

# Rows and columns of the corner that plain Python computes; elements of a sum.
CORNER, SUM = 16, 64
# How far the first product may be off plain Python and sums in float64; all others must have its bits.
TOLERANCE = {"float32": 1e-4, "tf32": 5e-3, "float16": 5e-3, "bfloat16": 1e-2, "float8": 2e-2}
# Data lies between -2 and 2, with all bits of a float32's significand in use.
_SCALE = 2.0**-30
# Bytes drawn at once: getrandbits takes no more than 2^31 - 1 bits.
_PIECE = 1 << 26
# So many standard deviations off is the largest of a million sums of rounded elements.
_LARGEST = 5.0
# Of the usual size of what is added, what a sum is compared with at least.
_LEAST = 0.01
# Each element of a sum has another weight, so that no two of them change places unseen.
_WEIGHTS = [(-1) ** place * (0.5 + place / SUM) for place in range(SUM)]


def data(torch: Any, rows: int, columns: int, device: Any, seed: int) -> Any:
    """Return a float32 matrix that Python makes from the seed; CorruptTransferError if it holds others."""
    source, words = seeded_numbers.source(seed), bytearray()
    while len(words) < 4 * rows * columns:
        count = min(_PIECE, 4 * rows * columns - len(words))
        words += source.getrandbits(8 * count).to_bytes(count, "little")
    made = torch.frombuffer(words, dtype=torch.int32).to(device).to(torch.float32).mul_(_SCALE).view(rows, columns)
    first = [word * _SCALE for word in array.array("i", bytes(words[: 4 * CORNER * columns]))]
    if seeded_numbers.read(made[:CORNER]) != array.array("f", first).tolist():
        message = f"a matrix on {device} does not hold the numbers that it was made of"
        raise seeded_numbers.CorruptTransferError(message)
    return made


class Products:
    """Two products of one left matrix, taken alternately, so that one that was not computed is seen.

    `lines[turn]` holds the columns of the right matrix as rows: an element of the product is the scalar product of a
    row of `left` and a row of `lines`. `multiply(turn)` returns the product.
    """

    def __init__(self, torch: Any, left: Any, lines: tuple[Any, Any], multiply: Callable[[int], Any]) -> None:
        self.torch, self.multiply, self.turn = torch, multiply, 0
        self.references = [multiply(turn).clone() for turn in (0, 1)]
        pairs = [*zip(self.references, lines)]
        self.error = worst([error(torch, left, line, reference) for reference, line in pairs])
        self.product: Any = None
        self.counted: list[Any] = []

    def work(self) -> None:
        """Compute the product whose turn it is."""
        self.product = self.multiply(self.turn % 2)

    def verify(self) -> None:
        """Count the elements that have other bits than the reference's; the device is not waited for."""
        reference = self.references[self.turn % 2].view(-1)
        self.counted.append(exact_numbers.compared(self.torch, self.product.view(-1), reference))
        self.turn += 1

    def wrong(self) -> list[int]:
        """Return how many elements were wrong in each product."""
        return [int(count) for count in self.counted]


def worst(errors: list[float]) -> float:
    """Return the largest error, infinite where one is no number."""
    return max((error if math.isfinite(error) else math.inf for error in errors), default=math.inf)


def error(torch: Any, left: Any, lines: Any, product: Any) -> float:
    """Return how far a product is off: its corner, and its sums, each relative to the size of what is compared."""
    rows, columns = (seeded_numbers.read(side[:CORNER].float()) for side in (left, lines))
    corner = _product(rows, columns, left.shape[1])
    return worst(
        [
            seeded_numbers.apart(seeded_numbers.read(product[:CORNER, :CORNER]), corner),
            _sums(torch, left, lines, product),
        ]
    )


def _product(left: list[float], lines: list[float], inner: int) -> list[float]:
    """Return left (rows x inner) times the transpose of `lines` (columns x inner), in plain Python."""
    columns = [lines[start : start + inner] for start in range(0, len(lines), inner)]
    rows = (left[start : start + inner] for start in range(0, len(left), inner))
    return [sum(map(mul, row, column)) for row in rows for column in columns]


def _sums(torch: Any, left: Any, lines: Any, product: Any) -> float:
    """Return how far weighted sums of SUM elements of each row are off, at most, by the size of what is added."""
    weights = torch.tensor(_WEIGHTS, dtype=torch.float64, device=left.device)
    wide, errors = left.float().double(), []
    for first in range(0, lines.shape[0], SUM):
        part = product[:, first : first + SUM].double() * weights
        right = (wide * (lines[first : first + SUM].float().double() * weights[:, None]).sum(0)).sum(1)
        size = part.square().sum(1).sqrt()
        apart = (part.sum(1) - right).abs()
        # A row of zeros, as a dead unit's gradient, is right; one that is nearly so has lost digits below the dtype's.
        errors.append((apart / (_LARGEST * torch.maximum(size, _LEAST * size.mean()))).where(apart != 0, apart).max())
    return worst([float(distance) for distance in torch.stack(errors).tolist()])
