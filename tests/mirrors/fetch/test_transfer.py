"""Whatever a mirror does: what has another hash never gets the file's name, and what can be had is had."""

import dataclasses
import email.utils
import hashlib
import re
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.errors import ConfigError, NotFoundError, PromiseError, UnavailableError
from envcheck.mirrors.fetch import download
from envcheck.mirrors.fetch.request import FetchedFile, StoppedError, WantedFile
from envcheck.mirrors.fetch.transfer import fetch, fetch_all
from envcheck.mirrors.hub import git_sha1
from envcheck.mirrors.net import network_errors, responses
from envcheck.mirrors.net.client import Client
from tests.http_server import RawServer, deaf
from tests.mirrors.fetch.conftest import CONTENT, Lab

MIB = 1 << 20
DAY = "86400"


def leftovers(want: WantedFile) -> list[str]:
    return sorted(path.name for path in want.path.parent.iterdir() if path.name != want.path.name)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def host(want: WantedFile, source: int = 0) -> str:
    return want.urls[source].split("/")[2]


def test_a_file_arrives_whole_with_nothing_beside_it_and_is_not_fetched_again(lab: Lab) -> None:
    server = lab.serve()
    want = lab.want(server)
    done = lab.fetch(want)
    assert want.path.read_bytes() == CONTENT
    assert leftovers(want) == []
    assert (done.size, done.moved, done.found, done.sources) == (want.size, want.size, 0, {host(want): want.size})
    assert want.path.stat().st_mode & 0o777 == 0o644
    assert lab.fetch(want).moved == 0
    assert server.sent == want.size
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("fetch")] == []


def test_what_has_the_name_is_kept_until_the_right_file_is_complete(lab: Lab) -> None:
    want = lab.want(lab.serve())
    want.path.parent.mkdir()
    other = want.path.with_name("other")
    other.write_bytes(b"mine")
    for make in (want.path.write_bytes, want.path.symlink_to):
        make(b"wrong" if make == want.path.write_bytes else other)  # type: ignore[arg-type]  # each takes its own
        before = want.path.read_bytes()
        with pytest.raises(UnavailableError):
            lab.fetch(dataclasses.replace(want, urls=()))
        assert want.path.read_bytes() == before
        lab.fetch(want)
        assert (want.path.is_symlink(), want.path.read_bytes(), other.read_bytes()) == (False, CONTENT, b"mine")
        assert "is another file or a link" in lab.notes[-1]
        want.path.unlink()
    want.path.mkdir()
    with pytest.raises(ConfigError, match=re.escape(f"{want.path} is a directory, not a file")):
        lab.fetch(want)


LIVED_WITH: dict[str, dict[str, Any]] = {
    "5xx": {"status": 503, "first": 2},
    "429": {"status": 429, "retry_after": "1", "first": 2},
    "cut off": {"truncate": 1000, "first": 3},
    "always cut off": {"most": 400_000},
    "always cut off, no length": {"most": 400_000, "sized": False},
    "stalls": {"stall": 2.0, "first": 2},
    "no ranges": {"ranges": False},
    "parts without Content-Range": {"untold": True},
    "forgets of ranges": {"ranges_until": 3},
    "no ranges, cut off": {"ranges": False, "truncate": 1000, "first": 2},
    "no ranges, no length, cut off": {"ranges": False, "truncate": 1000, "first": 2, "sized": False},
    "no ranges, busy": {"status": 429, "busy": lambda number: number == 2, "ranges": False, "retry_after": "1"},
    "links run out": {"expires": 5},
    "other etags": {"etag": lambda request: f'"{request}"'},
    "too much": {"extra": 100},
    "too much, no length": {"extra": 100, "sized": False},
    "crowded": {"status": 503, "busy": lambda number: number % 3 == 0},
}


@pytest.mark.parametrize("fault", LIVED_WITH)
def test_a_fault_that_can_be_lived_with(lab: Lab, fault: str) -> None:
    want = lab.want(lab.serve(**LIVED_WITH[fault]))
    lab.fetch(want)
    assert want.path.read_bytes() == CONTENT
    assert leftovers(want) == []


GIVEN_UP: dict[str, dict[str, Any]] = {
    "404": {"status": 404},
    "403": {"status": 403},
    "500": {"status": 500},
    "416": {"status": 416},
    "other range": {"other_range": True},
    "other size": {"content": b"short"},
    "twice the size": {"content": CONTENT * 2},
    "dead redirect": {"redirect": "http://127.0.0.250:1/nobody"},
    "odd redirect": {"redirect": "ftp://127.0.0.250/file"},
    "asks for days": {"status": 429, "retry_after": DAY},
    "asks for years": {"status": 503, "retry_after": "9" * 400},
}


@pytest.mark.parametrize("fault", GIVEN_UP)
@pytest.mark.timeout(60)
def test_the_second_source_gives_what_the_first_does_not(lab: Lab, fault: str) -> None:
    bad, good = lab.serve(**GIVEN_UP[fault]), lab.serve()
    for size in (len(CONTENT), None):
        want = lab.want(bad, good, size=size)
        lab.fetch(want)
        assert want.path.read_bytes() == CONTENT
        want.path.unlink()
    assert good.sent >= len(CONTENT)
    with pytest.raises(UnavailableError) as caught:
        lab.fetch(lab.want(bad))
    assert "\n" not in str(caught.value)
    assert leftovers(want) == []


@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_a_login_page_is_named_and_hides_no_other_source(lab: Lab, size: int | None) -> None:
    page = lab.serve(content=b"<html>", ranges=False, kind="text/html; charset=utf-8")
    want = lab.want(page, lab.serve(), size=size)
    lab.fetch(want)
    assert want.path.read_bytes() == CONTENT
    with pytest.raises(UnavailableError, match="it sends a web page, not the file; open its URL in a browser"):
        lab.fetch(lab.want(page, size=size, path=want.path.with_name("other")))
    for ranges in (True, False):  # a server that calls every file so
        right = lab.want(lab.serve(kind="text/html", ranges=ranges), size=size)
        lab.fetch(dataclasses.replace(right, path=want.path.with_name("right")))
        want.path.with_name("right").unlink()


@pytest.mark.parametrize("faults", [{}, {"ranges": False}, {"ranges": False, "truncate": 9, "first": 2}])
def test_a_file_whose_size_nobody_tells_is_fetched_whole(lab: Lab, faults: dict[str, Any]) -> None:
    """github.com/modflowpy/pymake/pull/67: codeload.github.com tells none; nor does a page of an index."""
    for hint in (None, len(CONTENT) // 2):
        want = lab.want(lab.serve(status=404), lab.serve(sized=False, **faults), size=None, hint=hint)
        lab.fetch(want)
        assert want.path.read_bytes() == CONTENT
        assert leftovers(want) == []
        want.path.unlink()
    with pytest.raises(UnavailableError, match="another hash, or was cut off"):
        lab.fetch(lab.want(lab.serve(content=CONTENT[:-1], sized=False, ranges=False), size=None))
    assert leftovers(want) == []


def test_a_body_that_tells_no_size_has_a_bound(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = lab.serve(sized=False, ranges=False)
    want = lab.want(endless, lab.serve(), size=None, hint=10)
    lab.fetch(want)
    assert want.path.read_bytes() == CONTENT
    want.path.unlink()
    want = lab.want(endless, size=None)
    with pytest.raises(UnavailableError, match="it sends more than 1048596 bytes and tells no size"):
        lab.fetch(dataclasses.replace(want, hint=10))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=1, free=MIB))
    with pytest.raises(UnavailableError, match=r"more than 1048576 bytes and tells no size .1048576 are free"):
        lab.fetch(want)
    assert leftovers(want) == []


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"status": 401}, r"add a login for this host to the profile: `netrc:`, a file with `machine HOST`"),
    ({"status": 403}, "use another host, or add a login"),  # github.com/tuna/issues/issues/2154
    ({"status": 403, "code": "GatedRepo"}, "accept its terms on its page"),  # huggingface/huggingface_hub/issues/2844
    ({"status": 511}, "log in to this network with a browser"),
]


def test_a_refusal_names_what_lifts_it(lab: Lab) -> None:
    for faults, advice in REFUSALS:
        with pytest.raises(UnavailableError, match=f"it answers {faults['status']}; {advice}"):
            lab.fetch(lab.want(lab.serve(**faults)))


@pytest.mark.parametrize("kind", ["mute", "deaf", "refused", "unknown"])
@pytest.mark.timeout(60)
def test_a_host_that_gives_no_answer_is_named_and_the_next_source_has_it(
    lab: Lab,
    kind: str,
    silent: RawServer,
) -> None:
    urls = {"refused": "http://127.0.0.250:1", "unknown": "http://nobody.invalid", "mute": silent.url}
    urls["deaf"] = "http://{}:{}".format(*lab.servers.enter_context(deaf()))
    url = f"{urls[kind]}/file.bin"
    good = lab.serve()
    want = lab.want(good, urls=(url, good.url))
    lab.fetch(want)
    assert want.path.read_bytes() == CONTENT
    assert good.sent == len(CONTENT)
    want.path.unlink()
    with pytest.raises(UnavailableError) as result:
        lab.fetch(dataclasses.replace(want, urls=(url,), size=None))
    why = {"mute": "it stalled", "deaf": "no connection in time", "refused": "no connection"}
    assert f"{url.split('/')[2]}: {why.get(kind, 'the name does not resolve')}" in str(result.value)
    assert leftovers(want) == []


def test_who_says_that_it_is_not_there_is_told_from_who_cannot_be_reached(lab: Lab) -> None:
    with pytest.raises(NotFoundError, match=r"127\.0\.0\.2:\d+: it answers 404; 127\.0\.0\.3:\d+: it answers 404"):
        lab.fetch(lab.want(lab.serve(status=404), lab.serve(status=404)))
    with pytest.raises(UnavailableError, match="add a login for this host") as caught:
        lab.fetch(lab.want(lab.serve(status=404), lab.serve(status=403)))
    assert not isinstance(caught.value, NotFoundError)


WRONG: dict[str, tuple[dict[str, Any], ...]] = {
    "ranges": ({},),
    "whole": ({"ranges": False},),
    "called a page": ({"ranges": False, "kind": "text/html"},),
    "both ranges": ({}, {}),
    "both whole": ({"ranges": False}, {"ranges": False}),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_bytes_of_the_right_size_never_get_the_name(lab: Lab, case: str) -> None:
    servers = [lab.serve(content=flipped(CONTENT, at * MIB), **faults) for at, faults in enumerate(WRONG[case], 3)]
    want = lab.want(*servers)
    with pytest.raises(PromiseError, match="no source has the file with sha256"):
        lab.fetch(want)
    assert list(want.path.parent.iterdir()) == []
    assert all(server.sent < 3 * len(CONTENT) for server in servers)


@pytest.mark.parametrize("first", [{}, {"ranges": False}, {"gone_after": 3}, {"truncate": 1000}])
@pytest.mark.parametrize("second", [{}, {"ranges": False, "truncate": 1000, "first": 3}])
def test_a_file_that_does_not_match_is_fetched_again_from_the_next_source(
    lab: Lab,
    first: dict[str, Any],
    second: dict[str, Any],
) -> None:
    want = lab.want(lab.serve(content=flipped(CONTENT, 2 * MIB + 7), **first), lab.serve(**second))
    lab.fetch(want)
    assert want.path.read_bytes() == CONTENT
    if not first:
        assert f"the file has a wrong hash: fetching all of it from {host(want, 1)}" in lab.notes
    assert leftovers(want) == []


def test_files_of_no_byte_and_small_files(lab: Lab) -> None:
    for body in (b"", CONTENT[:1000], CONTENT[: MIB + 1]):
        server = lab.serve(content=body)
        for size, hint in ((len(body), None), (None, len(body)), (None, 10)):
            want = lab.want(server, sha256=hashlib.sha256(body).hexdigest(), size=size)
            lab.fetch(dataclasses.replace(want, hint=hint))
            assert want.path.read_bytes() == body
            want.path.unlink()
        git = lab.want(server, sha256="", size=len(body), git_sha1=git_sha1(body))
        lab.fetch(git)
        assert git.path.read_bytes() == body
        with pytest.raises(PromiseError):
            lab.fetch(dataclasses.replace(git, git_sha1="0" * 40, path=git.path.with_name("other")))
    many = lab.serve(content=CONTENT[:1000])
    lab.fetch(lab.want(many, sha256=hashlib.sha256(CONTENT[:1000]).hexdigest(), size=1000))
    assert len(many.requests) == 1


def test_retry_after_is_waited_for_and_told_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # A date is a second away however late its request is, and no other request begins before the first is answered.
    now = 1_800_000_000
    monkeypatch.setattr(network_errors, "time", SimpleNamespace(time=lambda: now))
    monkeypatch.setattr(download, "_INTRODUCTION", 60.0)
    patient = Client(connect=60.0, read=60.0, connections=4)
    for message in ("1", email.utils.formatdate(now + 1, usegmt=True)):
        server = lab.serve(status=429, retry_after=message, first=1)
        want = lab.want(server)
        lab.fetch(want, client=patient)
        assert server.requests[1].time - server.requests[0].time >= 0.9
        assert [note for note in lab.notes if server.netloc in note] == [
            f"{server.netloc}: it answers 429 and asks to wait 1 s"
        ]
        want.path.unlink()


def test_a_source_that_asks_for_days_in_the_middle_is_given_up_and_what_came_is_kept(lab: Lab) -> None:
    server = lab.serve(status=429, busy=lambda number: number > 3, retry_after=DAY)
    want = lab.want(server)
    with pytest.raises(UnavailableError, match=r"asks to wait 86400 s.*the pieces that are whole are kept"):
        lab.fetch(want)
    assert not want.path.exists()
    good = lab.serve()
    done = lab.fetch(lab.want(good))
    assert want.path.read_bytes() == CONTENT
    assert done.found > 0
    assert good.sent == len(CONTENT) - done.found
    assert done.sources == {"an earlier run": done.found, good.netloc: good.sent}


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.timeout(60)
def test_a_source_that_drips_is_given_up(lab: Lab, monkeypatch: pytest.MonkeyPatch, *, ranges: bool) -> None:
    monkeypatch.setattr(responses, "SECONDS", 0.5)
    server = lab.serve(drip=0.05, ranges=ranges)
    with pytest.raises(UnavailableError, match=r"it sent less than 25 KiB in 0.5 s; name another mirror"):
        lab.fetch(lab.want(server))
    assert len(server.requests) <= 8


@pytest.mark.timeout(60)
def test_many_files_of_a_silent_source_cost_two_waits(
    lab: Lab,
    silent: RawServer,
) -> None:
    good, mute, body = lab.serve(content=CONTENT[:1000]), silent, CONTENT[:1000]
    first = lab.want(good, sha256=hashlib.sha256(body).hexdigest(), size=1000)
    many = [
        dataclasses.replace(first, urls=(f"{mute.url}/f", good.url), path=first.path.with_name(f"{number}"))
        for number in range(24)
    ]
    assert len(fetch_all(many, lab.means, lambda _: None)) == 24
    assert len(mute.requests) <= 8


def test_a_limit_of_connections_holds(lab: Lab) -> None:
    most, lock = [0, 0], threading.Lock()
    server = lab.serve(delay=0.02)
    plain = server.process_request_thread

    def counted(*args: Any) -> None:
        with lock:
            most[0] += 1
            most[1] = max(most)
        plain(*args)
        with lock:
            most[0] -= 1

    server.process_request_thread = counted  # type: ignore[method-assign, assignment]
    lab.fetch(lab.want(server), connections=4, slots=threading.Semaphore(2))
    assert 0 < most[1] <= 4


def test_several_at_once_move_a_file_once(lab: Lab) -> None:
    server = lab.serve(delay=0.05)
    want = lab.want(server)
    threads = [threading.Thread(target=fetch, args=(want, lab.means)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.sent == want.size
    assert leftovers(want) == []


def test_a_stop_ends_a_read_that_waits(lab: Lab) -> None:
    server = lab.serve(stall=60.0)
    threading.Timer(0.5, lab.means.stop.set).start()
    began = time.monotonic()
    with pytest.raises(StoppedError):
        lab.fetch(lab.want(server))
    assert time.monotonic() - began < 3


def test_a_batch_is_in_order_and_each_failure_is_told(lab: Lab) -> None:
    progress: list[tuple[int, int]] = []
    each: list[FetchedFile] = []
    good = lab.want(lab.serve())
    many = [dataclasses.replace(good, path=good.path.with_name(f"{number}.bin")) for number in range(3)]
    telling = dataclasses.replace(lab.means, progress=lambda *so_far: progress.append(so_far))
    assert [file.path for file in fetch_all(many, telling, each.append)] == [want.path for want in many]
    assert {file.path.read_bytes() for file in each} == {CONTENT}
    assert progress[-1] == (3 * len(CONTENT), 3 * len(CONTENT))
    missing = lab.want(lab.serve(status=404), path=good.path.with_name("gone"))
    wrong = lab.want(lab.serve(), sha256="0" * 64, path=good.path.with_name("wrong"))
    with pytest.raises(PromiseError, match=r"wrong: no source has the file.*and 1 more file"):
        fetch_all([missing, wrong, dataclasses.replace(good, path=good.path.with_name("last"))], lab.means, each.append)
    assert good.path.with_name("last").exists()
