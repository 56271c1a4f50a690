"""The disk: one that is full or taken away, a process that is killed, and what another user plants there."""

import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch import disk
from envcheck.mirrors.fetch.request import WantedFile
from tests.mirrors.fetch.conftest import CONTENT, SIZE, Lab, words
from tests.processes import ran

MIB = 1 << 20
VICTIM = b"precious\n" * 1000
# A process without threads, that forks a fetcher, kills it a random time later, and so on until one gets to its end.
KILLER = """
import hashlib, json, os, random, signal, sys, time
from pathlib import Path
from envcheck.mirrors.fetch import download
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.net.client import Client

url, sha256, size, path, kills = sys.argv[1:]
download._SAVE_SECONDS = 0.0
wanted = WantedFile((url,), sha256, int(size), Path(path))
chance, killed, wrong, finished = random.Random(1), 0, 0, 0
while killed < int(kills):
    child = os.fork()
    if child == 0:
        fetch(wanted, TransferOptions(Client(), connections=4))
        os._exit(0)
    time.sleep(chance.uniform(0.0, 0.08))
    os.kill(child, signal.SIGKILL)
    killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    if wanted.path.exists():
        finished += 1
        wrong += hashlib.sha256(wanted.path.read_bytes()).hexdigest() != sha256
        wanted.path.unlink()
done = fetch(wanted, TransferOptions(Client(), connections=4))
print(json.dumps({"wrong": wrong, "finished": finished, "kills": killed}))
"""


def begun(want: WantedFile, content: bytes) -> Path:
    """Return the unfinished file, with this in it."""
    want.path.parent.mkdir()
    part = disk.part_path(want)
    part.write_bytes(content)
    return part


def test_a_file_larger_than_the_system_lets_us_write(lab: Lab) -> None:
    server = lab.serve()
    want = lab.want(server)
    said = ran(["sh", "-c", 'ulimit -f 8192 && exec "$@"', "sh", *words(want)]).stderr  # blocks of 512 bytes
    assert "is more than its file system or `ulimit -f` allows; choose another directory (--output)" in said
    assert server.sent <= MIB


@pytest.mark.tools
def test_a_full_disk_is_told_before_a_byte_comes(lab: Lab, tmp_path: Path) -> None:
    """A file system of 4 MiB, mounted in a mount namespace of its own."""
    unshare = ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*unshare, "mount", "-t", "tmpfs", "t", str(tmp_path)], check=False).returncode != 0:
        pytest.skip("nothing may be mounted here")
    server = lab.serve()
    mount = f'mount -t tmpfs -o size=4m t {tmp_path} && exec "$@"'
    said = ran([*unshare, "sh", "-c", mount, "sh", *words(lab.want(server))]).stderr
    assert "bytes are needed and 4" in said
    assert server.sent <= MIB


@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "fsync"])
def test_a_disk_that_fills_up_or_fails_is_one_line(lab: Lab, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    want = lab.want(lab.serve(delay=0.01))
    monkeypatch.setattr("envcheck.mirrors.fetch.download._SAVE_SECONDS", 0.0)
    monkeypatch.setattr(os, call, broken)
    with pytest.raises(UnavailableError, match=f"{want.size} bytes are needed and [0-9]+ are free"):
        lab.fetch(want)
    assert not want.path.exists()


def test_a_file_system_without_locks_is_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """github.com/huggingface/huggingface_hub/issues/2399, datasets/issues/2618: Lustre without flock, NFS."""
    want = lab.want(lab.serve())
    for number in (errno.ENOLCK, errno.ENOSYS):

        def flock(*_: object, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)
        with pytest.raises(UnavailableError, match=f"^{lab.to}: the file system has no locks; choose a local"):
            lab.fetch(want)


def test_killed_at_random_moments_nothing_wrong_gets_the_name_and_what_had_come_is_kept(lab: Lab) -> None:
    server = lab.serve(delay=0.02)
    want = lab.want(server)
    given = [want.urls[0], want.sha256, str(want.size), str(want.path), "25"]
    completed = subprocess.run([sys.executable, "-c", KILLER, *given], capture_output=True, text=True, check=True)
    document = json.loads(completed.stdout)
    assert document["wrong"] == 0
    assert want.path.read_bytes() == CONTENT
    # Each kill costs at most what each connection was at: a part of two pieces, as 4 connections share 10 MiB.
    assert server.sent <= (document["finished"] + 1) * len(CONTENT) + document["kills"] * 4 * 2 * MIB


@pytest.mark.parametrize("pieces", ["all", "of another size", "not valid"])
def test_a_journal_is_no_proof(lab: Lab, pieces: str) -> None:
    """As after a power cut: pieces said to be there that are not. The hash says so, and the file is fetched again."""
    want = lab.want(lab.serve())
    part = begun(want, bytes(SIZE))
    size = 7 if pieces == "of another size" else SIZE
    disk.write_journal(part, disk.Journal(want.sha256, size, MIB, {99} if pieces == "not valid" else set(range(11))))
    lab.fetch(want)
    assert want.path.read_bytes() == CONTENT


def test_pieces_are_kept_where_the_whole_file_does_not_come(lab: Lab) -> None:
    """The only server there forgot of ranges, and has the file no longer when it is asked for all of it."""
    want = lab.want(lab.serve(ranges=False, gone_after=1))
    part = begun(want, CONTENT)
    disk.write_journal(part, disk.Journal(want.sha256, SIZE, MIB, set(range(5))))
    with pytest.raises(UnavailableError):
        lab.fetch(want, connections=1)
    assert lab.fetch(dataclasses.replace(want, urls=(lab.serve().url,))).found == 5 * MIB


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=200)
    | st.lists(st.integers() | st.just("a" * 64) | st.lists(st.integers())).map(msgspec.json.encode)
)
def test_any_journal_is_read(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    part = tmp_path_factory.getbasetemp() / "any.part"
    part.write_bytes(b"1234567")
    disk.journal_path(part).write_bytes(text)
    journal = disk.read_journal(part, "a" * 64)
    assert journal.size in {0, 7}
    assert all(0 <= number * journal.piece < journal.size for number in journal.pieces)


@pytest.mark.parametrize("name", ["part", "journal", "journal.new", "local"])
@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_a_planted_name_is_replaced_and_not_followed(lab: Lab, tmp_path: Path, name: str, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(VICTIM)
    victim.chmod(0o640)
    want = lab.want(lab.serve())
    want.path.parent.mkdir()
    part = disk.part_path(want)
    planted = {"part": part, "journal": disk.journal_path(part), "local": Path(f"{part}.local")}
    planted["journal.new"] = Path(f"{planted['journal']}.new")
    if kind == "pipe":
        os.mkfifo(planted[name])
    elif kind == "hard link":
        planted[name].hardlink_to(victim)
    else:
        planted[name].symlink_to(victim)
    os.mkfifo(want.path)
    lab.fetch(want)
    assert (want.path.read_bytes(), want.path.is_symlink()) == (CONTENT, False)
    assert (victim.read_bytes(), victim.stat().st_mode & 0o777) == (VICTIM, 0o640)


def test_a_local_file_that_may_not_be_read_is_passed_over(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "other.bin").write_bytes(CONTENT)
    want = lab.want(lab.serve(), local=(tmp_path / "other.bin",))
    for place, name in ((os, "link"), (os, "open"), (Path, "open")):
        monkeypatch.setattr(place, name, refuse)
    assert disk.take_local_copy(want, disk.part_path(want)) is None


@pytest.mark.parametrize("owner", ["ours", "another"])
def test_an_unfinished_file_that_others_may_write_to_is_not_gone_on_with(lab: Lab, owner: str) -> None:
    """Who holds it open could change it after its hash was compared."""
    if owner == "another" and os.geteuid() != 0:
        pytest.skip("a file of another user is made by root only")
    want = lab.want(lab.serve())
    part = begun(want, CONTENT)
    if owner == "another":
        os.chown(part, 65534, 65534)
    else:
        part.chmod(0o666)
    with part.open("r+b") as held:
        lab.fetch(want)
        held.write(b"changed")
    assert want.path.read_bytes() == CONTENT
    assert want.path.stat().st_uid == os.geteuid()


def test_the_umask_is_honoured_and_the_longest_name_is_written(lab: Lab, tmp_path: Path) -> None:
    small = CONTENT[:1000]
    server, digest = lab.serve(content=small), hashlib.sha256(small).hexdigest()
    for mask, mode in ((0o077, 0o600), (0o002, 0o664)):
        want = lab.want(server, sha256=digest, size=1000, path=tmp_path / ("ä" * 127))
        before = os.umask(mask)
        try:
            lab.fetch(want)
        finally:
            os.umask(before)
        assert want.path.stat().st_mode & 0o777 == mode
        want.path.unlink()
