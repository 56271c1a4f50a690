"""A small file in one request: no threads, no journal, no reservation. What does not come so takes the usual way."""

from __future__ import annotations

import hashlib
import os
from http import HTTPStatus
from typing import Final, NamedTuple

from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.plan.pieces import MIB
from envcheck.mirrors.fetch.request import StoppedError, TransferOptions, WantedFile
from envcheck.mirrors.net.client import NetworkError
from envcheck.mirrors.net.urls import host_of

# Bytes: the smallest piece. More would be lost when a connection breaks.
LARGEST: Final = MIB


class SmallFile(NamedTuple):
    """A file that came: its size, the bytes that were moved for it (wrong ones too), and the host that gave it."""

    size: int
    moved: int
    host: str


def may_be_small(wanted: WantedFile) -> bool:
    """Tell whether a file is expected to be small; a page that claims so may be wrong (see `bring`)."""
    return wanted.expected is not None and 0 <= wanted.expected <= LARGEST


def fetch_small(wanted: WantedFile, means: TransferOptions, file: int) -> SmallFile | None:
    """Write the file to an open, empty one, from the first source that gives it; None where no source does at once.

    It is hashed before it is written. Never more than LARGEST bytes are read of an answer.
    """
    moved = 0
    for url in wanted.urls:
        host = host_of(url)
        with means.slots.one(host, means.stop.is_set) as mine:
            if not mine:
                raise StoppedError
            content = _content(url, means)
        moved += len(content)
        if hashlib.sha256(content).hexdigest() == wanted.sha256:
            try:
                partial_file.write(file, content, 0)
            except OSError as error:
                raise partial_file.disk_error(error, wanted.path, len(content)) from error
            return SmallFile(len(content), moved, host)
    return None


def _content(url: str, means: TransferOptions) -> bytes:
    """Return what a source sends, or nothing where it sends no such file or breaks off."""
    received: list[bytes] = []
    size = 0
    try:
        with means.client.get(url) as answer:
            if answer.status != HTTPStatus.OK:
                return b""
            for chunk in answer.chunks(means.limiter.chunk):
                if means.stop.is_set():
                    raise StoppedError
                means.limiter.take(len(chunk), means.stop)
                received.append(chunk)
                size += len(chunk)
                if size > LARGEST:
                    break
    except NetworkError:
        return b""
    return b"".join(received)


def is_empty(file: int) -> bool:
    """Tell whether an unfinished file was begun just now: what an earlier run left is resumed the usual way."""
    return os.fstat(file).st_size == 0
