"""A member of a group that is killed leaves no process, and the other node names it and ends its own ranks.

The ranks are processes of their own in which a stand-in for torch waits for ever, so that nothing ends by itself.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envcheck.fleet.group.meeting import free_ports
from tests.waiting import eventually

TORCH = """
import os, pathlib, time
__version__ = "2.13.0"
class version: cuda = None
class cuda:
    is_initialized = staticmethod(lambda: False)
    def init(): raise AssertionError("no CUDA")
class distributed: is_available = staticmethod(lambda: False)
def device(name):
    pathlib.Path(os.environ["STARTED"], os.environ["NODE_NAME"]).touch()
    time.sleep(600)
"""


def started_with(mark: str) -> Iterator[int]:
    """Yield the processes that have this in their environment."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                yield int(process.name)


@pytest.mark.parametrize(
    ("number", "code", "why"), [(signal.SIGKILL, -9, "its envcheck ended"), (signal.SIGTERM, 143, "it was interrupted")]
)
def test_a_killed_member_leaves_no_process_and_is_named(
    tmp_path: Path, number: signal.Signals, code: int, why: str
) -> None:
    ranks, torch, python = tmp_path / "started", tmp_path / "stand-in/torch", tmp_path / "python"
    ranks.mkdir()
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text(TORCH)
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="{torch.parent}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    mark = f"STARTED={ranks}"
    command = [sys.executable, "-m", "envcheck", "fleet", "group", "--python", str(python), "--only", "collectives"]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    members = []
    for rank in (0, 1):
        environment = {**os.environ, **common, "STARTED": str(ranks), "RANK": str(rank), "NODE_NAME": f"n{rank + 1}"}
        words = [*command, "-o", f"{tmp_path}/reports/"]
        members.append(subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    try:
        assert eventually(lambda: len([*ranks.iterdir()]), 2) == 2
        members[1].send_signal(number)
        codes = [member.wait(60) for member in members]
        assert eventually(lambda: len([*started_with(mark)]), 0) == 0
    finally:
        for process in started_with(mark):
            os.kill(process, signal.SIGKILL)
        errors = [member.communicate()[1].decode() for member in members]
    assert codes == [3, code], errors
    for name, blame in (("n1", "disturbed by n2"), ("group", why)):
        report = json.loads((tmp_path / f"reports/{name}.json").read_text())
        assert report["verdict"]["status"] == "error"
        summary = next(outcome["summary"] for outcome in report["outcomes"] if outcome["id"] == "collectives")
        assert "n2" in summary
        assert blame in summary
