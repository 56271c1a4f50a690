"""A file that a user named is replaced whole or not at all, whatever happens meanwhile."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envcheck import safe_files
from envcheck.errors import ConfigError
from tests.processes import ran

SIGNALLED = """
import os, signal, sys
from pathlib import Path
from envcheck import safe_files
def fsync(file, real=os.fsync):
    os.kill(os.getpid(), int(sys.argv[2]))
    real(file)
os.fsync = fsync
if int(sys.argv[2]) != signal.SIGINT:
    signal.signal(int(sys.argv[2]), signal.SIG_DFL)  # nohup has SIGHUP ignored
safe_files.replace(Path(sys.argv[1]), b"new")
print("went on")
"""
FULL = """
import resource, sys
from pathlib import Path
from envcheck import safe_files
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    safe_files.replace(Path(sys.argv[1]), b"n" * 100)
except OSError as error:
    print(error.filename)
"""


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-c", program, *arguments], timeout=120)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_in_the_middle_ends_the_process_after_it(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "x.lock"
    file.write_text("old")
    completed = python(SIGNALLED, str(file), str(int(number)))
    assert completed.returncode == -number, completed.stderr
    assert "went on" not in completed.stdout
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x.lock", "new")]


def test_without_room_the_old_file_stays_and_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.lock"
    file.write_text("old")
    completed = python(FULL, str(file))
    assert completed.stdout.strip() == str(file), completed.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x.lock", "old")]


def test_a_link_and_the_rights_of_a_file_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "x.lock", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    safe_files.replace(link, b"new")
    assert (link.is_symlink(), file.read_text(), file.stat().st_mode & 0o777) == (True, "new", 0o640)


def test_where_files_have_no_owner_a_file_like_new_ones_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, stranger = safe_files.create_or_reopen(tmp_path / "part"), os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)  # as NFS with squashed users shows it
    assert os.path.samestat(os.fstat(safe_files.create_or_reopen(tmp_path / "part")), os.fstat(file))
    (tmp_path / "part").chmod(0o666)
    assert safe_files.reopen(tmp_path / "part") is None


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        safe_files.replace(Path("/dev/full"), b"x")
    assert caught.value.filename == "/dev/full"
    safe_files.replace(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(FileNotFoundError, match="absent"):
        safe_files.replace(tmp_path / "absent/x", b"x")


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "windows.toml").write_text("min = 1", encoding="utf-8-sig")
    assert safe_files.read_whole(tmp_path / "windows.toml") == b"min = 1"


def test_a_pipe_is_waited_for_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody writes to hung `report show`, and one that nobody reads let no signal end `report convert`."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with subprocess.Popen(["/bin/sh", "-c", 'sleep 0.2; echo late > "$0"', tmp_path / "pipe"]):
            assert safe_files.read_whole(tmp_path / name) == b"late\n"
    monkeypatch.setattr(safe_files, "_WRITER", 0.1)
    with subprocess.Popen(["/bin/sh", "-c", 'exec > "$0"; sleep 0.5; echo slow', tmp_path / "pipe"]) as writer:
        time.sleep(0.05)
        assert safe_files.read_whole(tmp_path / "pipe") == b"slow\n", writer
    with pytest.raises(ConfigError, match=r"nobody wrote to this pipe in 0\.1 s"):
        safe_files.read_whole(tmp_path / "link")
    blocked: list[set[Any]] = []
    monkeypatch.setattr(Path, "write_bytes", lambda *_: blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    safe_files.replace(tmp_path / "pipe", b"x")
    assert signal.SIGINT not in blocked[0]
