"""A lookup that fails names the host that was asked, why, and what to do: in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch import request as fetch_retries
from envcheck.mirrors.hub import Reference, read_revision
from envcheck.mirrors.net.client import Client
from tests.certificates import self_signed
from tests.http_server import Answer, Request, Server, Servers
from tests.tables import each

REF = Reference("model", "owner/tiny", "main")
Hubs = Callable[[], Any]
ELSEWHERE = "or use `fetch --lock FILE`, which needs no lookup"


def error_text(endpoint: str, ref: Reference = REF) -> str:
    with pytest.raises(UnavailableError) as failed:
        read_revision(Client(connect=0.5, read=0.5), endpoint, ref)
    assert "\n" not in str(failed.value)
    return str(failed.value)


def test_a_name_that_does_not_resolve() -> None:
    fix = "check the name, the revision and the endpoint (`hf: {trusted: URL}` in the profile)"
    assert (
        error_text("https://x.invalid")
        == f"model owner/tiny@main: x.invalid: the name does not resolve; {fix}, {ELSEWHERE}"
    )


def test_a_host_whose_certificate_is_not_trusted(servers: Servers, tmp_path: Path) -> None:
    tls = self_signed(tmp_path, "127.0.0.1").context
    rogue = servers.start(Server(lambda _: Answer(), tls=tls))
    message = error_text(rogue.url)
    assert f"{rogue.netloc}: TLS: self-signed certificate; set its CA certificate as `ca:`" in message


@each(
    ("status", "fix"),
    [
        (401, "check the name; if it is private or gated, set `hf: {token: allow}` or `credentials:` in the profile"),
        (404, "check the name, the revision and the endpoint (`hf: {trusted: URL}` in the profile)"),
        (503, "run it again later"),
    ],
)
def test_an_answer_that_is_none(hubs: Hubs, monkeypatch: pytest.MonkeyPatch, status: int, fix: str) -> None:
    monkeypatch.setattr(fetch_retries, "WAITS", (0.01,))
    server = hubs()
    server.busy = [status] * 9
    assert error_text(server.url) == f"model owner/tiny@main: {server.netloc}: it answers {status}; {fix}, {ELSEWHERE}"


def test_a_repository_and_a_revision_that_are_not_there(hubs: Hubs) -> None:
    server = hubs()
    for ref in (
        Reference("model", "owner/other", "main"),
        Reference("dataset", "owner/tiny", "main"),
    ):
        assert error_text(server.url, ref).startswith(
            f"{ref.kind} {ref.repo}@main: {server.netloc}: it answers 404; check"
        )
    assert "@nosuch: " in error_text(server.url, Reference("model", "owner/tiny", "nosuch"))
    assert "it answers 404" in error_text(server.url, Reference("model", "owner/tiny", "f" * 40))


@pytest.fixture
def listing(servers: Servers) -> Callable[[Callable[[str], tuple[list[dict[str, Any]], str]]], str]:
    """Give a function that starts a hub whose pages of a list, and the links to the next, are made of the query."""

    def start(page: Callable[[str], tuple[list[dict[str, Any]], str]]) -> str:
        def answer(request: Request) -> Answer:
            path, _, query = request.path.partition("?")
            rows, link = page(query) if "/tree/" in path else ({"sha": "a" * 40}, "")
            return Answer(200, json.dumps(rows).encode(), {"Link": f'<?{link}>; rel="next"'} if link else {})

        return servers.start(Server(answer)).url

    return start


def row(name: str, size: object = 1, **more: object) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": size, "oid": "0" * 40, **more}


def test_a_list_of_several_pages_is_read_to_its_end(listing: Any) -> None:
    following = {"recursive=true&expand=false": "c=2", "c=2": "c=3", "c=3": ""}
    folder = {"type": "directory", "path": "d"}
    endpoint = listing(lambda query: ([folder] if query == "c=2" else [row(query[-1])], following[query]))
    files = read_revision(Client(), endpoint, REF).files
    assert [file.path for file in files] == ["e", "3"]


@each(
    ("page", "message"),
    [
        (lambda _query: ([{"type": "directory", "path": "d"}], "c=x"), "its list of files does not end after 0 files"),
        (lambda query: ([row(f"f{len(query)}")], f"{query}x"), "its list of files does not end after 6 files"),
        (lambda _query: ([row("a"), row("./a")], ""), "it lists 'a' twice"),
    ],
)
def test_a_list_without_an_end_is_no_list(
    listing: Any, monkeypatch: pytest.MonkeyPatch, page: Callable[[str], Any], message: str
) -> None:
    """A list was cut at its ten thousandth page and taken for all that there is."""
    monkeypatch.setattr("envcheck.mirrors.hub._PAGES", 6)
    assert message in error_text(listing(page))
