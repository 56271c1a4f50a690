"""What a killed part leaves running is ended; what merely works in the site's directory, or is another's, is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envcheck.errors import UnavailableError
from envcheck.mirrors.site.processes import orphans, send_signal, start_time
from tests.mirrors.site.conftest import envcheck
from tests.mirrors.site.test_up import wait
from tests.mirrors.site.upstreams import free_ports


@pytest.fixture
def family(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Return a process that leads a session in a directory, and its child."""
    child = "import os,time; print(os.fork() or '', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", child]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True) as leader:
        assert leader.stdout
        pid = next(int(line) for line in leader.stdout if line.strip())
        yield leader.pid, pid
        for one in (leader.pid, pid):
            if start_time(one):
                os.kill(one, signal.SIGKILL)


def test_an_orphan_is_one_of_the_dead_leaders_session_in_the_sites_directory(
    tmp_path: Path, family: tuple[int, int]
) -> None:
    leader, child = family
    assert orphans(leader, tmp_path) == {}
    os.kill(leader, signal.SIGKILL)
    wait(lambda: not start_time(leader))
    assert orphans(leader, tmp_path) == {child: start_time(child)}
    assert orphans(leader, tmp_path.parent) == {}
    assert orphans(child, tmp_path) == {}


def test_whose_process_it_is_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refuse)
    with pytest.raises(UnavailableError, match=r"nginx \(process 7\) belongs to another user"):
        send_signal(7, signal.SIGTERM, "nginx")


@pytest.mark.tools
def test_workers_of_a_killed_nginx_are_ended_by_up_and_by_down(tmp_path: Path, nginx: str) -> None:
    assert nginx
    root, port = tmp_path / "site", free_ports(130)
    options = ("--no-hf", "--no-pytorch", "--link", "http://127.0.0.9", "--port", str(port))
    assert envcheck("mirror", "site", "render", str(root), *options).returncode == 0
    try:
        for command in ("up", "down"):
            assert envcheck("mirror", "site", "up", str(root)).returncode == 0
            master = int((root / "run/nginx.started").read_text().split()[0])
            os.kill(master, signal.SIGKILL)
            wait(lambda master=master: not start_time(master))  # type: ignore[misc]
            assert orphans(master, root)
            done = envcheck("mirror", "site", command, str(root))
            assert (done.returncode, orphans(master, root)) == (0, {}), done.stderr
        assert "nginx" in done.stdout
    finally:
        envcheck("mirror", "site", "down", str(root))
