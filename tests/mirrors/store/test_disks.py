"""The store on real file systems, mounted for the test: a full one, and one that has lost bytes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import Settings
from envcheck.cli.commands.store import command
from envcheck.mirrors.hub import HubFile, Revision
from envcheck.mirrors.store import bundle, releases
from envcheck.mirrors.store.objects import Store
from envcheck.mirrors.store.tree import Contents
from tests.mirrors.store.conftest import damaged

ROOT = os.getuid() == 0
MIB = 1 << 20
pytestmark = [
    pytest.mark.skipif(not ROOT, reason="file systems are mounted, which root may"),
    *([pytest.mark.tools] if ROOT else []),
]
Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Return what mounts a new file system of a kind and size in MiB; it is gone at the end."""
    mounted: list[Path] = []

    def make(kind: str, size: int) -> Path:
        program = shutil.which(f"mkfs.{kind}", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        if program is None:
            pytest.skip(f"no mkfs.{kind} here (`make test` unpacks it where apt is)")
        image, place = tmp_path / "disk.img", tmp_path / "disk"
        with image.open("wb") as file:
            file.truncate(size * MIB)
        subprocess.run([program, "-q", str(image)], check=True, capture_output=True)
        place.mkdir()
        words = ["mount", "-o", "loop", str(image), str(place)]
        completed = subprocess.run(words, capture_output=True, text=True, check=False)
        if completed.returncode:
            pytest.skip(f"nothing can be mounted here: {completed.stderr.strip()}")
        mounted.append(place)
        return place

    yield make
    for place in reversed(mounted):
        subprocess.run(["umount", str(place)], check=True)


def free(place: Path) -> int:
    """Return the bytes that are free on a file system, once all is on it."""
    os.sync()
    return shutil.disk_usage(place).free


def data(number: int, size: int = MIB) -> bytes:
    return random.Random(number).randbytes(size)  # noqa: S311 (data)


def model(store: Store, *contents: bytes, repo: str = "o/r") -> Contents:
    """Put files into a store, and return the model that they are."""
    digests = {f"f{number}.bin": store.add(content, f"f{number}.bin") for number, content in enumerate(contents)}
    files = [
        HubFile(path=path, size=len(content), sha256=digest)
        for (path, digest), content in zip(digests.items(), contents, strict=True)
    ]
    return Contents(models=[Revision(repo=repo, revision="0" * 40, files=files)])


def run(store: Store, *arguments: str) -> Result:
    settings = Settings(matrix=None, verbose=False, quiet=False)
    return CliRunner().invoke(command, ["--store", str(store.root), *arguments], obj=settings, standalone_mode=False)


def _exported(tmp_path: Path, *contents: bytes) -> Path:
    there = Store(tmp_path / "there")
    bundle.export(there, model(there, *contents), tmp_path / "b", progress=lambda _there, _all: None)
    return tmp_path / "b"


def test_a_disk_that_fills_up_during_an_import_leaves_what_is_served(mount: Mount, tmp_path: Path) -> None:
    disk = mount("ext4", 40)
    store = Store(disk / "store")
    releases.release(store, model(store, data(50), repo="o/old"), keep=2)
    source = _exported(tmp_path, *(data(number) for number in range(8)))

    def fill(there: int, every: int) -> None:
        if there > every * 0.3 and not (disk / "filler").exists():
            with (disk / "filler").open("wb") as file, contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, free(disk) - MIB)

    with pytest.raises(OSError, match="No space left"):
        bundle.import_bundle(store, bundle.verified(source), fill)
    assert not (store.root / "import").exists()
    assert releases.current(store) == 1
    assert len([one for one in store.objects() if one.size == MIB]) == 1
    assert damaged(store) == []
    (disk / "filler").unlink()
    assert "version 2 is served" in run(store, "import", str(source)).stdout


def test_what_the_disk_does_not_give_back_is_fetched_again(mount: Mount, tmp_path: Path) -> None:
    """Btrfs hashes its blocks: where one has changed on the disk, reading is an error, and no other bytes."""
    disk = mount("btrfs", 200)
    store = Store(disk / "store")
    content = data(1)
    contents = model(store, content, data(2))
    for number in range(2):
        releases.release(store, model(store, data(3 + number), repo=f"o/{number}"), keep=3)
        releases.release(store, contents, keep=3)
    digest = hashlib.sha256(content).hexdigest()
    served = store.root / "current/hf/o/r/resolve" / ("0" * 40) / "f0.bin"
    subprocess.run(["umount", str(disk)], check=True)
    image = tmp_path / "disk.img"
    with image.open("r+b") as file:
        at = file.read().index(content[:4096])
        file.seek(at)
        file.write(b"another")
    subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=True)
    with pytest.raises(OSError, match="Input/output error"):
        served.read_bytes()
    assert "the disk cannot read it" in str(run(store, "release", "--rollback").exception)
    assert "the disk fails: move the store" in str(run(store, "export", "-o", str(tmp_path / "b")).exception)
    assert list((tmp_path / "b").iterdir()) == []
    assert releases.remove_damaged(store, [digest]) == ["f0.bin"]
    assert not served.exists()
    assert store.add(content, "f0.bin") == digest
    releases.release(store, contents, keep=3)
    assert served.read_bytes() == content
