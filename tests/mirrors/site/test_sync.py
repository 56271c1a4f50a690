"""The rendered copy between own mirrors, run as its timer runs it: real rsync, a real rsync daemon on loopback."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envcheck.mirrors.site import programs, render
from tests.mirrors.site.conftest import answers, free_port
from tests.mirrors.site.test_render import site as everything
from tests.processes import program
from tests.waiting import PATIENCE

pytestmark = pytest.mark.tools
FILES = 40


class Mirrors:
    """Two mirrors of one's own: `source` is served by an rsync daemon, the site's copy of it is at `served`."""

    def __init__(self, root: Path, rsync: str, port: int) -> None:
        self.source, self.root, self.daemon = root / "upstream", root / "site", f"rsync://127.0.0.5:{port}/tree"
        self.served = self.root / "public/static/main"
        whole = everything(self.root, sync={"main": self.daemon})
        for name, text in render(whole).items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        (self.root / "public/static").mkdir(parents=True)
        self.command = next(task for task in programs(whole).tasks if task.name == "sync-main").commands[0].split()
        (root / "bin").mkdir()
        (root / "bin/rsync").write_text(f'#!/bin/sh\nexec {rsync} $SLOW "$@"\n')
        (root / "bin/rsync").chmod(0o755)
        self.environment = {"PATH": f"{root}/bin:{os.environ['PATH']}"}

    def publish(self, generation: int) -> None:
        """Put a tree at the source of which each file says the same, so that half of it would be seen."""
        self.source.mkdir(exist_ok=True)
        for number in range(FILES):
            (self.source / f"{number}.bin").write_bytes(f"{generation}\n".encode() * 20_000)
        (self.source / "same.bin").write_bytes(b"same" * 1000)
        os.utime(self.source / "same.bin", (10**9, 10**9))
        (self.source / f"only-{generation}").touch()

    def start(self, slow: str = "") -> subprocess.Popen[bytes]:
        """Start the copy as its timer does, in a session of its own; `slow` is an option of rsync's."""
        out, environment = subprocess.PIPE, {**self.environment, "SLOW": slow}
        return subprocess.Popen(
            self.command, env=environment, start_new_session=True, stdout=out, stderr=subprocess.STDOUT
        )

    def run(self) -> tuple[int, str]:
        process = self.start()
        statement = process.communicate(timeout=100)[0].decode()
        return process.returncode, statement

    def generations(self) -> set[bytes]:
        files = list(self.served.glob("*.bin"))
        assert len(files) == FILES + 1
        return {path.read_bytes()[:2] for path in files if path.name != "same.bin"}


@pytest.fixture
def mirrors(tmp_path: Path) -> Iterator[Mirrors]:
    rsync, port = program("rsync"), free_port("127.0.0.5")
    (tmp_path / "rsyncd.conf").write_text(
        f"address = 127.0.0.5\nport = {port}\nuse chroot = no\nreverse lookup = no\nlog file = {tmp_path}/rsyncd.log\n"
        f"[tree]\npath = {tmp_path}/upstream\nuid = {os.getuid()}\ngid = {os.getgid()}\n"
    )
    command = [rsync, "--daemon", "--no-detach", "--config", str(tmp_path / "rsyncd.conf")]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    answers(f"http://127.0.0.5:{port}/", process)
    yield Mirrors(tmp_path, rsync, port)
    process.terminate()
    process.wait(PATIENCE)


def test_a_tree_is_copied_and_served_in_one_step_and_what_is_the_same_is_linked(mirrors: Mirrors) -> None:
    mirrors.publish(1)
    assert mirrors.run() == (0, "")
    assert (mirrors.generations(), mirrors.served.is_symlink()) == ({b"1\n"}, True)
    before = (mirrors.served / "same.bin").stat().st_ino
    result = (mirrors.root / "state/metrics/sync-main.prom").stat().st_mtime_ns
    mirrors.publish(2)
    (mirrors.source / "only-1").unlink()
    assert mirrors.run() == (0, "")
    assert mirrors.generations() == {b"2\n"}
    assert (mirrors.served / "same.bin").stat().st_ino == before
    assert [path.name for path in mirrors.served.glob("only-*")] == ["only-2"]
    assert (mirrors.root / "state/metrics/sync-main.prom").stat().st_mtime_ns > result
    for _ in range(3):
        assert mirrors.run() == (0, "")
    assert sorted(path.name for path in (mirrors.root / "trees/main").iterdir()) == ["4", "5"]


def test_a_copy_that_is_killed_half_way_is_never_seen_and_is_gone_on_with(mirrors: Mirrors) -> None:
    mirrors.publish(1)
    assert mirrors.run()[0] == 0
    result = (mirrors.root / "state/metrics/sync-main.prom").stat().st_mtime_ns
    mirrors.publish(2)
    following, seen = mirrors.root / "trees/main/next", set[bytes]()
    with mirrors.start("--bwlimit=300") as process:  # KiB/s: of 1.6 MB the half, so that a loaded machine sees it
        while len(list(following.glob("*.bin"))) < FILES // 3:
            assert process.poll() is None, process.communicate()
            seen |= mirrors.generations()
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    half = {path.name: path.stat().st_ino for path in following.glob("*.bin")}
    assert FILES // 3 <= len(half) < FILES
    assert seen | mirrors.generations() == {b"1\n"}
    assert (mirrors.root / "state/metrics/sync-main.prom").stat().st_mtime_ns == result
    assert mirrors.run()[0] == 0
    assert mirrors.generations() == {b"2\n"}
    kept = [name for name, inode in half.items() if (mirrors.served / name).stat().st_ino == inode]
    assert len(kept) >= len(half) - 1  # the last one may have been under way


def test_a_source_that_is_gone_or_empty_changes_nothing(mirrors: Mirrors) -> None:
    mirrors.publish(1)
    assert mirrors.run()[0] == 0
    shutil.rmtree(mirrors.source)
    assert mirrors.run()[0] != 0
    mirrors.source.mkdir()
    code, message = mirrors.run()
    assert (code, "is empty" in message) == (1, True)
    assert mirrors.generations() == {b"1\n"}
