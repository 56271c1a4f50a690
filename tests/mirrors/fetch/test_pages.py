"""What lists the files of a lock may be busy, too, or want a login."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from envcheck.errors import NotFoundError, UnavailableError
from envcheck.mirrors.index.locate import LockedPackage, locate
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.profiles.model import Index

Serve = Callable[..., Any]
NAME, SHA = "demo-1.0-py3-none-any.whl", "a" * 64
PAGE = f'<a href="{NAME}#sha256={SHA}">demo</a>'.encode()
NEED = LockedPackage("demo", (SHA,))


def index(server: Any) -> Index:
    return Index(url=server.url.removesuffix("/file.bin"))


def test_an_index_that_is_busy_is_waited_for_as_it_asks(serve: Serve) -> None:
    server = serve(content=PAGE, status=503, busy=lambda number: number == 1, retry_after="1")
    assert [actual.name for actual in locate([NEED], {"pypi": [index(server)]}, Client())] == [NAME]
    assert server.requests[1].time - server.requests[0].time >= 0.9


def test_no_busy_index_is_waited_for_where_another_has_it(serve: Serve) -> None:
    busy, good = serve(status=503, retry_after="100"), serve(content=PAGE)
    assert [actual.name for actual in locate([NEED], {"pypi": [index(busy), index(good)]}, Client())] == [NAME]
    assert len(busy.requests) == 1


def test_an_index_that_wants_a_login_is_said_to(serve: Serve) -> None:
    with pytest.raises(UnavailableError, match=r"it answers 401 to /demo/ \(add a login for this host to the profile"):
        locate([NEED], {"pypi": [index(serve(status=401))]}, Client())


def test_an_index_without_the_page_is_told_from_a_silent_one(serve: Serve) -> None:
    missing = index(serve(status=404))
    with pytest.raises(NotFoundError, match="it answers 404 to /demo/"):
        locate([NEED], {"pypi": [missing]}, Client())
    with pytest.raises(UnavailableError, match="no connection") as silent:
        locate([NEED], {"pypi": [missing, Index(url="http://127.0.0.1:9")]}, Client())
    assert silent.value.exit_code == 3
