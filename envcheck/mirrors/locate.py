"""Find, for files known by their hash, every place in a profile's indexes that says it has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from envcheck.errors import UnavailableError
from envcheck.mirrors import simple
from envcheck.mirrors.http import Client, NetworkError
from envcheck.mirrors.profile import CLIENT_DEFAULT, Index
from envcheck.mirrors.upstream import python_index

_AT_ONCE: Final = 8


@dataclasses.dataclass(frozen=True)
class Need:
    """A package whose files are known by hash; `index` is what its lock says: "pypi" or "pytorch/cu128"."""

    project: str
    sha256: tuple[str, ...]
    index: str = "pypi"


@dataclasses.dataclass(frozen=True)
class Found:
    """One file: its name, its hash, its size in bytes where a page says it, and where it is, in the indexes' order."""

    name: str
    sha256: str
    size: int | None
    urls: tuple[str, ...]


def locate(needs: Sequence[Need], indexes: Mapping[str, Sequence[Index]], client: Client) -> list[Found]:
    """Return every file of every need. `indexes` maps "pypi" and "pytorch" to where they are tried, in order.

    Raise UnavailableError naming the first package that no index lists under a hash its lock holds, and why not.
    """
    asked = [(need, page) for need in needs for page in _pages(need, indexes)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda pair: _read(client, pair[1]), asked))
    pages: dict[Need, list[list[simple.File] | str]] = {need: [] for need in needs}
    for (need, _), answer in zip(asked, answers, strict=True):
        pages[need].append(answer)
    return [found for need in needs for found in choose(need, pages[need])]


def choose(need: Need, pages: Iterable[list[simple.File] | str]) -> list[Found]:
    """Return the files of a need among what pages list; a page that could not be read is the reason why, as text."""
    files: dict[str, list[simple.File]] = {}
    reasons = []
    for page in pages:
        if isinstance(page, str):
            reasons.append(page)
            continue
        held = [file for file in page if file.sha256 in need.sha256]
        for file in held:
            files.setdefault(str(file.sha256), []).append(file)
        if not held:
            reasons.append("no file there has a hash of the lock")
    if not files:
        message = f"{need.project}: {'; '.join(dict.fromkeys(reasons)) or 'no index to ask'}"
        raise UnavailableError(message, fix="name a mirror that has it (--mirror), or lock the cell anew")
    return [_found(digest, same) for digest, same in files.items()]


def _found(digest: str, same: Sequence[simple.File]) -> Found:
    size = next((file.size for file in same if file.size is not None), None)
    return Found(same[0].name, digest, size, tuple(dict.fromkeys(file.url for file in same)))


def _pages(need: Need, indexes: Mapping[str, Sequence[Index]]) -> list[str]:
    family, _, variant = need.index.partition("/")
    known = [index for index in indexes.get(family, ()) if index.local is None]
    return [simple.page_url(_spelled(index), need.project, variant) for index in known]


def _spelled(index: Index) -> Index:
    return Index(url=python_index()) if index.url == CLIENT_DEFAULT else index


def _read(client: Client, url: str) -> list[simple.File] | str:
    try:
        return simple.read(client, url)
    except NetworkError as error:
        return str(error)
