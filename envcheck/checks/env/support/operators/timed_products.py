"""The same few matrix products over and over, timed on the clock, each verified outside what is timed."""

from __future__ import annotations

import math
from typing import Any

from envcheck.checks import Measured
from envcheck.checks.collectives import exact_numbers
from envcheck.checks.env.support.operators import verified_products
from envcheck.checks.support import timed_rounds


class Work:
    """So many products of one matrix by itself: the work of a round."""

    def __init__(self, torch: Any, device: Any, size: int, products: int, seed: int) -> None:
        self.torch = torch
        self.data = verified_products.data(torch, size, size, device, seed)
        self.outs = [torch.empty_like(self.data) for _ in range(products)]
        self._do()
        self.reference = self.outs[0].clone()
        self.error = verified_products.error(torch, self.data, self.data.t(), self.reference)
        self.counted: list[Any] = []

    def timed(self) -> tuple[float, float]:
        """Return how long a round took and for how long it slept; its products have to be there afterwards."""
        for out in self.outs:
            out.fill_(math.nan)
        self._wait()
        took = timed_rounds.timed(self._do)
        for out in self.outs:
            wrong = exact_numbers.compared(self.torch, out.view(-1), self.reference.view(-1))
            self.counted.append(wrong)
        return took

    def measured(self) -> Measured:
        """Return how far the first product is off, and how many of the timed ones had other bits than it."""
        wrong = [int(count) for count in self.counted]
        return {"error": self.error, "products": len(wrong), "wrong": sum(count > 0 for count in wrong)}

    def _do(self) -> None:
        for out in self.outs:
            self.torch.mm(self.data, self.data, out=out)
        self._wait()

    def _wait(self) -> None:
        if self.data.is_cuda:
            self.torch.cuda.synchronize()
