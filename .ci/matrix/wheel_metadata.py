"""Read a wheel's METADATA without the wheel: from the index's copy (PEP 658), or from the wheel's end by ranges."""

from __future__ import annotations

import io
import re
import zipfile
from typing import Any, Final

from envcheck.mirrors.index import IndexFile
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError

_OK: Final = 200
_PARTIAL: Final = 206
_TOTAL: Final = re.compile(r"bytes \d+-\d+/(\d+)")
_METADATA: Final = re.compile(r"[^/]+\.dist-info/METADATA")
_REQUIRES: Final = re.compile(r"^Requires-Dist: *(.+?)\r?$", re.MULTILINE)
# Bytes. The longest known descriptions have a few hundred KB; the list of torch's members has 1 MB.
_LARGEST: Final = 16 << 20
_BLOCK: Final = 1 << 16


def read_requirements(client: Client, file: IndexFile) -> list[str] | None:
    """Return the requirements of a wheel on an index; None if the index serves neither its METADATA nor ranges.

    Raises NetworkError if the host does not answer.
    """
    metadata = read_metadata(client, file)
    return None if metadata is None else _REQUIRES.findall(metadata.partition("\n\n")[0])


def read_metadata(client: Client, file: IndexFile) -> str | None:
    """Return the METADATA of a wheel on an index; None if the index serves neither it nor ranges of the wheel.

    Raises NetworkError if the host does not answer.
    """
    return _copy(client, file) or _from_wheel(client, file)


def _copy(client: Client, file: IndexFile) -> str | None:
    with client.get(f"{file.url}.metadata") as answer:
        text = answer.text(_LARGEST).decode("utf-8", "replace") if answer.status == _OK else ""
    return text if text.startswith("Metadata-Version:") else None


def _from_wheel(client: Client, file: IndexFile) -> str | None:
    with client.get(file.url, {"Range": "bytes=0-0"}) as answer:
        total = _TOTAL.fullmatch(answer.headers.get("Content-Range", ""))
        if answer.status != _PARTIAL or total is None:
            return None
    remote = io.BufferedReader(_RemoteFile(client, file.url, int(total[1])), _BLOCK)
    try:
        with zipfile.ZipFile(remote) as archive:
            members = [member for member in archive.infolist() if _METADATA.fullmatch(member.filename)]
            if len(members) != 1 or members[0].file_size > _LARGEST:
                return None
            return archive.read(members[0]).decode("utf-8", "replace")
    except (zipfile.BadZipFile, OSError, EOFError):
        return None


class _RemoteFile(io.RawIOBase):
    """A file on a server that answers ranges, read where it is asked."""

    def __init__(self, client: Client, url: str, size: int) -> None:
        self._client, self._url, self._size, self._at = client, url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        length = min(len(buffer), self._size - self._at, _LARGEST)
        if length <= 0:
            return 0
        with self._client.get(self._url, {"Range": f"bytes={self._at}-{self._at + length - 1}"}) as answer:
            if answer.status != _PARTIAL:
                message = f"it answers {answer.status} to a range"
                raise NetworkError(message)
            part = answer.text(length)
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)
