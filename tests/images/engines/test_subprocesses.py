"""Programs are run with a limit, listened to line by line, and ended whole."""

import os
import time
from pathlib import Path

import pytest

from envcheck.errors import UnavailableError
from envcheck.images.engines import subprocesses
from tests.waiting import eventually, runs


def test_at_its_limit_the_whole_group_is_killed(tmp_path: Path) -> None:
    child = tmp_path / "child"
    command_result = subprocesses.stream(["sh", "-c", f"sleep 60 & echo $! >{child}; echo started; wait"], timeout=3)
    assert command_result.status is None
    assert command_result.output == "started\n"
    pid = int(child.read_text())
    assert eventually(lambda: runs(pid), expected=False) is False, "the child outlived its group"


def test_a_program_that_closes_its_output_and_hangs_is_ended_too() -> None:
    assert subprocesses.stream(["sh", "-c", "exec >&- 2>&-; sleep 60"], timeout=1).status is None


def test_a_program_that_is_not_there_says_what_to_do() -> None:
    with pytest.raises(UnavailableError, match="no-such-program is not installed; install no-such-program"):
        subprocesses.stream(["no-such-program"], timeout=1)


def test_programs_of_stream_all_run_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for the other."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    argvs = [["sh", "-c", f"echo word > {fifo}; exit 3"], ["cat", str(fifo)]]
    lines: list[str] = []
    first, second = subprocesses.stream_all(argvs, timeout=60, on_line=lines.append, env={})
    assert (first, second) == ((3, ""), (0, "word\n"))
    assert lines == ["word"]


def test_an_error_of_one_ends_all(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    def stop(line: str) -> None:
        raise RuntimeError(line)

    argvs = [
        ["sh", "-c", f"echo $$ > {pid}; exec sleep 600"],
        ["sh", "-c", f"until [ -s {pid} ]; do sleep 0.1; done; echo no"],
    ]
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="no"):
        subprocesses.stream_all(argvs, timeout=250, on_line=stop, env={})
    assert time.monotonic() - begun < 200
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
