"""nginx's cache files as they lie on disk: a fixed header (version 5, since nginx 1.11.10), the key, the answer."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# ngx_http_file_cache_header_t: version, five times, crc32, valid_msec, header_start, body_start.
_HEADER: Final = struct.Struct("=Q5qIHHH")
_VERSION: Final = 5
_KEY: Final = re.compile(rb"\nKEY: ([^\n]+)\|bytes=([0-9]+)-[0-9]+\n")
_RANGE: Final = re.compile(rb"\r\ncontent-range: bytes [0-9]+-[0-9]+/([0-9]+)\r\n", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]+)\r\n", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Slice:
    """A piece of an upstream file: from byte `start` of `total`; its bytes begin at `body` of `path`."""

    path: Path
    url: str
    start: int
    total: int
    body: int


def slices(root: Path) -> Iterator[Slice]:
    """Yield every piece of a file below a cache of nginx's; what is being written or is none is passed over."""
    for path in sorted(root.glob("*/*/*")):
        found = _slice(path)
        if found is not None:
            yield found


def _slice(path: Path) -> Slice | None:
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except FileNotFoundError:
        return None
    if len(head) < _HEADER.size:
        return None
    version, *_, start, body = _HEADER.unpack_from(head)
    key, told = _KEY.search(head[:start]), head[start:body]
    size = _RANGE.search(told) or _LENGTH.search(told)
    # Another status than 200 and 206 is an answer that is cached for a minute, and no file.
    if version != _VERSION or key is None or size is None or told.split(b" ", 2)[1] not in {b"200", b"206"}:
        return None
    return Slice(path, key[1].decode("utf-8", "replace"), int(key[2]), int(size[1]), body)
