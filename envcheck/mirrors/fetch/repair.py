"""Find the wrong piece by comparing it with other sources, and replace it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from typing import Final

from envcheck.counting import counted
from envcheck.errors import PromiseError
from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.disk.running_hash import digest_of
from envcheck.mirrors.fetch.plan import range_responses
from envcheck.mirrors.fetch.plan.pieces import Failure, RangeTask
from envcheck.mirrors.fetch.plan.scheduler import MIXED, PieceScheduler
from envcheck.mirrors.fetch.request import StoppedError, TransferOptions
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.urls import host_of

# This many differing pieces give 64 combinations; each one needs a piece to fetch and a file to hash.
_COMBINED: Final = 6


@dataclasses.dataclass
class RepairResult:
    """The pieces that were replaced, each with its former source, and the bytes that the comparison moved.

    `whole` are the sources without range support: their pieces cannot be compared.
    """

    replaced: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    whole: list[int] = dataclasses.field(default_factory=list)
    moved: int = 0

    def summary(self, urls: Sequence[str]) -> str:
        """Return the result as text for the user."""
        hosts = sorted({source_name(urls, source) for _, source in self.replaced})
        return (
            f"{counted(len(self.replaced), 'bad piece')} came from {', '.join(hosts)}; fetched again from other sources"
        )


def source_name(urls: Sequence[str], source: int) -> str:
    """Return the host that a piece came from, as text for the user."""
    if source >= 0:
        return host_of(urls[source])
    return "several sources" if source == MIXED else "an earlier run"


def no_source_error(name: str, sha256: str) -> PromiseError:
    """Return the error for a file that no source has."""
    message = f"{name}: no source has the file with sha256 {sha256[:12]}..."
    fix = "check the hash, and compare the mirrors with the origin: they may serve wrong bytes"
    return PromiseError(message, fix=fix)


def repair(
    urls: Sequence[str], sha256: str, options: TransferOptions, file: int, scheduler: PieceScheduler
) -> RepairResult:
    """Replace pieces with those of other sources until the file has its hash or every source was tried.

    A piece is not fetched again from its own source, unless there is only one source. If every source has bad pieces,
    try all combinations of the few pieces that differ.
    """
    result = RepairResult()
    size = scheduler.spans[-1].stop if scheduler.spans else 0
    for piece, source, fresh in _pieces_of_other_sources(urls, options, scheduler, size, result):
        result.moved += len(fresh)
        start = scheduler.spans[piece].start
        if fresh == os.pread(file, len(fresh), start):
            continue
        partial_file.write(file, fresh, start)
        result.replaced.append((piece, scheduler.done[piece]))
        scheduler.done[piece] = source
        # Usually there is one bad piece; then the other pieces need no request.
        if len(result.replaced) == 1 and digest_of(file, size) == sha256:
            return result
    if digest_of(file, size) != sha256:
        _try_combinations(urls, sha256, options, file, scheduler, result)
    return result


def _try_combinations(
    urls: Sequence[str],
    sha256: str,
    options: TransferOptions,
    file: int,
    scheduler: PieceScheduler,
    result: RepairResult,
) -> None:
    """Swap one differing piece at a time between its two sources until the file has its hash."""
    size = scheduler.spans[-1].stop if scheduler.spans else 0
    pairs = [(piece, old_source, scheduler.done[piece]) for piece, old_source in result.replaced]
    if len(pairs) > _COMBINED or any(old_source < 0 or old_source == new_source for _, old_source, new_source in pairs):
        return
    for step in range(1, 1 << len(pairs)):
        # A Gray code: each combination differs from the one before in the piece of the lowest set bit.
        piece, old_source, new_source = pairs[(step & -step).bit_length() - 1]
        source = old_source if scheduler.done[piece] == new_source else new_source
        fresh = _read_piece(options, urls[source], RangeTask(piece, scheduler.spans[piece], source), size)
        if not isinstance(fresh, bytes):
            return
        partial_file.write(file, fresh, scheduler.spans[piece].start)
        result.moved += len(fresh)
        scheduler.done[piece] = source
        if digest_of(file, size) == sha256:
            result.replaced = [
                (piece, old_source) for piece, old_source, new_source in pairs if scheduler.done[piece] == new_source
            ]
            return


def _pieces_of_other_sources(
    urls: Sequence[str], options: TransferOptions, scheduler: PieceScheduler, size: int, result: RepairResult
) -> Iterator[tuple[int, int, bytes]]:
    """Yield each piece from every source other than its own; record the sources without range support."""
    for source, url in enumerate(urls):
        for piece, span in enumerate(scheduler.spans):
            if scheduler.done[piece] == source and len(urls) > 1:
                continue
            fresh = _read_piece(options, url, RangeTask(piece, span, source), size)
            if not isinstance(fresh, bytes):
                result.whole += [source] if fresh.whole else []
                break
            yield piece, source, fresh


def _read_piece(options: TransferOptions, url: str, task: RangeTask, size: int) -> bytes | Failure:
    if options.stop.is_set():
        raise StoppedError
    try:
        with options.client.get(url, range_responses.range_headers(task)) as answer:
            failure = range_responses.range_failure(task, answer.status, answer.headers, size, time.time())
            if failure is not None:
                return failure
            fresh = b"".join(_limited(options, answer.chunks(options.limiter.chunk)))
    except NetworkError as error:
        return Failure(str(error))
    return fresh if len(fresh) == task.span.size else Failure("the response ended too early")


def _limited(options: TransferOptions, chunks: Iterator[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        options.limiter.take(len(chunk), options.stop)
        yield chunk
