"""An index's pages, as JSON and as HTML, and which of their files a lock means."""

import dataclasses
import json
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.errors import UnavailableError
from envcheck.mirrors.index import (
    IndexFile,
    LocatedFile,
    LockedPackage,
    Page,
    locate,
    match_files,
    page_url,
    parse_file_name,
    parse_page,
)
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.profiles.model import Index
from tests.tables import each

A, B = "a" * 64, "b" * 64
URL = "https://mirror.example/simple/torch/"
JSON = "application/vnd.pypi.simple.v1+json"


def test_json_and_html_say_the_same() -> None:
    page = {"files": [{"filename": "torch-1.whl", "url": "../../f/torch-1.whl", "hashes": {"sha256": A}}]}
    html = f'<html><a href="../../f/torch-1.whl#sha256={A}">torch</a><a href="">no file</a></html>'
    expected = [IndexFile("torch-1.whl", "https://mirror.example/f/torch-1.whl", A)]
    assert parse_page([json.dumps(page).encode()], JSON, URL) == expected
    assert parse_page([html.encode()], "text/html", URL) == expected


def test_a_local_version_s_plus_is_read_in_either_spelling() -> None:
    """github.com/aptly-dev/aptly/issues/98: it is asked for as %2B, as pip does; a hash may be in capitals."""
    expected = IndexFile("torch-2.8.0+cu128.whl", "https://other.example/x/torch-2.8.0%2Bcu128.whl?a+b", A)
    for plus in ("%2B", "+"):
        url = f"https://other.example/x/torch-2.8.0{plus}cu128.whl?a+b"
        html = f'<base href="https://other.example/x/"><a href="{url[24:]}#sha256={A.upper()}">t</a>'
        assert parse_page([html.encode()], "text/html", URL) == [expected]
        entry = {"filename": expected.name, "url": url, "hashes": {"sha256": A.upper()}, "yanked": None}
        assert parse_page([json.dumps({"files": [entry]}).encode()], JSON, URL) == [expected]


@each("body", [b"", b"[]", b"{}", b'{"files": 3}', b'{"files": [3]}', b'{"files": [{}]}'])
def test_json_that_is_no_page_is_one_line(body: bytes) -> None:
    with pytest.raises(NetworkError, match="not PEP 691 JSON"):
        parse_page([body], JSON, URL)


@given(st.text())
def test_no_html_breaks_the_reader(text: str) -> None:
    files = parse_page([f'<a href="{text}">'.encode()], "text/html", URL)
    assert len(files) <= 1
    assert all(file.name and "/" not in file.url.rpartition("/")[2] for file in files)


def test_where_a_page_is() -> None:
    assert page_url(Index(url="https://mirror.example/simple"), "torch") == URL
    torch = Index(url="https://mirror.example/whl/{variant}/")
    assert page_url(torch, "torch", "cu128") == "https://mirror.example/whl/cu128/torch/"
    flat = Index(url="https://mirror.example/whl/{variant}/", kind="find-links")
    assert page_url(flat, "torch", "cu128") == "https://mirror.example/whl/cu128/"


W = "torch-2.8.0-cp311-cp311-manylinux_2_28_x86_64.whl"
NEED = LockedPackage("torch", (A,), "pytorch/cpu", "2.8.0", "3.11")


def linux(name: str) -> str:
    return name.replace("x86_64", platform.machine())


def test_a_file_is_known_by_its_hash_and_has_every_place_that_names_it() -> None:
    """A page without hashes has it by its name: which bytes it has there, their hash says when they are here."""
    pages: list[Page] = [
        [IndexFile(W, "https://one.example/t.whl", A), IndexFile("other-1.0.tar.gz", "https://one.example/o", B)],
        NetworkError("two.example does not answer"),
        [IndexFile(W, "https://three.example/t.whl", A, 5), IndexFile("torch-2.8.0.tar.gz", "https://three.example/x")],
        [IndexFile(W, "https://four.example/t.whl")],
    ]
    located_files = match_files(LockedPackage("torch", (A,)), pages)
    assert located_files == [
        LocatedFile(W, A, 5, tuple(f"https://{host}.example/t.whl" for host in ("one", "three", "four")))
    ]


def test_where_no_page_tells_hashes_the_one_file_it_can_be_is_taken() -> None:
    others = ["torch-2.8.0-cp312-cp312-manylinux_2_28_x86_64.whl", "torch-2.7.0-cp311-cp311-manylinux_2_28_x86_64.whl"]
    others += ["torch-2.8.0-cp311-cp311-win_amd64.whl", "torchvision-2.8.0-cp311-cp311-manylinux_2_28_x86_64.whl"]
    page = [IndexFile(linux(name), f"https://flat.example/{name}") for name in [*others, W]]
    assert match_files(NEED, [page]) == [LocatedFile(linux(W), A, None, (f"https://flat.example/{W}",))]
    with pytest.raises(UnavailableError, match="torch: its page has no hashes"):
        match_files(dataclasses.replace(NEED, python=None), [page])


@each("name", ["../../torch-2.8.0-py3-none-any.whl", "..", "torch", ".bashrc", "evil-2.8.0.tar.gz"])
def test_a_page_s_name_is_no_path(name: str) -> None:
    with pytest.raises(UnavailableError):
        match_files(NEED, [[IndexFile(name, "https://mirror.example/x", A)]])


def test_a_wheel_of_this_machine_is_a_place_too(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-2.8.0-py3-none-any.whl"
    for name in (wheel.name, "torch-2.7.0-py3-none-any.whl", "numpy-2.8.0-py3-none-any.whl"):
        (tmp_path / name).write_bytes(b"")
    indexes = {"pytorch": [Index(url=str(tmp_path), kind="find-links")]}
    assert locate([NEED], indexes, Client()) == [LocatedFile(wheel.name, A, None, (), (wheel,))]


def test_a_page_of_something_else_is_told_from_one_without_the_version() -> None:
    """github.com/astral-sh/uv/issues/11136: an index's URL without its /+simple; or a page to log in."""
    page = parse_page([b'<h1><a href="/">devpi</a></h1><form action="/login"><a href="/+help">?</a>'], "text/html", URL)
    with pytest.raises(UnavailableError, match="its page lists no file of torch: open its URL in a browser"):
        match_files(NEED, [page])


def test_who_was_asked_in_vain_is_named() -> None:
    pages: list[Page] = [NetworkError("it answers 404"), [IndexFile(W, "https://x.example/t", B)]]
    message = "torch: one.example: it answers 404; two.example: no file on its page has a hash of the lock"
    with pytest.raises(UnavailableError, match=message):
        match_files(LockedPackage("torch", (A,)), pages, hosts=["one.example", "two.example"])
    nobody = [Index(url=f"http://{name}.invalid/simple") for name in ("one", "two")]
    message = "numpy: one.invalid: the name does not resolve; two.invalid: the name does not resolve"
    with pytest.raises(UnavailableError, match=message):
        locate([LockedPackage("numpy", (A,))], {"pypi": nobody}, Client())


DIGITS = "9" * 5000
# 64 000 tags in 250 bytes: a page may list 50 000 such names, which took two hours.
BOMB = "torch-1.0-" + "-".join(".".join([letter] * 40) for letter in "pna") + ".whl"


@each(
    "name",
    [
        *(f"torch-{DIGITS}-py3-none-any.whl", f"torch-1.0-{DIGITS}-py3-none-any.whl", f"torch-{DIGITS}.tar.gz"),
        *(BOMB, f"{'a' * 247}-1.tar.gz", "torch", "", ".whl", "\ud800-1-py3-none-any.whl"),
    ],
)
def test_what_no_file_is_called_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_file_name(name)


def test_names_that_are_in_use_are_read() -> None:
    wide = "torch-1.0-cp310.cp311.cp312.cp313-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64.whl"
    assert len(parse_file_name(wide)[2]) == 12
    assert parse_file_name("a_b-1.0-py2.py3-none-any.whl")[0] == "a-b"
    assert str(parse_file_name("torch-2.8.0.tar.gz")[1]) == "2.8.0"
    longest = f"torch-1.0-py3-none-{'a' * 232}.whl"
    assert len(longest) == 255
    assert parse_file_name(longest)[0] == "torch"


@pytest.mark.timeout(120)
def test_a_page_of_such_names_is_read_in_seconds() -> None:
    page = [IndexFile(BOMB, f"http://t/{number}", A if number % 2 else None) for number in range(50_000)]
    with pytest.raises(UnavailableError, match="its page lists no file of torch"):
        match_files(LockedPackage("torch", (A,), version="1.0"), [page])
