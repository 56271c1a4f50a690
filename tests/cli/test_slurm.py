"""Four nodes of a real Slurm on this machine: a run on each leaves its own report in one directory.

Nothing of the host's is used: keys, sockets, ports, logs and state are the test's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import envcheck

pytestmark = [pytest.mark.tools, pytest.mark.timeout(300)]

NODES = [f"n{number}" for number in range(1, 5)]
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
PATIENCE = 60.0
CONFIGURATION = """\
ClusterName=envcheck
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={at}/munge.sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool-%n
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd-%n.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""
CHECK = '''"""A check of this site."""
from envcheck.checks import Check, passed
CHECK = Check(promise="it holds", level="quick", ranks=1, timeout=60)
def measure(rank):
    return {}
def judge(view, ranks):
    return passed("fine")
'''
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the environment of a cluster of four nodes that is up."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent or os.geteuid() != 0:
        pytest.skip(f"Slurm needs root and {', '.join(PROGRAMS)}; not here: {', '.join(absent) or 'root'}")
    at = tmp_path_factory.mktemp("slurm")
    (at / "state").mkdir()
    (at / "munge.key").write_bytes(os.urandom(128))
    (at / "munge.key").chmod(0o400)
    host, ports = socket.gethostname().partition(".")[0], free_ports(1 + len(NODES))
    text = CONFIGURATION.format(host=host, ports=ports, at=at)
    nodes = (NODE.format(name=name, host=host, port=port) for name, port in zip(NODES, ports[1:], strict=True))
    (at / "slurm.conf").write_text(text.replace("PartitionName", "".join(nodes) + "PartitionName"))
    environment = {**os.environ, "SLURM_CONF": str(at / "slurm.conf")}
    files = {"key": "munge.key", "socket": "munge.sock", "pid": "munged.pid", "log": "munged.log", "seed": "munge.seed"}
    names = {"key": "key-file", "pid": "pid-file", "log": "log-file", "seed": "seed-file", "socket": "socket"}
    options = [f"--{names[kind]}={at / file}" for kind, file in files.items()]
    with contextlib.ExitStack() as running:
        running.enter_context(started(["munged", "--foreground", "--force", *options], environment, at))
        until((at / "munge.sock").exists, at)
        for command in (["slurmctld", "-D"], *(["slurmd", "-D", "-N", name] for name in NODES)):
            running.enter_context(started(command, environment, at))
        until(lambda: idle(environment) == len(NODES), at)
        yield environment


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody listens on."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def started(command: list[str], environment: dict[str, str], at: Path) -> Iterator[None]:
    """Run a daemon until the block ends, and what it started with it."""
    with (at / f"{command[0]}{command[-1]}.out".replace("/", "_")[-80:]).open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def idle(environment: dict[str, str]) -> int:
    """Return how many nodes are ready for work."""
    done = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return len(done.stdout.split()) if done.returncode == 0 else 0


def until(ready: Callable[[], bool], at: Path) -> None:
    """Wait until this is true; else fail with what the daemons wrote."""
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > deadline:
            logs = {log.name: log.read_text(errors="replace")[-500:] for log in [*at.glob("*.log"), *at.glob("*.out")]}
            pytest.fail(f"Slurm did not come up: {logs}")
        time.sleep(0.2)


def test_four_nodes_in_one_directory_leave_four_reports(cluster: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "site/env").mkdir(parents=True)
    (tmp_path / "site/env/mine.py").write_text(CHECK)
    (tmp_path / "cwd").mkdir()
    step = ["srun", "-N4", "--ntasks-per-node=1", sys.executable, "-m", "envcheck", "run", "--python", sys.executable]
    done = subprocess.run(
        [*step, "--checks", str(tmp_path / "site"), "--only", "mine"],
        cwd=tmp_path / "cwd",
        env={**cluster, "PYTHONPATH": str(Path(envcheck.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reports = {path.name: json.loads(path.read_text()) for path in (tmp_path / "cwd").iterdir()}
    assert set(reports) == {f"envcheck-report-{name}.json" for name in NODES}
    assert {report["host"]["place"]["node"] for report in reports.values()} == set(NODES)
    assert {report["verdict"]["status"] for report in reports.values()} == {"pass"}
