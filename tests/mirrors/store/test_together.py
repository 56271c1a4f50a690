"""Several processes on one store: fetchers, publishers and evicters at once, and each finds what it was promised."""

from __future__ import annotations

import contextlib
import hashlib
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.store import versions
from envcheck.mirrors.store.manifest import Contents, Wheel
from envcheck.mirrors.store.objects import Store
from tests.http_server import Server, Servers, directory
from tests.mirrors.store.conftest import damaged

CONTENT = random.Random(3).randbytes(3_000_000)  # noqa: S311 (data)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def url(servers: Servers, tmp_path: Path) -> str:
    """Serve the file."""
    (tmp_path / "served").mkdir()
    (tmp_path / "served/a.whl").write_bytes(CONTENT)
    return f"{servers.start(Server(directory(tmp_path / 'served'))).url}/a.whl"


def _wanted_file(url: str, sha256: str = SHA256) -> WantedFile:
    return WantedFile((url,), sha256, None, Path("a.whl"))


def test_a_file_is_fetched_into_its_place_read_only(store: Store, url: str) -> None:
    done = store.put(_wanted_file(url), TransferOptions(Client()))
    assert (done.moved, store.name(SHA256)) == (len(CONTENT), "a.whl")
    assert store.path(SHA256).stat().st_mode & 0o777 == 0o444
    assert store.put(_wanted_file(url), TransferOptions(Client())).moved == 0
    assert [path.name for path in store.path(SHA256).parent.iterdir()] == [SHA256]


def test_an_object_that_rotted_is_fetched_anew(store: Store, url: str) -> None:
    store.put(_wanted_file(url), TransferOptions(Client()))
    store.path(SHA256).chmod(0o644)
    store.path(SHA256).write_bytes(b"x" * len(CONTENT))
    store.put(_wanted_file(url), TransferOptions(Client()))
    assert damaged(store) == []


EVICT = """
import sys
from pathlib import Path
from envcheck.mirrors.store import evict
from envcheck.mirrors.store.objects import Store
store = Store(Path(sys.argv[1]))
print("begun", flush=True)
while True:
    evict.gc(store, evict.EvictionLimits(size=1), dry=False, note=lambda _: None)
"""


def test_an_evicter_that_never_stops_takes_nothing_that_is_published_or_viewed(
    store: Store, contents: Contents, tmp_path: Path
) -> None:
    """Publishing either has all it needs or says what went; what was published stays, whatever is evicted."""
    sources = {wheel.sha256: store.path(wheel.sha256).read_bytes() for wheel in contents.wheels}
    few = Contents(wheels=contents.wheels[:1])
    with subprocess.Popen([sys.executable, "-c", EVICT, str(store.root)], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        published, end = 0, time.monotonic() + 30
        while published < 5 and time.monotonic() < end:
            wheel = few.wheels[0]
            (tmp_path / wheel.name).write_bytes(sources[wheel.sha256])
            store.adopt(tmp_path / wheel.name, wheel.sha256)
            with contextlib.suppress(UnavailableError):
                store.view(wheel.sha256, tmp_path / "view")
                assert (tmp_path / "view").read_bytes() == sources[wheel.sha256]
            with contextlib.suppress(UnavailableError):
                versions.publish(store, msgspec.structs.replace(few, wheels=[_bare(contents)]), keep=2)
                published += 1
        assert running.poll() is None
        running.kill()
    assert published > 0
    assert damaged(store) == []
    assert all(store.has(digest) for digest in versions.pinned_digests(store))


def _bare(contents: Contents) -> Wheel:
    """Return the first wheel without the METADATA that the evicter took."""
    return msgspec.structs.replace(contents.wheels[0], metadata=None)
