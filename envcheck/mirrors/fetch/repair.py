"""Find the piece that is wrong, by comparing with another source, and take it from there."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from typing import Final

from envcheck.errors import PromiseError
from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.disk.running_hash import digest_of
from envcheck.mirrors.fetch.plan import range_responses
from envcheck.mirrors.fetch.plan.pieces import Failure, RangeTask
from envcheck.mirrors.fetch.plan.scheduler import MIXED, PieceScheduler
from envcheck.mirrors.fetch.request import StoppedError, TransferOptions
from envcheck.mirrors.net.client import NetworkError
from envcheck.mirrors.net.urls import host_of

# So many pieces that differ give 64 combinations, each of which is a piece to fetch and a file to hash.
_COMBINED: Final = 6


@dataclasses.dataclass
class RepairResult:
    """The pieces that another source has otherwise, with the source they were from, and the bytes it took to see it.

    `whole` are the sources that cannot be compared with, as they send whole files only.
    """

    replaced: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    whole: list[int] = dataclasses.field(default_factory=list)
    moved: int = 0

    def told(self, urls: Sequence[str]) -> str:
        """Return what a person reads of it."""
        hosts = sorted({source_name(urls, source) for _, source in self.replaced})
        return f"{len(self.replaced)} bad piece(s) came from {', '.join(hosts)}; fetched from elsewhere"


def source_name(urls: Sequence[str], source: int) -> str:
    """Return who gave a piece, for a person."""
    if source >= 0:
        return host_of(urls[source])
    return "several sources" if source == MIXED else "an earlier run"


def no_source_error(name: str, sha256: str) -> PromiseError:
    """Return the error of a file that no source has."""
    message = f"{name}: no source has the file with sha256 {sha256[:12]}..."
    fix = "the hash is of another file, or the mirrors serve wrong bytes: compare with the origin"
    return PromiseError(message, fix=fix)


def repair(urls: Sequence[str], sha256: str, means: TransferOptions, file: int, board: PieceScheduler) -> RepairResult:
    """Replace pieces by what other sources have until the file has its hash, or every source was asked.

    Nobody is asked for what was taken from it, unless it is the only source: then all is asked for once more. Where
    each source has bad pieces of its own, the few that differ are tried in every combination.
    """
    found = RepairResult()
    size = board.spans[-1].stop if board.spans else 0
    for piece, source, fresh in _pieces_of_other_sources(urls, means, board, size, found):
        found.moved += len(fresh)
        start = board.spans[piece].start
        if fresh == os.pread(file, len(fresh), start):
            continue
        partial_file.write(file, fresh, start)
        found.replaced.append((piece, board.done[piece]))
        board.done[piece] = source
        # One bad piece is the usual case, and then the rest need not be asked for.
        if len(found.replaced) == 1 and digest_of(file, size) == sha256:
            return found
    if digest_of(file, size) != sha256:
        _try_combinations(urls, sha256, means, file, board, found)
    return found


def _try_combinations(
    urls: Sequence[str], sha256: str, means: TransferOptions, file: int, board: PieceScheduler, found: RepairResult
) -> None:
    """Take one differing piece at a time from the other of its two sources, until the file has its hash."""
    size = board.spans[-1].stop if board.spans else 0
    pairs = [(piece, was, board.done[piece]) for piece, was in found.replaced]
    if len(pairs) > _COMBINED or any(was < 0 or was == now for _, was, now in pairs):
        return
    for step in range(1, 1 << len(pairs)):
        # A Gray code: each combination differs from the one before in the piece of the lowest set bit.
        piece, was, now = pairs[(step & -step).bit_length() - 1]
        source = was if board.done[piece] == now else now
        fresh = _read_piece(means, urls[source], RangeTask(piece, board.spans[piece], source), size)
        if not isinstance(fresh, bytes):
            return
        partial_file.write(file, fresh, board.spans[piece].start)
        found.moved += len(fresh)
        board.done[piece] = source
        if digest_of(file, size) == sha256:
            found.replaced = [(piece, was) for piece, was, now in pairs if board.done[piece] == now]
            return


def _pieces_of_other_sources(
    urls: Sequence[str], means: TransferOptions, board: PieceScheduler, size: int, found: RepairResult
) -> Iterator[tuple[int, int, bytes]]:
    """Yield each piece as each source but its own has it; note who has whole files only."""
    for source, url in enumerate(urls):
        for piece, span in enumerate(board.spans):
            if board.done[piece] == source and len(urls) > 1:
                continue
            fresh = _read_piece(means, url, RangeTask(piece, span, source), size)
            if not isinstance(fresh, bytes):
                found.whole += [source] if fresh.whole else []
                break
            yield piece, source, fresh


def _read_piece(means: TransferOptions, url: str, task: RangeTask, size: int) -> bytes | Failure:
    if means.stop.is_set():
        raise StoppedError
    try:
        with means.client.get(url, range_responses.range_headers(task)) as answer:
            failure = range_responses.range_failure(task, answer.status, answer.headers, size, time.time())
            if failure is not None:
                return failure
            fresh = b"".join(_limited(means, answer.chunks(means.limiter.chunk)))
    except NetworkError as error:
        return Failure(str(error))
    return fresh if len(fresh) == task.span.size else Failure("it ended before its length")


def _limited(means: TransferOptions, chunks: Iterator[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        means.limiter.take(len(chunk), means.stop)
        yield chunk
