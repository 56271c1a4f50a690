"""A disk that is full, a directory that cannot be written, a power cut: one line, and nothing wrong at the name."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch import download as fetch_download
from envcheck.mirrors.fetch.disk import journal, partial_file
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.net.client import Client

Serve = Callable[..., Any]
Want = Callable[..., WantedFile]
MIB = 1 << 20
# What the command does, with a limit or as a user that is not root; everything is imported before rights are given up.
FETCH = """
import os, resource, signal, sys
from pathlib import Path
from envcheck.errors import EnvcheckError
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.net.client import Client
how, url, sha256, path, *size = sys.argv[1:]
means = TransferOptions(Client())
if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
if how == "nobody" and os.geteuid() == 0:
    os.setuid(65534)
try:
    fetch(WantedFile((url,), sha256, int(size[0]) if size else None, Path(path)), means)
except (EnvcheckError, OSError) as error:
    print(type(error).__name__, error)
"""


def tried(how: str, want: WantedFile) -> str:
    words = [sys.executable, "-c", FETCH, how, want.urls[0], want.sha256, str(want.path)]
    completed = subprocess.run(words, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    return completed.stdout


def test_a_file_larger_than_the_system_lets_us_write(serve: Serve, wanted_file: Want) -> None:
    server = serve()
    want = wanted_file(server)
    measured = tried("limit", want)
    assert measured.startswith("UnavailableError")
    assert "is more than its file system or `ulimit -f` allows" in measured
    assert "choose another directory (--output)" in measured
    assert not want.path.exists()
    assert server.sent <= MIB


def test_a_directory_that_cannot_be_written(serve: Serve, wanted_file: Want, tmp_path: Path) -> None:
    want = wanted_file(serve())
    want.path.parent.mkdir(mode=0o555)
    for above in [tmp_path, *tmp_path.parents][:4]:
        if above.stat().st_uid == os.getuid() and above != Path("/tmp"):  # noqa: S108 (a directory of others)
            above.chmod(0o755)
    assert tried("nobody", want).startswith("PermissionError")
    assert list(want.path.parent.iterdir()) == []


@pytest.mark.tools
def test_a_full_disk_is_told_before_a_byte_comes(serve: Serve, wanted_file: Want, tmp_path: Path) -> None:
    """A file system of 4 MiB, mounted in a mount namespace of its own."""
    unshare = ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*unshare, "mount", "-t", "tmpfs", "t", str(tmp_path)], check=False).returncode != 0:
        pytest.skip("nothing may be mounted here")
    server = serve()
    want = wanted_file(server)
    script = f"mount -t tmpfs -o size=4m t {tmp_path} && exec {sys.executable} -c '{FETCH}' x " + '"$@"'
    words = [*unshare, "sh", "-c", script, "sh", want.urls[0], want.sha256, str(want.path)]
    completed = subprocess.run(words, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert "bytes are needed and 4" in completed.stdout
    assert server.sent <= MIB


MOUNTED = """
import errno, os, sys, threading
from pathlib import Path
from envcheck.errors import EnvcheckError
from envcheck.mirrors.fetch.disk import partial_file as disk
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.net.client import Client
how, url, sha256, size, path = sys.argv[1:]
room = Path(path).parents[1] / "other"
filled = threading.Event()

def fill(there, _all):
    # Somebody else takes all the room there is, once the first bytes have come.
    if there and not filled.is_set():
        filled.set()
        with room.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
            except OSError as error:
                print("filled", errno.errorcode[error.errno])

def unsupported(file, size):
    raise OSError(errno.EOPNOTSUPP, "not here")

reserve = disk.reserve

def counted(*asked):
    before = writes()
    reserve(*asked)
    print("writes", writes() - before)

def writes():
    return int(dict(line.split(": ") for line in open("/proc/self/io"))["syscw"])

if how == "unreserved":
    disk._allocate = unsupported
if how == "ramfs":
    disk.reserve = counted
wanted = WantedFile((url,), sha256, int(size), Path(path))
means = TransferOptions(Client(), connections=2, progress=fill if how != "ramfs" else lambda there, all_: None)
try:
    fetch(wanted, means)
except EnvcheckError as error:
    print(type(error).__name__, error)
    room.unlink()
    print("found", fetch(wanted, TransferOptions(Client())).found > 0)
print("there", Path(path).read_bytes() == open("/dev/stdin", "rb").read())
"""


def mounted(how: str, options: str, want: WantedFile, at: Path, content: bytes) -> str:
    """Fetch onto a file system that is mounted for it, in a mount namespace of its own."""
    unshare = ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*unshare, "mount", "-t", "tmpfs", "t", str(at)], check=False).returncode != 0:
        pytest.skip("nothing may be mounted here")
    script = f"mount -t {options} t {at} && exec {sys.executable} -c '{MOUNTED}' \"$@\""
    words = [*unshare, "sh", "-c", script, "sh", how, want.urls[0], want.sha256, str(want.size), str(want.path)]
    completed = subprocess.run(words, capture_output=True, input=content, check=False, cwd=Path(__file__).parents[3])
    assert completed.returncode == 0, completed.stderr.decode()
    return completed.stdout.decode()


def test_the_room_that_was_reserved_is_ours_though_another_fills_the_disk(
    serve: Serve, wanted_file: Want, tmp_path: Path, content: bytes
) -> None:
    paths = mounted("reserved", "tmpfs -o size=16m", wanted_file(serve(delay=0.2)), tmp_path, content)
    assert paths == "filled ENOSPC\nthere True\n"


@pytest.mark.parametrize("ranges", [True, False])
def test_where_no_room_can_be_reserved_a_disk_that_fills_up_is_one_line_and_what_came_is_kept(
    serve: Serve, wanted_file: Want, tmp_path: Path, content: bytes, *, ranges: bool
) -> None:
    want = wanted_file(serve(delay=0.2, ranges=ranges))
    lines = mounted("unreserved", "tmpfs -o size=16m", want, tmp_path, content).splitlines()
    assert lines[0] == "filled ENOSPC"
    assert lines[1].startswith("UnavailableError")
    assert "bytes are needed and 0 are free; free some space, or choose another directory (--output)" in lines[1]
    # Of one stream the first piece is not whole yet.
    assert lines[2:] == [f"found {ranges}", "there True"]


def test_a_file_system_that_reserves_nothing_and_tells_no_free_space_is_written_to(
    serve: Serve, wanted_file: Want, tmp_path: Path, content: bytes
) -> None:
    """A ramfs has no fallocate(2), and its statfs(2) says that it has no block at all.

    Nothing is written to reserve it: glibc's posix_fallocate would write to every block, on NFS the whole file.
    """
    assert mounted("ramfs", "ramfs", wanted_file(serve()), tmp_path, content) == "writes 0\nthere True\n"


@pytest.mark.timeout(30)
def test_a_disk_error_ends_it_at_once_though_other_connections_wait(
    serve: Serve, wanted_file: Want, means: TransferOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data cannot be synced any more, and every connection is in the middle of an answer that has stalled."""

    def broken(_file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fetch_download, "_SYNC_SECONDS", 1.0)
    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(UnavailableError, match="Input/output error"):
        fetch(wanted_file(serve(stall=60.0)), dataclasses.replace(means, client=Client(read=50.0)))


@pytest.mark.parametrize("small", [True, False])
def test_a_disk_that_is_full_only_when_the_file_is_synced_is_told_as_any_other(
    serve: Serve,
    wanted_file: Want,
    means: TransferOptions,
    content: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    small: bool,
) -> None:
    """So it is on NFS, and where a file system allocates late."""

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    body = content[:1000] if small else content
    want = dataclasses.replace(
        wanted_file(serve(content=body)), size=len(body), sha256=hashlib.sha256(body).hexdigest()
    )
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnavailableError, match=f"{len(body)} bytes are needed and [0-9]+ are free"):
        fetch(want, means)
    assert not want.path.exists()
    monkeypatch.setattr(partial_file, "_syncfs", full)
    with pytest.raises(UnavailableError, match=f"{tmp_path}: cannot write everything to the disk: No space left"):
        partial_file.sync_folders([tmp_path])


@pytest.mark.parametrize("third", [False, True])
def test_who_waited_holds_the_file_that_has_the_name_now(
    means: TransferOptions, notes: list[str], tmp_path: Path, *, third: bool
) -> None:
    """Not the one that the other process has finished meanwhile and moved away; a third may have begun another."""
    part, held = tmp_path / ".file.12345678.part", list[bool]()

    def second() -> None:
        with partial_file.locked(part, means) as file:
            held.append(os.fstat(file).st_ino == part.stat().st_ino)

    waiting = threading.Thread(target=second)
    with partial_file.locked(part, means):
        waiting.start()
        while not notes:
            time.sleep(0.01)
        part.rename(tmp_path / "file")
        if third:
            part.write_bytes(b"")
    waiting.join()
    assert held == [True]


def test_room_is_reserved_to_the_last_block(tmp_path: Path) -> None:
    with (tmp_path / "part").open("w+b") as file:
        partial_file.reserve(file.fileno(), 4 * MIB + 1, tmp_path / "part")
        assert os.fstat(file.fileno()).st_blocks * 512 > 4 * MIB


def test_after_a_power_cut_what_never_reached_the_disk_is_fetched_again(
    serve: Serve, wanted_file: Want, means: TransferOptions, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal of another boot: six pieces noted, two of them synced, and the others' bytes are gone."""
    server = serve()
    want = wanted_file(server)
    assert want.size is not None
    want.path.parent.mkdir()
    part = want.path.with_name(f".{want.path.name}.{want.sha256[:8]}.part")
    part.write_bytes(content[: 2 * MIB] + bytes(want.size - 2 * MIB))
    header = journal.Header(want.sha256, want.size, MIB, "before the power cut")
    kept = journal.Journal(partial_file.journal_path(part), header, {})
    for piece in range(6):
        kept.piece(piece, journal.source_id(want.urls[0]))
        if piece == 1:
            kept.synced(2)
    kept.close()
    done = fetch(want, means)
    assert want.path.read_bytes() == content
    assert (done.found, server.sent) == (2 * MIB, want.size - 2 * MIB)
    # In the same boot each line would have been believed, the hash would not have, and the bad pieces found.
    want.path.unlink()
    part.write_bytes(bytes(want.size))
    monkeypatch.setattr(journal, "boot_id", lambda: "before the power cut")
    repeated = journal.Journal(partial_file.journal_path(part), header, dict.fromkeys(range(6), "x"))
    repeated.close()
    fetch(want, means)
    assert want.path.read_bytes() == content
