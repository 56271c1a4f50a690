"""A file's name on a page is made by whoever serves the page: it costs neither time nor a traceback."""

from __future__ import annotations

import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.index import IndexFile, LockedPackage, match_files, parse_file_name
from tests.tables import each

A = "a" * 64
DIGITS = "9" * 5000
# 64 000 tags in 250 bytes: a page may list 50 000 such names, which took two hours.
BOMB = "torch-1.0-" + "-".join(".".join([letter] * 40) for letter in "pna") + ".whl"


@each(
    "name",
    [
        BOMB,
        f"torch-{DIGITS}-py3-none-any.whl",
        f"torch-1.0-{DIGITS}-py3-none-any.whl",
        f"torch-{DIGITS}.tar.gz",
        f"{'a' * 247}-1.tar.gz",
        "torch",
        "",
        ".whl",
        "\ud800-1-py3-none-any.whl",
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
    with pytest.raises(UnavailableError, match="no file on its page"):
        match_files(LockedPackage("torch", (A,), version="1.0"), [page])
