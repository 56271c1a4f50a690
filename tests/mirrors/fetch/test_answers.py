"""What an answer to a ranged request means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.mirrors.fetch.plan.pieces import Failure, RangeTask, Span
from envcheck.mirrors.fetch.plan.range_responses import etag_of, file_size, range_failure, range_headers
from envcheck.mirrors.net.advice import status_advice

TASK = RangeTask(1, Span(100, 200), 0, '"e"')
GOOD = {"Content-Range": "bytes 100-199/1000", "ETag": '"e"'}


def test_the_piece_that_was_asked_for() -> None:
    assert range_headers(TASK) == {"Range": "bytes=100-199", "If-Range": '"e"'}
    assert range_failure(TASK, 206, GOOD, 1000, 0.0) is None
    assert range_failure(TASK, 206, {"Content-Range": GOOD["Content-Range"]}, 1000, 0.0) is None


@pytest.mark.parametrize(
    ("status", "headers", "failure"),
    [
        (206, {}, Failure("it sends a part without a valid Content-Range", drop=True)),
        (
            206,
            {**GOOD, "Content-Range": "bytes 0-99/1000"},
            Failure("it sends another part than requested", drop=True),
        ),
        (206, {**GOOD, "Content-Range": "bytes 100-199/999"}, Failure("its file has 999 bytes, not 1000", drop=True)),
        (206, {**GOOD, "ETag": '"f"'}, Failure("the file changed while it was fetched", changed=True)),
        (200, {"ETag": '"f"'}, Failure("the file changed while it was fetched", changed=True)),
        (200, {"ETag": '"e"'}, Failure("it sends whole files only", whole=True)),
        (416, {}, Failure("its file is shorter than expected", drop=True)),
        (404, {}, Failure("it answers 404", drop=True, missing=True)),
        (401, {}, Failure("it answers 401", drop=True, fix=status_advice(401))),
        (503, {}, Failure("it answers 503", crowded=True)),
        (429, {"Retry-After": "30"}, Failure("it answers 429 and asks to wait 30 s", after=30.0, crowded=True)),
        (
            429,
            {"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"},
            Failure("it answers 429 and asks to wait 100 s", after=100.0, crowded=True),
        ),
        (
            503,
            {"Retry-After": "9" * 5000},
            Failure("it answers 503 and asks to wait more than 10^18 s", after=float("inf"), crowded=True),
        ),
        (429, {"Retry-After": "soon"}, Failure("it answers 429", crowded=True)),
    ],
)
def test_what_is_not_it(status: int, headers: dict[str, str], failure: Failure) -> None:
    assert range_failure(TASK, status, headers, 1000, 0.0) == failure


@given(st.integers(100, 599), st.dictionaries(st.sampled_from(["Content-Range", "ETag", "Retry-After"]), st.text()))
def test_only_that_very_part_is_taken(status: int, headers: dict[str, str]) -> None:
    taken = range_failure(TASK, status, headers, 1000, 0.0) is None
    assert taken == (
        status == 206 and headers.get("Content-Range") == GOOD["Content-Range"] and etag_of(headers) in {None, '"e"'}
    )


def test_a_weak_etag_says_nothing_of_bytes() -> None:
    assert etag_of({"ETag": 'W/"e"'}) is None


@pytest.mark.parametrize(
    ("status", "headers", "size"),
    [
        (206, {"Content-Range": "bytes 0-0/77"}, 77),
        (206, {"Content-Range": "bytes 0-0/*"}, None),
        (200, {"Content-Length": "77"}, 77),
        (416, {"Content-Range": "bytes */0"}, 0),
        (416, {"Content-Range": "bytes */77"}, None),
        (404, {"Content-Length": "77"}, None),
    ],
)
def test_the_size_that_a_source_tells(status: int, headers: dict[str, str], size: int | None) -> None:
    assert file_size(status, headers) == size
