"""The smallest choice of sets that covers everything, exactly, and the best one of those that are as small.

A set is a bit mask of what it covers, with the score that it adds. Kinds of nodes are few (40), and cells that cover
the same kinds equally well are one set, so that a search that branches on what is hardest to cover ends at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Larger is better, field by field; of several sets the sorted list is compared, the worst first.
Score = tuple[int, ...]


class CoverSet(NamedTuple):
    """A set: the elements it covers as bits, and how good it is."""

    mask: int
    score: Score


def smallest_cover(elements: int, sets: Sequence[CoverSet]) -> list[int] | None:
    """Return the places of the fewest sets that cover the elements (bits), None where all of them together do not.

    Of covers of one size the one whose worst score is best is returned, then whose second worst is; then the first.
    """
    union = 0
    for one in sets:
        union |= one.mask
    if elements & ~union:
        return None
    size = 0
    while True:
        best = _best(elements, sets, size)
        if best is not None:
            return best
        size += 1


def value(places: Sequence[int], sets: Sequence[CoverSet]) -> list[Score]:
    """Return what covers of one size are compared by: the larger is better."""
    return sorted(sets[place].score for place in places)


def _best(elements: int, sets: Sequence[CoverSet], size: int) -> list[int] | None:
    best: list[int] | None = None
    for places in _covers(elements, sets, size):
        cover = sorted(places)
        if best is None or (value(cover, sets), [-p for p in cover]) > (value(best, sets), [-p for p in best]):
            best = cover
    return best


def _covers(missing: int, sets: Sequence[CoverSet], size: int) -> Iterator[list[int]]:
    """Yield every cover of at most `size` sets of which each covers something that those before it do not."""
    if not missing:
        yield []
        return
    if size == 0 or max((one.mask & missing).bit_count() for one in sets) * size < missing.bit_count():
        return
    for place in min((_covering(bit, sets) for bit in _bits(missing)), key=len):
        for cover in _covers(missing & ~sets[place].mask, sets, size - 1):
            yield [place, *cover]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield mask & -mask
        mask &= mask - 1


def _covering(bit: int, sets: Sequence[CoverSet]) -> list[int]:
    return [place for place, one in enumerate(sets) if one.mask & bit]
