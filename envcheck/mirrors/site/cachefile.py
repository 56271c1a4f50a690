"""nginx's cache files as they lie on disk: a fixed header (version 5, since nginx 1.11.10), the key, the answer."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from envcheck.mirrors.site.audit_disk import Unread, files, unread

# ngx_http_file_cache_header_t: version, five times, crc32, valid_msec, header_start, body_start.
_HEADER: Final = struct.Struct("=Q5qIHHH")
_VERSION: Final = 5
_HEAD: Final = 1 << 16  # both offsets have 16 bits
_KEY: Final = re.compile(rb"\nKEY: ([^\n]*)\n")
_SLICE: Final = re.compile(r"(.+)\|bytes=([0-9]+)-[0-9]+")
_RANGE: Final = re.compile(rb"\r\ncontent-range: bytes ([0-9]+)-([0-9]+)/([0-9]+)\r\n", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]+)\r\n", re.IGNORECASE)
_KIND: Final = re.compile(rb"\r\ncontent-type: ([^\r]+)\r\n", re.IGNORECASE)
# What nginx is writing, or was when it was killed.
_PART: Final = re.compile(r"[0-9a-f]{32}\.[0-9]{10}")


@dataclasses.dataclass(frozen=True)
class Answer:
    """An upstream's answer: its key and status; its bytes begin at `body` of `path`, and are as many as `length`.

    `start` and `total` are where they lie in the whole; `length` and `total` are None where the upstream said none.
    """

    path: Path
    key: str
    status: int
    kind: str
    body: int
    start: int = 0
    length: int | None = None
    total: int | None = None


@dataclasses.dataclass(frozen=True)
class Slice:
    """A piece of an upstream file: `length` bytes from byte `start` of `total`; they begin at `body` of `path`."""

    path: Path
    url: str
    start: int
    length: int
    total: int
    body: int


def slices(root: Path) -> Iterator[Slice | Unread]:
    """Yield every piece of a file below a cache of nginx's, and whatever else is there that is no other answer."""
    for answer in answers(root):
        if isinstance(answer, Unread):
            yield answer
        elif answer.status in {200, 206}:  # others are cached for a minute, and are no file
            yield _slice(answer)


def answers(root: Path) -> Iterator[Answer | Unread]:
    """Yield every answer below a cache of nginx's; what is being written is passed over."""
    for path in files(root):
        if isinstance(path, Unread):
            yield path
            continue
        if _PART.fullmatch(path.name):
            continue
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield unread(path, error)
            continue
        yield _answer(path, head) or Unread(path, "no cache file of nginx's", strange=True)


def _answer(path: Path, head: bytes) -> Answer | None:
    if len(head) < _HEADER.size:
        return None
    version, *_, start, body = _HEADER.unpack_from(head)
    key, told = _KEY.search(head[:start]), head[start:body]
    line = told.split(b" ", 2)
    if version != _VERSION or key is None or len(line) < 3 or not line[1].isdigit():  # noqa: PLR2004 (HTTP/1.1 200 OK)
        return None
    part, whole, kind = _RANGE.search(told), _LENGTH.search(told), _KIND.search(told)
    size = int(whole[1]) if whole else None
    return Answer(
        path=path,
        key=key[1].decode("utf-8", "replace"),
        status=int(line[1]),
        kind=kind[1].decode("latin-1") if kind else "",
        body=body,
        start=int(part[1]) if part else 0,
        length=int(part[2]) - int(part[1]) + 1 if part else size,
        total=int(part[3]) if part else size,
    )


def _slice(answer: Answer) -> Slice | Unread:
    key = _SLICE.fullmatch(answer.key)
    if key is None or answer.length is None or answer.total is None:
        why = "nothing says how long it is" if key else "its key names no piece of a file"
        return Unread(answer.path, why, strange=True)
    if int(key[2]) != answer.start:
        return Unread(answer.path, "its key names another piece than its answer", strange=True)
    return Slice(answer.path, key[1], answer.start, answer.length, answer.total, answer.body)
