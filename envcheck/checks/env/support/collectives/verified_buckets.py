"""All-reduces of messages as large as DDP's buckets, whose sums are known."""

from __future__ import annotations

from typing import Any

from envcheck.checks.env.support.collectives import exact_comparison
from envcheck.checks.env.support.operators import seeded_numbers, seeded_words

# Integers up to here are exact in float32 (IEEE 754-2019, table 3.5). Elements at each end of a message.
_EXACT, _FACTORS, _ENDS = 1 << 24, 64, 64


class VerifiedBuckets:
    """The all-reduces of DDP's buckets with nothing beside them; each message is verified after it was timed.

    Each bucket holds seeded integers whose sum is exact in float32; no block of them is like another one, so that one
    which is shifted, swapped or sent twice is seen. Each turn and each rank multiplies them by a number of its own.
    """

    def __init__(self, torch: Any, dist: Any, buckets: list[int], device: Any, seed: int) -> None:
        self.torch, self.dist, self.world = torch, dist, dist.get_world_size()
        words = seeded_words.Words(torch, seed)
        # As many bits as keep the sum exact.
        kept = (_EXACT // self.total(1)).bit_length() - 1
        whole = words.tensor(max([0, *buckets]) + len(buckets), device).bitwise_and_((1 << kept) - 1)
        self.sent = [whole[number : number + count].to(torch.float32) for number, count in enumerate(buckets)]
        self.tensors = [torch.zeros_like(bucket) for bucket in self.sent]

    def factor(self, rank: int, turn: int) -> int:
        """Return by what a rank multiplies the integers in a turn."""
        return rank % _FACTORS + 1 + turn % 2

    def total(self, turn: int) -> int:
        """Return by what the sum over the ranks is larger than the integers."""
        return sum(self.factor(rank, turn) for rank in range(self.world))

    def fill(self, turn: int) -> None:
        """Write what this rank sends in this turn."""
        for tensor, sent in zip(self.tensors, self.sent):
            self.torch.mul(sent, self.factor(self.dist.get_rank(), turn), out=tensor)

    def send(self) -> None:
        """Start every all-reduce, and wait for all of them."""
        for work in [self.dist.all_reduce(tensor, async_op=True) for tensor in self.tensors]:
            work.wait()

    def wrong(self, turn: int) -> int:
        """Return how many elements are not the sum of what the ranks sent."""
        total, wrong = self.total(turn), 0
        for tensor, sent in zip(self.tensors, self.sent):
            # A torch that sees no difference would hide all of them: plain Python looks at the ends.
            ends = [(tensor[end], sent[end]) for end in (slice(0, _ENDS), slice(-_ENDS, None))]
            seen = sum(
                seeded_numbers.read(received) != [total * x for x in seeded_numbers.read(sent)]
                for received, sent in ends
            )
            wrong += max(seen, int(exact_comparison.compared(self.torch, tensor, sent * total)))
        return wrong
