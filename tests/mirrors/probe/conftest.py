"""Package mirrors on loopback addresses of their own, each wrong in its own way, under a private CA."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.mirrors.index import LockedPackage
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.probe.measure import Mirror
from envcheck.mirrors.profiles.model import Index, Profile
from tests.certificates import self_signed, signed
from tests.http_server import Answer, Request, Server, Servers, endless, paced, ranged

WHEELS = {
    f"{name}-py3-none-any.whl": random.Random(name).randbytes(size)  # noqa: S311 (data, no secret)
    for name, size in (("demo-1.0", 300_000), ("other-2.0", 3_000))
}
HASHES = {name: hashlib.sha256(body).hexdigest() for name, body in WHEELS.items()}


@dataclasses.dataclass
class Faults:
    """What a mirror does wrong."""

    gone: str = ""
    wrong_hash: str = ""
    no_hash: bool = False
    other_size: str = ""
    flipped: str = ""
    files_at: str = ""
    ranges: bool = True
    middle: bool = True
    pause: float = 0.0
    drip: bool = False
    query: str = ""


class Site(Server):
    """A mirror on one loopback address."""

    def __init__(self, address: str, faults: Faults, tls: ssl.SSLContext | None) -> None:
        super().__init__(self.answer, address, tls=tls)
        self.faults = faults

    @property
    def url(self) -> str:
        """Return what a profile names."""
        return f"{super().url}/simple"

    def answer(self, request: Request) -> Answer:
        """Return a page or a wheel, or what is wrong."""
        faults = self.faults
        kind, _, remaining = request.path.partition("?")[0].strip("/").partition("/")
        if faults.drip:
            return Answer(200, endless(b"", b" ")(b""), {"Content-Type": "text/html", "Content-Length": "1000000"})
        if kind == "simple":
            return _page(remaining, faults)
        if remaining not in WHEELS or remaining == faults.gone:
            return Answer(404)
        if faults.files_at:
            return Answer(302, headers={"Location": f"{faults.files_at}/files/{remaining}"})
        body = WHEELS[remaining] + (b"x" if remaining == faults.other_size else b"")
        return _file(request, body[::-1] if remaining == faults.flipped else body, faults)


def _page(project: str, faults: Faults) -> Answer:
    actual = next((name for name in WHEELS if name.startswith(f"{project}-")), None)
    if actual is None:
        return Answer(404)
    digest = "0" * 64 if actual == faults.wrong_hash else HASHES[actual]
    fragment = "" if faults.no_hash else f"#sha256={digest}"
    body = f'<a href="/files/{actual}{faults.query}{fragment}">{actual}</a>'.encode()
    return Answer(200, body, {"Content-Type": "text/html"})


def _file(request: Request, body: bytes, faults: Faults) -> Answer:
    span = request.span(len(body))
    whole = span is None or not faults.ranges or (span[0] > 0 and not faults.middle)
    etag = {"ETag": '"one"'}
    return paced(Answer(200, body, etag) if whole else ranged(request, body, etag), faults.pause, 1 << 14)


@dataclasses.dataclass(frozen=True)
class Authority:
    """A private CA's certificate, a server's context with one signed by it, and with one that nobody signed."""

    ca: Path
    signed: ssl.SSLContext
    rogue: ssl.SSLContext


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return a CA whose servers are at loopback addresses."""
    hosts = [f"127.0.0.{number}" for number in range(2, 30)]
    known = signed(tmp_path_factory.mktemp("ca"), *hosts)
    return Authority(known.ca, known.context, self_signed(tmp_path_factory.mktemp("rogue"), *hosts).context)


@pytest.fixture
def serve(authority: Authority, servers: Servers) -> Callable[..., Site]:
    """Give a function that starts a mirror; `tls` is "signed", "rogue" or "" for plain http."""
    addresses = (f"127.0.0.{number}" for number in itertools.count(2))

    def start(tls: str = "signed", **faults: Any) -> Site:
        return servers.start(Site(next(addresses), Faults(**faults), getattr(authority, tls) if tls else None))

    return start


@pytest.fixture
def mirror(authority: Authority) -> Callable[..., Mirror]:
    """Give a function that makes a mirror of indexes' URLs, trusting the CA."""

    def make(name: str, *urls: str) -> Mirror:
        profile = Profile(name=name, pypi=[Index(url=url) for url in urls], ca=str(authority.ca))
        return Mirror(name, profile, Client(ca=authority.ca, connect=1.0, read=2.0))

    return make


@pytest.fixture
def wanted_packages() -> list[LockedPackage]:
    """Return what a lock of both wheels needs."""
    return [LockedPackage(name.split("-")[0], (digest,), version=name.split("-")[1]) for name, digest in HASHES.items()]
