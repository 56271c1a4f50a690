"""The files to fetch, the options of the transfer and its results; ask one source after another."""

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from envcheck.errors import NotFoundError, UnavailableError
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import OTHER_MIRROR, NetworkError, SlowError, is_missing
from envcheck.mirrors.net.waits import tell_pause
from envcheck.mirrors.profiles.model import host_of


class StoppedError(Exception):
    """The fetch was stopped; complete pieces are kept for the next run."""


@dataclasses.dataclass(frozen=True)
class WantedFile:
    """One file to fetch: its URLs in order of preference, its hash and its path. `size` is None if it is unknown.

    `git_sha1` is the hash of the file as a git blob, for a file whose sha256 is not known (""). `hint` is the size that
    an index page claims, which is not trusted. `local` are files on this machine that may have the hash: they are
    checked before any request. `other_fix` is what to do about sources without it, if they do not say.
    """

    urls: tuple[str, ...]
    sha256: str
    size: int | None
    path: Path
    local: tuple[Path, ...] = ()
    hint: int | None = None
    other_fix: str = OTHER_MIRROR
    git_sha1: str = ""

    @property
    def expected(self) -> int | None:
        """Return the known size, else the size that a page claims."""
        return self.hint if self.size is None else self.size

    @property
    def digest(self) -> str:
        """Return the hash that the content must have, as hex."""
        return self.sha256 or self.git_sha1

    def hasher(self, size: int) -> "hashlib._Hash":
        """Return the hasher of this kind of hash for content of `size` bytes."""
        return hashlib.sha256() if self.sha256 else git_hasher(size)


def git_hasher(size: int) -> "hashlib._Hash":
    """Return a hasher that gives the git blob sha1 of a file of `size` bytes."""
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


@dataclasses.dataclass(frozen=True)
class FetchedFile:
    """A fetched file: the bytes that came over the network (`moved`), those found on disk, and the bytes by source."""

    path: Path
    size: int
    moved: int
    found: int
    seconds: float
    sources: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class TransferOptions:
    """How to fetch files.

    `progress` gets (bytes present, bytes in total) twice a second; `note` gets text for the user. All files share
    `slots`: the requests that may be open at once. Setting `stop` ends every transfer.
    """

    client: Client
    connections: int = 16
    progress: Callable[[int, int], None] = lambda _there, _all: None
    note: Callable[[str], None] = lambda _text: None
    slots: threading.Semaphore = dataclasses.field(default_factory=lambda: threading.Semaphore(16))
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)


# Seconds that a source may ask to wait (Retry-After) in total before it delivers something.
LONGEST_WAIT: Final = 300.0
# A source that was silent so many times in a row is not asked again.
SLOW_ANSWERS: Final = 2
# Seconds before a busy source is tried again, if it does not say how long to wait.
WAITS: Final[tuple[float, ...]] = (1.0, 2.0, 5.0)

_T = TypeVar("_T")


class NoSourceError(Exception):
    """No source delivered; `reasons` has the error of each URL."""

    def __init__(self, reasons: Mapping[str, NetworkError]) -> None:
        super().__init__("; ".join(f"{host_of(url)}: {reason}" for url, reason in reasons.items()))
        self.reasons = reasons


def no_answer_error(message: str, fix: str, reasons: Sequence[NetworkError | None]) -> UnavailableError:
    """Return the error of sources that gave no file: NotFoundError if each of them says that it does not have it."""
    return (NotFoundError if reasons and all(map(is_missing, reasons)) else UnavailableError)(message, fix=fix)


def read_body(client: Client, url: str, limit: int) -> tuple[bytes, Mapping[str, str]]:
    """Return a body of at most `limit` bytes, and its headers. Raise NetworkError."""
    with client.get(url) as answer:
        answer.demand_ok()
        return answer.text(limit), answer.headers


def try_sources(
    urls: Sequence[str], attempt: Callable[[str], _T], stop: threading.Event | None = None
) -> tuple[_T, str]:
    """Return the result of the first URL that succeeds, and that URL. Retry busy URLs after the others.

    One that asks to wait for more than LONGEST_WAIT in all, or was silent SLOW_ANSWERS times, is not asked again.
    Raise NoSourceError when all are done for, StoppedError when `stop` is set.
    """
    stop, left, reasons, waited = stop or threading.Event(), list(urls), dict[str, NetworkError](), 0.0
    for tries, wait in enumerate((0.0, *WAITS), 1):
        pause = min((reasons[url].after or wait for url in left), default=0.0) if tries > 1 else 0.0
        waited += pause
        if pause:
            tell_pause(host_of(left[0]), reasons[left[0]], pause)
        if stop.wait(pause):
            raise StoppedError
        for url in left:
            try:
                return attempt(url), url
            except NetworkError as error:  # noqa: PERF203 (a request takes longer)
                reasons[url] = error
        able = [url for url in left if reasons[url].retry and waited + (reasons[url].after or 0.0) <= LONGEST_WAIT]
        left = [url for url in able if not isinstance(reasons[url], SlowError) or tries < SLOW_ANSWERS]
        if not left:
            break
    raise NoSourceError(reasons)
