"""Containers as envcheck runs them: bounded, readable, and gone when envcheck is."""

import contextlib
import errno
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import ConfigError, UnavailableError
from envcheck.fleet.group.meeting import free_ports
from envcheck.images import engines
from envcheck.images.engines import BindMount, Engine
from tests.e2e.conftest import ROOT, Image, Machine
from tests.waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
SLEEPS = '''
"""A rank that never comes back."""

import ctypes
import time

from envcheck.checks import Check, passed

CHECK = Check(promise="it sleeps", level="static", ranks=0, timeout=600)


def measure(rank):
    ctypes.CDLL(None).prctl(15, b"{name}")
    time.sleep(600)
    return {{}}


def judge(view, ranks):
    return passed("slept")
'''


@pytest.fixture
def base(image: Image, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a small image with a Python, in the engine that envcheck now finds too."""
    for name in ("DOCKER_HOST", "DOCKER_CONFIG", "PATH"):
        monkeypatch.setenv(name, machine.env[name])
    return str(image.result["base"])


def test_status_output_user_and_shared_memory_are_what_was_asked_for(base: str) -> None:
    program = "import os, sys; print(os.getuid(), os.statvfs('/dev/shm').f_blocks * 4096); sys.exit(7)"
    asked: dict[str, Any] = {"argv": ["python3", "-c", program], "user": "12345:12345", "shm_size": "32m"}
    with contextlib.closing(Engine("docker").run_container(base, **asked)) as running:
        assert running.wait(120) == 7
        assert running.logs().split() == ["12345", str(32 << 20)]
        assert running.poll() == 7


def test_a_container_reaches_itself_by_its_name_and_nothing_else(base: str) -> None:
    outside = "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect_ex(('192.0.2.1', 9))"
    program = f"import socket; print(socket.gethostbyname(socket.gethostname()), {outside})"
    with contextlib.closing(Engine("docker").run_container(base, argv=["python3", "-c", program])) as running:
        assert running.wait(120) == 0, running.logs()
        assert running.logs().split() == ["127.0.0.1", str(errno.ENETUNREACH)]


def test_what_still_runs_is_told_from_what_ended(base: str, machine: Machine) -> None:
    with contextlib.closing(Engine("docker").run_container(base, argv=["sleep", "600"])) as running:
        assert running.wait(0.2) is None
        machine.docker("kill", running.id)
        assert running.wait(120) == 128 + signal.SIGKILL


def test_a_mount_is_read_only_unless_asked_for(base: str, tmp_path: Path) -> None:
    argv = ["sh", "-c", "touch /out/x && ! touch /in/x 2>/dev/null"]
    tmp_path.chmod(0o777)
    mounts = [BindMount(tmp_path, "/out", read_only=False), BindMount(tmp_path, "/in")]
    with contextlib.closing(Engine("docker").run_container(base, argv=argv, mounts=mounts)) as running:
        assert running.wait(120) == 0, running.logs()
        assert (tmp_path / "x").exists()


def test_the_container_reads_end_of_file_when_envcheck_is_killed(base: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    inside = "import sys; open('/out/up', 'w'); sys.stdin.read(); open('/out/eof', 'w')"
    program = (
        "import time; from pathlib import Path; from envcheck.images import engines\n"
        f"engines.Engine('docker').run_container({base!r}, argv=['python3', '-c', {inside!r}],"
        f" mounts=[engines.BindMount(Path({str(tmp_path)!r}), '/out', False)])\ntime.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert eventually((tmp_path / "up").exists, expected=True, seconds=120)
    assert not (tmp_path / "eof").exists()
    process.kill()
    process.wait()
    assert eventually((tmp_path / "eof").exists, expected=True, seconds=120)


def test_no_rank_in_a_container_outlives_a_killed_envcheck(image: Image, machine: Machine, tmp_path: Path) -> None:
    name = f"rank-{secrets.token_hex(4)}"
    (tmp_path / "env").mkdir()
    (tmp_path / "env/sleeps.py").write_text(SLEEPS.lstrip().format(name=name))
    arguments = ["run", "--image", image.reference, "--checks", str(tmp_path), "--only", "sleeps"]
    output = ["--output", str(tmp_path / "report.json")]
    process = subprocess.Popen(
        [sys.executable, "-m", "envcheck", *arguments, *output],
        cwd=ROOT,
        env=machine.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert eventually(lambda: len(_named(name)) == 2, expected=True, seconds=180)
    mine = f"label=envcheck.owner={socket.gethostname()}:{process.pid}"
    container = machine.docker("ps", "--quiet", "--filter", mine).stdout.strip()
    top = machine.docker("top", container, "-eo", "pid").stdout.split()[1:]
    assert set(_named(name)) < set(top)
    process.kill()
    process.wait()
    assert eventually(lambda: not any(Path("/proc", pid).exists() for pid in top), expected=True, seconds=30)
    assert not _named(name)


def test_what_a_killed_envcheck_left_is_swept_by_the_next(base: str, machine: Machine) -> None:
    program = (
        "from envcheck.images import engines\n"
        f"print(engines.Engine('docker').run_container({base!r}, argv=['true']).id)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    left = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    listed = machine.docker("ps", "--all", "--no-trunc", "--quiet").stdout
    assert left.stdout.strip() in listed
    state = ("inspect", "--format={{.State.Status}}", left.stdout.strip())
    assert eventually(lambda: "exited" in machine.docker(*state).stdout, expected=True, seconds=60)
    Engine("docker").run_container(base, argv=["true"]).close()
    assert left.stdout.strip() not in machine.docker("ps", "--all", "--no-trunc", "--quiet").stdout


def test_gpus_that_are_not_there_and_images_that_are_not_are_said_so(base: str) -> None:
    with pytest.raises(
        UnavailableError, match="docker has no NVIDIA runtime configured; install nvidia-container-toolkit"
    ):
        Engine("docker").run_container(base, argv=["true"], gpus=True)
    with pytest.raises(ConfigError, match=r"no image no/such:1 in this machine's engine; build it \(envcheck build\)"):
        engines.holder("no/such:1")
    with pytest.raises(UnavailableError, match="no-such-program"):
        Engine("docker").run_container(base, argv=["no-such-program"])


def _named(name: str) -> list[str]:
    """Return the processes of this machine, those in containers too, that call themselves so."""
    actual = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            actual += [comm.parent.name] if comm.read_text().strip() == name else []
    return actual


def test_a_group_of_two_nodes_runs_in_an_image(image: Image, machine: Machine, tmp_path: Path) -> None:
    """Both members are of this host, which is why each of them can be a node."""
    words = ["fleet", "group", "--image", image.reference, "--only", "node-links", "--output", f"{tmp_path}/"]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    with ThreadPoolExecutor() as pool:
        nodes = [{**common, "RANK": str(rank), "NODE_NAME": f"n{rank + 1}"} for rank in (0, 1)]
        members = [*pool.map(lambda node: machine.envcheck(*words, **node), nodes)]
    assert [member.returncode for member in members] == [0, 0], [member.stderr + member.stdout for member in members]
    report = json.loads((tmp_path / "group.json").read_text())
    assert (report["target"]["name"], report["group"]["nodes"]) == (image.reference, ["n1", "n2"])


# The options of `docker run`, what runs, and what the summary of each check that is lost names.
LIMITS = {
    "memory": (["--memory=150m"], "--only kernels --only shm", "for lack of memory"),
    "file size": (["--ulimit=fsize=1000000"], "--only dataloader", "1000000 bytes in a file, see `ulimit -f`"),
    "a full disk": (["--tmpfs=/tmp:size=96k"], "--level quick", "No space left on device"),
}


@pytest.mark.parametrize("kind", LIMITS)
def test_a_check_that_a_limit_takes_names_it(image: Image, machine: Machine, kind: str) -> None:
    options, what, names = LIMITS[kind]
    argv = ["envcheck", "run", "--level", "standard", *what.split(), "--json"]
    completed = machine.docker("run", "--rm", "--shm-size=8g", *options, image.reference, *argv)
    assert "Traceback" not in completed.stderr
    lost = [o for o in json.loads(completed.stdout)["outcomes"] if o["status"] in ("fail", "error")]
    assert lost, completed.stdout
    assert completed.returncode in (1, 3)
    for outcome in lost:
        assert names in outcome["summary"]


def test_a_root_that_is_read_only_without_a_place_for_temporary_files_is_one_clear_line(
    image: Image, machine: Machine
) -> None:
    argv = [image.reference, "envcheck", "run", "--only", "kernels", "--level", "quick"]
    completed = machine.docker("run", "--rm", "--read-only", *argv)
    assert completed.returncode == 2
    assert completed.stderr.splitlines()[-1].startswith("envcheck: no writable directory for temporary files: ")
    assert machine.docker("run", "--rm", "--read-only", "--tmpfs=/tmp", *argv).returncode == 0
