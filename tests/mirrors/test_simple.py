"""An index's pages, as JSON and as HTML, and which of their files a lock means."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.errors import UnavailableError
from envcheck.mirrors.http import NetworkError
from envcheck.mirrors.locate import Found, Need, choose
from envcheck.mirrors.profile import Index
from envcheck.mirrors.simple import File, page_url, parse

A, B = "a" * 64, "b" * 64
URL = "https://mirror.example/simple/torch/"
JSON = "application/vnd.pypi.simple.v1+json"


def test_json_and_html_say_the_same() -> None:
    page = {"files": [{"filename": "torch-1.whl", "url": "../../f/torch-1.whl", "hashes": {"sha256": A}}]}
    html = f'<html><a href="../../f/torch-1.whl#sha256={A}">torch</a><a href="">no file</a></html>'
    expected = [File("torch-1.whl", "https://mirror.example/f/torch-1.whl", A)]
    assert parse(json.dumps(page).encode(), JSON, URL) == expected
    assert parse(html.encode(), "text/html", URL) == expected


def test_a_local_version_s_plus_is_read_in_either_spelling() -> None:
    page = b'<base href="https://other.example/x/"><a href="torch-2.8.0%2Bcu128.whl">t</a>'
    assert parse(page, "text/html", URL) == [
        File("torch-2.8.0+cu128.whl", "https://other.example/x/torch-2.8.0%2Bcu128.whl")
    ]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"files": 3}', b'{"files": [3]}', b'{"files": [{}]}'])
def test_json_that_is_no_page_is_one_line(body: bytes) -> None:
    with pytest.raises(NetworkError, match="no PEP 691 JSON"):
        parse(body, JSON, URL)


@given(st.text())
def test_no_html_breaks_the_reader(text: str) -> None:
    parse(f'<a href="{text}">'.encode(), "text/html", URL)


def test_where_a_page_is() -> None:
    assert page_url(Index(url="https://mirror.example/simple"), "torch") == URL
    torch = Index(url="https://mirror.example/whl/{variant}/")
    assert page_url(torch, "torch", "cu128") == "https://mirror.example/whl/cu128/torch/"
    flat = Index(url="https://mirror.example/whl/{variant}/", kind="find-links")
    assert page_url(flat, "torch", "cu128") == "https://mirror.example/whl/cu128/"


def test_a_file_is_known_by_its_hash_and_has_every_place_that_names_it() -> None:
    pages: list[list[File] | str] = [
        [File("t.whl", "https://one.example/t.whl", A), File("other.whl", "https://one.example/o", B)],
        "two.example does not answer",
        [File("t.whl", "https://three.example/t.whl", A, 5), File("same.whl", "https://three.example/x")],
    ]
    found = choose(Need("torch", (A,)), pages)
    assert found == [Found("t.whl", A, 5, ("https://one.example/t.whl", "https://three.example/t.whl"))]


def test_nothing_of_that_hash_says_why_at_each_place() -> None:
    with pytest.raises(UnavailableError, match="torch: it answers 404; no file there has a hash of the lock"):
        choose(Need("torch", (A,)), ["it answers 404", [File("t.whl", "https://x.example/t", B)]])
