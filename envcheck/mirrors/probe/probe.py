"""Measure mirrors for the very files a lock needs: several at once, bounded in bytes and in seconds.

Pages and first bytes are asked for at once; rates one mirror after another, as they share this machine's line.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import msgspec

from envcheck.mirrors.fetch.plan import range_responses
from envcheck.mirrors.fetch.plan.pieces import RangeTask, Span
from envcheck.mirrors.index import simple_api
from envcheck.mirrors.net.client import Client, HttpResponse, NetworkError, UntrustedError
from envcheck.mirrors.probe.budget import LATE, Budget, at_once
from envcheck.mirrors.probe.criteria import Peers, gates, passes, peers
from envcheck.mirrors.probe.directories import held
from envcheck.mirrors.probe.effective_indexes import is_origin, no_index, own_hosts, sources
from envcheck.mirrors.probe.file_matches import Asked, Candidate, Known, candidates, known
from envcheck.mirrors.probe.index_page import CHUNK, page_of
from envcheck.mirrors.probe.measurements import Branch, Latency, Measured, Page, Rate, Reached, Sight
from envcheck.mirrors.profiles.model import Index, Profile

RANGE: Final = 8 << 20
RANGE_SECONDS: Final = 5.0
_SHAKES: Final = 3
_AT_ONCE: Final = 6
_THERE: Final = {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}


@dataclasses.dataclass(frozen=True)
class Mirror:
    """A profile that is probed, the client that trusts and knows what the profile says, and the region it is in."""

    name: str
    profile: Profile
    client: Client
    region: str | None = None


@dataclasses.dataclass
class Look:
    """What is known of one mirror while it is being measured."""

    mirror: Mirror
    part: str
    needs: int
    held: dict[str, Sight] = dataclasses.field(default_factory=dict)
    read: dict[str, list[simple_api.IndexFile] | str] = dataclasses.field(default_factory=dict)
    pages: list[Page] = dataclasses.field(default_factory=list)
    files: list[tuple[Sight, str]] = dataclasses.field(default_factory=list)
    untrusted: str | None = None
    latency: Latency | None = None
    latency_why: str | None = None
    commit: str | None = None
    branch: Branch | None = None
    door: str = ""

    def measured(self) -> Measured:
        """Return it as it is stored."""
        profile = self.mirror.profile
        whole = len({sight.need for sight in self.held.values()}) >= self.needs
        return Measured(
            mirror=self.mirror.name,
            part=self.part,
            at=time.time(),
            own=own_hosts(profile, self.part),
            region=self.mirror.region,
            closed=profile.closed,
            origin=is_origin(profile, self.part),
            needs=self.needs,
            missing=None if sources(profile, self.part) or whole else no_index(self.part),
            untrusted=self.untrusted,
            latency=self.latency,
            latency_why=self.latency_why,
            pages=self.pages,
            files=[sight for sight, _ in self.files],
            commit=self.commit,
            branch=self.branch,
        )


def probe(mirrors: Sequence[Mirror], asked: Sequence[Asked], budget: Budget) -> list[Measured]:
    """Return what was seen of every mirror for one part of a lock, all of whose packages are `asked` for."""
    part = asked[0].part
    looks = [Look(mirror, part, len(asked)) for mirror in mirrors]
    # A mirror that never ends its page must not take the others' time to show their files.
    pages, files = budget.share(0.4), budget.share(0.8)
    at_once(lambda look: _read_pages(look, asked, pages), looks, len(looks), pages)
    told = known(page for look in list(looks) for page in list(look.read.values()) if not isinstance(page, str))
    at_once(lambda look: _reach_all(look, asked, told, files), looks, len(looks), files)
    return rated_all(looks, budget)


def rated_all(looks: Sequence[Look], budget: Budget) -> list[Measured]:
    """Return what was seen of each, with the rates of those that pass: the nearest first, if the budget is short."""
    before = [(look, look.measured()) for look in looks]
    others = peers(measured for _, measured in before)
    nearest = sorted(before, key=lambda pair: pair[1].latency.total if pair[1].latency else math.inf)
    done = {id(look): _rated(look, measured, others, budget) for look, measured in nearest}
    return [done[id(look)] for look in looks]


def _read_pages(look: Look, asked: Sequence[Asked], budget: Budget) -> None:
    look.held = held(look.mirror.profile, asked)
    indexes = sources(look.mirror.profile, look.part)
    away = [one for one in asked if not look.held.keys() >= set(one.sha256)]
    urls = list(dict.fromkeys(simple_api.page_url(index, one.project) for one in away for index in indexes))
    if not urls:
        return
    look.door = urls[0]
    look.latency, look.latency_why = latency_of(look.mirror.client, look.door, budget)
    at_once(lambda url: read_page(look, url, budget), urls, _AT_ONCE, budget)


def read_page(look: Look, url: str, budget: Budget) -> None:
    """Read an index's page into the look, or why it could not be."""
    try:
        with look.mirror.client.get(url, {"Accept": simple_api.ACCEPT}) as answer:
            page, files = page_of(answer, budget)
    except UntrustedError as error:
        look.untrusted = f"{urlsplit(url).netloc}: {error}"
        look.read[url] = str(error)
    except NetworkError as error:
        look.read[url] = str(error)
    else:
        look.pages.append(page)
        look.read[url] = files


def latency_of(client: Client, url: str, budget: Budget) -> tuple[Latency | None, str | None]:
    """Return the median of three handshakes, or why there is none."""
    seen = []
    try:
        for _ in range(_SHAKES):
            shake = client.shake(url)
            if shake is None:
                return None, "it is reached through a proxy"
            seen.append(shake)
            if not budget.seconds:
                break
    except NetworkError as error:
        return None, str(error)
    tls = [shake.tls for shake in seen if shake.tls is not None]
    return Latency(
        dns=statistics.median(shake.dns for shake in seen),
        tcp=statistics.median(shake.tcp for shake in seen),
        tls=statistics.median(tls) if tls else None,
        version=seen[-1].version,
        alpn=seen[-1].alpn,
        times=len(seen),
    ), None


def _reach_all(look: Look, asked: Sequence[Asked], told: Mapping[str, Known], budget: Budget) -> None:
    indexes = sources(look.mirror.profile, look.part)
    wanted = [places for one in asked for places in _places(look, one, indexes, told)]
    wanted = wanted if indexes or look.held else []
    reach_files(look, wanted, budget)


def reach_files(look: Look, wanted: Sequence[Sequence[Candidate]], budget: Budget) -> None:
    """Ask for the first byte of every file; one that was not reached in time says so."""
    seen = at_once(lambda places: _reach(look, places, budget), wanted, _AT_ONCE, budget)
    look.files = [
        found or (msgspec.structs.replace(places[0].sight, why=LATE), places[0].url)
        for found, places in zip(seen, wanted, strict=True)
    ]


def _places(look: Look, asked: Asked, indexes: Sequence[Index], told: Mapping[str, Known]) -> list[list[Candidate]]:
    read = [look.read.get(simple_api.page_url(index, asked.project), LATE) for index in indexes]
    pages = [page for page in read if not isinstance(page, str)]
    here = [[Candidate(look.held[digest], "")] for digest in asked.sha256 if digest in look.held]
    away = dataclasses.replace(asked, sha256=tuple(digest for digest in asked.sha256 if digest not in look.held))
    found = candidates(away, pages, [page for page in read if isinstance(page, str)], told)
    # Of several files of a package, one that nobody lists lacks nothing where another is held.
    return [*here, *(places for places in found if places[0].url)] if here else found


def _reach(look: Look, places: Sequence[Candidate], budget: Budget) -> tuple[Sight, str]:
    """Ask for a file's first byte, at each place until one has it."""
    reasons = []
    for place in places:
        if not place.url:
            return place.sight, ""
        seen = _first_byte(look, place.url)
        if isinstance(seen, Reached) and (seen.status in _THERE or seen.total == 0):
            return msgspec.structs.replace(place.sight, reached=seen), place.url
        reasons.append((place, seen))
        if not budget.seconds:
            break
    place, seen = reasons[0]
    reached = seen if isinstance(seen, Reached) else None
    why = f"{reached.hosts[-1]} answers {reached.status}" if reached else str(seen)
    return msgspec.structs.replace(place.sight, reached=reached, why=why), ""


def _first_byte(look: Look, url: str) -> Reached | str:
    try:
        with look.mirror.client.get(url, {"Range": "bytes=0-0"}) as answer:
            # The one byte is read, so that the connection can be used again.
            next(answer.arriving(1), b"")
            return _reached(answer)
    except UntrustedError as error:
        look.untrusted = f"{urlsplit(url).netloc}: {error}"
        return str(error)
    except NetworkError as error:
        return str(error)


def _reached(answer: HttpResponse) -> Reached:
    said = {name.lower(): value for headers in reversed(answer.passed) for name, value in headers.items()}
    return Reached(
        status=answer.status,
        hosts=list(answer.hosts),
        ranged=answer.status == HTTPStatus.PARTIAL_CONTENT
        and range_responses.content_range_size(answer.headers) is not None,
        total=range_responses.file_size(answer.status, answer.headers),
        etag=range_responses.etag_of(answer.headers),
        modified=answer.headers.get("Last-Modified"),
        commit=said.get("x-repo-commit"),
        linked=said.get("x-linked-etag", "").strip('"') or None,
        xet="x-xet-hash" in said,
    )


def _rated(look: Look, before: Measured, others: Peers, budget: Budget) -> Measured:
    """Add the rate: only of a mirror that has passed what was judged before, as a 404 is no speed."""
    if not passes(gates(before, others)):
        return msgspec.structs.replace(before, rate_why="not measured: a gate has failed already")
    # Again, with the line to itself: among lookups of dead names one took 5 s here, and 3 ms alone.
    again = latency_of(look.mirror.client, look.door, budget)[0] if look.door else None
    before = msgspec.structs.replace(before, latency=again or before.latency)
    served = [pair for pair in look.files if pair[1]]
    if not served:
        return msgspec.structs.replace(before, rate_why="not measured: all of it is in this machine's directories")
    file, url = max(served, key=lambda pair: _size(pair[0]))
    # Half a small file: a range that begins at 0 proves nothing.
    size = min(RANGE, max(1, _size(file) // 2))
    if file.reached is None or not _size(file) or budget.left < min(size, CHUNK) or not budget.seconds:
        return msgspec.structs.replace(before, rate_why="not measured: the probe's bytes or seconds were used up")
    size = min(size, budget.left)
    try:
        rate = _rate(look.mirror.client, url, file.reached, size, budget)
    except NetworkError as error:
        return msgspec.structs.replace(before, range_fault=str(error))
    return msgspec.structs.replace(before, rate=rate)


def _size(file: Sight) -> int:
    return file.reached.total or 0 if file.reached is not None else 0


def _rate(client: Client, url: str, reached: Reached, size: int, budget: Budget) -> Rate:
    """Read a range out of the middle of a file. Raise NetworkError for an answer that is not that range."""
    total = reached.total or 0
    offset = (total - size) // 2
    task = RangeTask(0, Span(offset, offset + size), 0, reached.etag)
    began, there, why = time.monotonic(), 0, None
    with client.get(url, range_responses.range_headers(task)) as answer:
        failure = range_responses.range_failure(task, answer.status, answer.headers, total, time.time())
        if failure is not None:
            raise NetworkError(failure.reason)
        try:
            for chunk in answer.arriving(CHUNK):
                there += len(chunk)
                budget.spend(len(chunk))
                if time.monotonic() - began > RANGE_SECONDS:
                    break
        except NetworkError as error:
            why = str(error)
        return Rate(bytes=there, seconds=time.monotonic() - began, offset=offset, host=answer.hosts[-1], why=why)
