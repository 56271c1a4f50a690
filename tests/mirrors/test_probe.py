"""Mirrors that are dead, wrong, slow or untrusted, on real sockets: ranked right, and used in that order."""

import dataclasses
import hashlib
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.index import LockedPackage, network_sources, python_index
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.probe import (
    Mirror,
    RankedMirror,
    choose,
    default_mirrors,
    is_origin,
    lock_targets,
    own_hosts,
    ranked_mirrors,
)
from envcheck.mirrors.profiles.model import Credential, Index, Profile
from tests.certificates import Certificate, self_signed, signed
from tests.http_server import Answer, Request, Server, Servers, endless, paced, ranged
from tests.tables import each

WHEELS = {
    f"{name}-py3-none-any.whl": random.Random(name).randbytes(size)  # noqa: S311 (data, no secret)
    for name, size in (("demo-1.0", 300_000), ("other-2.0", 3_000))
}
HASHES = {name: hashlib.sha256(body).hexdigest() for name, body in WHEELS.items()}
DEMO, OTHER = WHEELS
PACKAGES = [LockedPackage(name.split("-")[0], (digest,), version=name.split("-")[1]) for name, digest in HASHES.items()]


@dataclasses.dataclass
class Faults:
    """What a mirror does wrong."""

    gone: str = ""
    wrong_hash: str = ""
    no_hash: bool = False
    other_size: str = ""
    files_at: str = ""
    ranges: bool = True
    middle: bool = True
    pause: float = 0.0
    drip: bool = False
    kind: str = "text/html"


def answer(faults: Faults, request: Request) -> Answer:
    kind, _, name = request.path.strip("/").partition("/")
    if faults.drip:
        return Answer(200, endless(b"", b" ")(b""), {"Content-Type": "text/html", "Content-Length": "1000000"})
    if kind == "simple":
        return page(name, faults)
    if name not in WHEELS or name == faults.gone:
        return Answer(404)
    if faults.files_at:
        return Answer(302, headers={"Location": f"{faults.files_at}/files/{name}"})
    body = WHEELS[name] + (b"x" if name == faults.other_size else b"")
    span = request.span(len(body))
    whole = span is None or not faults.ranges or (span[0] > 0 and not faults.middle)
    return paced(Answer(200, body) if whole else ranged(request, body), faults.pause, 1 << 14)


def page(project: str, faults: Faults) -> Answer:
    actual = next((name for name in WHEELS if name.startswith(f"{project}-")), None)
    if actual is None:
        return Answer(404)
    digest = "0" * 64 if actual == faults.wrong_hash else HASHES[actual]
    if faults.other_size:
        file = {"filename": actual, "url": f"/files/{actual}", "size": len(WHEELS[actual])}
        file |= {"hashes": {"sha256": digest}}
        body, kind = json.dumps({"files": [file]}), "application/vnd.pypi.simple.v1+json"
        return Answer(200, body.encode(), {"Content-Type": kind})
    body = f'<a href="/files/{actual}{"" if faults.no_hash else f"#sha256={digest}"}">{actual}</a>'
    return Answer(200, body.encode(), {"Content-Type": faults.kind})


@pytest.fixture(scope="session")
def certified(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    hosts = [f"127.0.0.{number}" for number in range(2, 60)]
    made = tmp_path_factory.mktemp
    return {"signed": signed(made("ca"), *hosts), "rogue": self_signed(made("rogue"), *hosts)}


@dataclasses.dataclass
class Sites:
    """Starts mirrors, each on a loopback address of its own, and makes profiles of them."""

    servers: Servers
    certified: dict[str, Certificate]
    addresses: Any = dataclasses.field(default_factory=lambda: itertools.count(2))

    def start(self, tls: str = "signed", **faults: Any) -> Server:
        wrong, address = Faults(**faults), f"127.0.0.{next(self.addresses)}"
        context = self.certified[tls].context
        return self.servers.start(Server(lambda request: answer(wrong, request), address, tls=context))

    def mirror(self, name: str, *sites: Server | str) -> Mirror:
        urls = [site if isinstance(site, str) else f"{site.url}/simple" for site in sites]
        ca = self.certified["signed"].ca
        profile = Profile(name=name, pypi=[Index(url=url) for url in urls], ca=str(ca))
        return Mirror(name, profile, Client(ca=ca, connect=1.0, read=2.0))

    def judged(self, seconds: float = 20.0, **sites: Server | str) -> dict[str, RankedMirror]:
        mirrors = [self.mirror(name, site) for name, site in sites.items()]
        return {one.mirror: one for one in ranked_mirrors(lock_targets(PACKAGES)[0], mirrors, seconds)}


@pytest.fixture
def sites(servers: Servers, certified: dict[str, Certificate]) -> Sites:
    return Sites(servers, certified)


def why(ranked: RankedMirror, gate: str) -> str:
    return next(one.why for one in ranked.criteria if one.name == gate)


def failed(ranked: RankedMirror) -> set[str]:
    return {criterion.name for criterion in ranked.failed}


def test_the_faster_of_two_that_are_right_comes_first(sites: Sites) -> None:
    ranked = sites.judged(slow=sites.start(pause=0.02), fast=sites.start())
    assert list(ranked) == ["fast", "slow"]
    assert all(one.passed and not one.failed for one in ranked.values())
    rates = [one.measured.rate for one in ranked.values()]
    assert all(rate is not None and rate.bytes == 150_000 and rate.why is None for rate in rates)
    assert (ranked["fast"].measured.latency or 0) > 0
    assert why(ranked["fast"], "stays") == "no request left the mirror's own hosts"
    assert why(ranked["fast"], "hash") == "2 files by hash"


@each(
    ("faults", "gate", "message"),
    [
        ({"gone": DEMO}, "coverage", "has 1 of 2 files; demo==1.0: {host} answers 404"),
        ({"wrong_hash": DEMO}, "coverage", "has 1 of 2 files; demo==1.0: no file on its page has a hash of the lock"),
        (
            {"kind": "application/octet-stream"},
            "coverage",
            (
                "has 0 of 2 files; demo==1.0: it calls its page application/octet-stream, and pip and uv take none"
                " but text/html and application/vnd.pypi.simple.v1 (and 1 more)"
            ),
        ),
        ({"ranges": False}, "ranges", "{host} answers 200 to a range: no resume or split"),
        ({"middle": False}, "ranges", "range in the middle of a file: it sends whole files only"),
        ({"tls": "rogue"}, "tls", "{host}: TLS: self-signed certificate"),
    ],
)
def test_a_fault_is_a_gate_that_no_speed_outweighs(
    sites: Sites, faults: dict[str, Any], gate: str, message: str
) -> None:
    bad = sites.start(**faults)
    ranked = sites.judged(bad=bad, slow=sites.start(pause=0.01))
    assert list(ranked) == ["slow", "bad"]
    assert not ranked["bad"].passed
    assert why(ranked["bad"], gate) == message.format(host=bad.netloc)
    assert gate in failed(ranked["bad"])
    assert ranked["bad"].measured.rate is None


def test_a_dead_host_and_a_profile_without_an_index_are_last(sites: Sites) -> None:
    dead = "https://127.0.0.99:9/simple"
    ranked = sites.judged(dead=dead, gone=sites.start(gone=DEMO))
    assert list(ranked) == ["gone", "dead"]
    assert ranked["dead"].measured.latency is None
    assert why(ranked["dead"], "coverage") == "has 0 of 2 files; demo==1.0: no connection (and 1 more)"
    (empty,) = ranked_mirrors(lock_targets(PACKAGES)[0], [sites.mirror("empty")])
    assert why(empty, "coverage").startswith("the profile names no Python index")


def test_where_files_really_come_from_is_told_and_fails_a_closed_profile(sites: Sites) -> None:
    origin = sites.start(pause=0.02)
    front = sites.mirror("front", sites.start(files_at=origin.url))
    closed = dataclasses.replace(front, profile=msgspec.structs.replace(front.profile, name="closed", closed=True))
    own = sites.mirror("own", sites.start(pause=0.05))
    first, last = ranked_mirrors(lock_targets(PACKAGES)[0], [front, own])
    assert (first.mirror, last.mirror, last.passed) == ("own", "front", True)
    assert why(last, "stays").startswith(f"2 of 2 files from {origin.netloc}; it comes after mirrors that serve")
    (gated,) = ranked_mirrors(lock_targets(PACKAGES)[0], [closed])
    assert failed(gated) == {"stays"}


def test_the_clients_own_default_is_the_origin_and_no_mirror_that_is_left() -> None:
    default = Index(url="default")
    assert is_origin(Profile(name="none"), "pypi")
    assert is_origin(Profile(name="site", pypi=[default, Index(url="/srv/wheels", kind="find-links")]), "pypi")
    mirrored = Profile(name="host", pypi=[Index(url="https://mirror.example/simple"), default])
    assert not is_origin(mirrored, "pypi")
    assert is_origin(mirrored, "pytorch/cpu")
    assert not is_origin(Profile(name="site"), "pypi")
    none = Profile(name="none")
    assert own_hosts(none, [index.url for index in network_sources(none, "pypi")]) == [urlsplit(python_index()).netloc]


def test_a_page_without_hashes_is_matched_by_name_and_a_size_that_it_tells_must_be_right(sites: Sites) -> None:
    both = sites.judged(flat=sites.start(no_hash=True), other=sites.start(other_size=DEMO))
    assert why(both["flat"], "hash") == "2 files by name, which a fetch verifies"
    assert both["flat"].passed
    assert why(both["other"], "hash").endswith("has 300001 bytes, expected 300000")
    assert failed(both["other"]) == {"hash"}


def test_a_second_index_of_one_profile_is_fallen_back_to(sites: Sites) -> None:
    first, second = sites.start(gone=DEMO), sites.start()
    (ranked,) = ranked_mirrors(lock_targets(PACKAGES)[0], [sites.mirror("both", first, second)])
    assert ranked.passed
    assert {host for file in ranked.measured.files for host in file.hosts} == {first.netloc, second.netloc}


def test_a_server_that_drips_for_ever_ends_with_the_time(sites: Sites) -> None:
    began = time.monotonic()
    ranked = sites.judged(drips=sites.start(drip=True), good=sites.start(), seconds=4.0)
    assert time.monotonic() - began < 10
    assert not ranked["drips"].passed
    assert ranked["good"].passed  # asked at the same time, it waits for nobody
    assert "the probe's time ran out" in why(ranked["drips"], "coverage")


def test_the_best_is_chosen_first_and_who_fails_is_left_out(sites: Sites) -> None:
    wrong: dict[str, Any] = {"whole": {"ranges": False}, "slow": {"pause": 0.02}, "gone": {"gone": OTHER}, "fast": {}}
    started = {name: sites.start(**faults) for name, faults in wrong.items()}
    mirrors = [sites.mirror(name, site) for name, site in started.items()]
    profile, reasons = choose(lock_targets(PACKAGES), mirrors)
    assert [index.url for index in profile.pypi] == [
        f"{started[name].url}/simple" for name in ("fast", "slow", "whole")
    ]
    assert [line.split(" ")[1] for line in reasons] == ["fast", "slow", "whole", "not"]
    assert reasons[3].startswith("pypi: not gone: has 1 of 2 files")
    with pytest.raises(UnavailableError, match="no mirror has all files of pypi: gone: has 1 of 2 files"):
        choose(lock_targets(PACKAGES), [sites.mirror("gone", started["gone"])])


def test_each_part_of_a_lock_has_an_order_of_its_own(sites: Sites) -> None:
    python, torch = sites.start(), sites.start()
    both = lock_targets([PACKAGES[0], dataclasses.replace(PACKAGES[1], index="pytorch/cpu")])
    first, second = sites.mirror("first", python), sites.mirror("second")
    with pytest.raises(UnavailableError, match="no mirror has all files of pytorch/cpu: no mirror is known"):
        choose(both, [first])
    profile = msgspec.structs.replace(second.profile, pytorch=[Index(url=f"{torch.url}/simple")])
    chosen, _ = choose(both, [first, dataclasses.replace(second, profile=profile)])
    assert (chosen.pypi, chosen.pytorch) == (first.profile.pypi, profile.pytorch)


def test_a_source_that_needs_another_ca_is_left_out(sites: Sites) -> None:
    one, other = sites.mirror("one", sites.start()), sites.mirror("two", sites.start(pause=0.05))
    known = {name: {f"{name}.example": Credential(token_env=name)} for name in ("one", "two")}
    one = dataclasses.replace(one, profile=msgspec.structs.replace(one.profile, credentials=known["one"]))
    changed = msgspec.structs.replace(other.profile, ca="/other.pem", credentials=known["two"])
    profile, reasons = choose(lock_targets(PACKAGES), [one, dataclasses.replace(other, profile=changed)])
    assert profile.pypi == one.profile.pypi
    assert profile.credentials == known["one"]
    assert reasons[1] == "pypi: not two: it needs another CA or netrc file"


def test_this_machine_the_users_choice_and_the_presets_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config/envcheck").mkdir(parents=True)
    (tmp_path / "site.yaml").write_text("pypi: [{url: 'https://mirror.example/simple'}]\n")
    (tmp_path / "config/envcheck/mirror").write_text(f"{tmp_path / 'site.yaml'}\n")
    names = [mirror.name for mirror in default_mirrors()]
    assert names[:2] == ["host", "site"]
    assert {"tuna", "ustc"} <= set(names)
