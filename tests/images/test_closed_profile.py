"""A closed profile: where it names nobody, nobody is asked."""

import pytest

from envcheck.errors import ConfigError
from envcheck.images.build_context import sources
from envcheck.images.lock_with_uv import source_options
from envcheck.images.lockfile import Lock
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Index, Profile, network_indexes
from tests.tables import each

OPEN, CLOSED = Profile(name="site"), Profile(name="site", closed=True)
INDEX = Index(url="https://mirror.example/simple")


def test_an_index_that_is_not_named_is_not_the_clients_own() -> None:
    assert network_indexes([], closed=False) == [Index(url=CLIENT_DEFAULT)]
    assert network_indexes([Index(url="/srv/wheels"), Index(url=CLIENT_DEFAULT)], closed=True) == []
    assert network_indexes([INDEX], closed=True) == [INDEX]


@each("index, key", [("pypi", "pypi"), ("pytorch/cpu", "pytorch")])
def test_a_context_that_could_not_be_built_is_refused(index: str, key: str) -> None:
    lock = Lock(group="base", index=index, pins=[])
    (row,) = sources("base", lock, OPEN, carried=False)
    assert row.kind in {"default", "torch-backend"}
    with pytest.raises(ConfigError, match=f"closed and names no index for base.lock; name one under `{key}:`"):
        sources("base", lock, CLOSED, carried=False)
    assert [row.kind for row in sources("base", lock, CLOSED, carried=True)] == ["carried"]


@each("index", ["pypi", "pytorch/cpu"])
def test_a_lock_is_made_through_named_indexes_alone(index: str) -> None:
    named = Profile(name="site", pypi=[INDEX], pytorch=[INDEX], closed=True)
    assert source_options(CLOSED, index) == []
    assert source_options(OPEN, index) != []
    assert all(INDEX.url in source for source in source_options(named, index))
