"""Fetch a small file in one request, without threads, journal or reserved space. If it fails, use a full download."""

from __future__ import annotations

import hashlib
import os
from http import HTTPStatus
from typing import Final, NamedTuple

from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.plan.pieces import MIB
from envcheck.mirrors.fetch.request import StoppedError, TransferOptions, WantedFile
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.urls import host_of

# Bytes: the smallest piece. A larger file would lose more when a connection breaks.
LARGEST: Final = MIB


class SmallFile(NamedTuple):
    """A fetched file: its size, the bytes that were received (wrong ones too), and its host."""

    size: int
    moved: int
    host: str


def may_be_small(target: WantedFile) -> bool:
    """Tell whether a file is expected to be small. A page may claim a wrong size (see `fetch_small`)."""
    return target.expected is not None and 0 <= target.expected <= LARGEST


def fetch_small(target: WantedFile, options: TransferOptions, file: int) -> SmallFile | None:
    """Write the file to an open, empty file from the first source that has it; return None if no source does at once.

    The content is hashed before it is written. At most LARGEST bytes of a response are read.
    """
    moved = 0
    for url in target.urls:
        host = host_of(url)
        with options.slots.acquire(host, options.stop.is_set) as acquired:
            if not acquired:
                raise StoppedError
            content = _content(url, options)
        moved += len(content)
        if hashlib.sha256(content).hexdigest() == target.sha256:
            try:
                partial_file.write(file, content, 0)
            except OSError as error:
                raise partial_file.disk_error(error, target.path, len(content)) from error
            return SmallFile(len(content), moved, host)
    return None


def _content(url: str, options: TransferOptions) -> bytes:
    """Return the content that a source sends; empty if the request fails or breaks off."""
    received: list[bytes] = []
    size = 0
    try:
        with options.client.get(url) as answer:
            if answer.status != HTTPStatus.OK:
                return b""
            for chunk in answer.chunks(options.limiter.chunk):
                if options.stop.is_set():
                    raise StoppedError
                options.limiter.take(len(chunk), options.stop)
                received.append(chunk)
                size += len(chunk)
                if size > LARGEST:
                    break
    except NetworkError:
        return b""
    return b"".join(received)


def is_empty(file: int) -> bool:
    """Tell whether an unfinished file is new. A full download resumes a file that an earlier run left."""
    return os.fstat(file).st_size == 0
