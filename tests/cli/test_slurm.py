"""Four nodes of a real Slurm on this machine: reports of a run on each, the rendered files, groups and pairs.

Each node has a network namespace with its own name and address, its own /dev/shm, and a control group for CPU quotas.
Nothing of the host's is used: keys, sockets, ports, logs and state are the test's own.
"""

import contextlib
import datetime as dt
import functools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import envcheck
from envcheck.fleet import gate
from envcheck.fleet.gate import GatedEnvironment, NodeVerdict, fingerprint, this_boot
from envcheck.fleet.group.meeting import free_ports
from envcheck.fleet.launch_files import LaunchValues, launch_files

pytestmark = [pytest.mark.tools, pytest.mark.timeout(300)]

NODES = [f"n{number}" for number in range(1, 5)]
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "ip", "unshare", "nsenter", "tc")
CPU = Path("/sys/fs/cgroup/cpu")  # of version 1
PATIENCE = 60.0
CONFIGURATION = (Path(__file__).parents[1] / "data/slurm.conf").read_text()
RECORDER = """\
#!/bin/sh
echo "$SLURMD_NODENAME $*" >> {at}/calls
case "$*" in *"--max-age 1s "*) [ ! -e "{at}/fails-on-$SLURMD_NODENAME" ] || exit 1 ;; esac
"""
NODE = "NodeName={name} NodeHostname={name} NodeAddr={address} Port={port} CPUs=2 State=UNKNOWN\n"
# A bridge, and behind it a network namespace for each node with eth0; the host has number 254.
BRIDGE, NET = f"ec{os.getpid() % 10**7}", f"10.{64 + os.getpid() % 61}.{os.getpid() % 251}"
NETWORK = {"B": BRIDGE, "NET": NET, "CPU": str(CPU)}
SCRIPT = Path(__file__).parents[1] / "data/slurm-nodes.sh"
DOCS = Path(__file__).parents[2] / "docs/fleet.md"
# This envcheck, also where the working directory is another one.
ENVCHECK, SOURCE = [sys.executable, "-m", "envcheck"], {"PYTHONPATH": str(Path(envcheck.__file__).parents[1])}
ENDED = "JobState=(COMPLETED|FAILED|TIMEOUT|NODE_FAIL|CANCELLED|OUT_OF_MEMORY)"
RUN = ["run", "--python", sys.executable, "--level", "static"]


def network(what: str) -> None:
    subprocess.run(["sh", "-eu", SCRIPT, what], env={**os.environ, **NETWORK}, check=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent or os.geteuid() != 0:
        pytest.skip(f"Slurm needs root and {', '.join(PROGRAMS)}; not here: {', '.join(absent) or 'root'}")
    at = tmp_path_factory.mktemp("slurm")
    (at / "state").mkdir()
    (at / "munge.key").write_bytes(os.urandom(128))
    (at / "munge.key").chmod(0o400)
    host, ports = socket.gethostname().partition(".")[0], free_ports(1 + len(NODES))
    text = CONFIGURATION.format(host=host, ports=ports, at=at, address=f"{NET}.254")
    nodes = [NODE.format(name=name, address=f"{NET}.{name[1:]}", port=ports[int(name[1:])]) for name in NODES]
    known = [f"{NET}.{name[1:]} {name}\n" for name in NODES]
    (at / "hosts").write_text("".join(["127.0.0.1 localhost\n", f"{NET}.254 {host}\n", *known]))
    render(at, "slurm.conf.part", "prolog.sh")
    text = text.replace("PartitionName", "".join(nodes) + "PartitionName")
    (at / "slurm.conf").write_text(text + (at / "slurm.conf.part").read_text())
    # What epilog and health program start is a script in place of envcheck, whose run would take seconds of a node.
    (at / "recorder").write_text(RECORDER.format(at=at))
    (at / "recorder").chmod(0o755)
    render(at, "epilog.sh", "health.sh", program=f"{at}/recorder")
    for name in NODES:
        keep(at / "kept", name, "pass")
    # As torchrun sets it: the threads of four nodes that share two cores spin.
    environment = {**os.environ, "SLURM_CONF": str(at / "slurm.conf"), "OMP_NUM_THREADS": "1"}
    environment["ENVCHECK_HOME"] = str(at / "kept")
    files = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={at / f'munge.{end}'}" for option, end in files.items()]
    with contextlib.ExitStack() as running:
        running.callback(network, "remove")
        network("make")
        running.enter_context(started(["munged", "--foreground", "--force", *options], environment, at))
        until((at / "munge.sock").exists, at)
        running.enter_context(started(["slurmctld", "-D"], environment, at))
        for name in NODES:
            slurmd = ["sh", "-eu", str(SCRIPT), "slurmd", name]
            running.enter_context(started(slurmd, {**environment, **NETWORK, "AT": str(at)}, at, f"slurmd-{name}"))
        until(lambda: idle(environment) == len(NODES), at)
        yield environment


def render(at: Path, *names: str, python: str = sys.executable, program: str = "") -> None:
    """Write this cluster's files of these names: this test's own Python, on nodes without a GPU."""
    program = program or str(Path(sys.executable).with_name("envcheck"))
    folders = str(at), str(at / "reports"), str(at / "kept")
    values = LaunchValues(
        None, python, len(NODES), 0, "static", 900.0, 20.0, "admit", program, *folders, "default", (), max_drained=50.0
    )
    for name, text in launch_files("slurm", values).items():
        if name in names:
            (at / name).write_text(text)
            (at / name).chmod(0o755)


def keep(state: Path, name: str, status: Any, check: str = "", summary: str = "", **more: Any) -> None:
    """Keep a verdict for a node, in the place of the one that it has; a failure is one of its hardware, or not."""
    python, at = more.get("python", sys.executable), this_boot({"SLURMD_NODENAME": name})
    subject = GatedEnvironment(kind="python", name=python, state=fingerprint(Path(python)))
    at = structs.replace(at, uptime=at.uptime - more.get("age", 0.0))
    made = NodeVerdict(subject=subject, at=at, level="static", mode="cpu", status=status, check=check, summary=summary)
    of_node = status == "fail" and more.get("of_node", True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ENVCHECK_HOME", str(state))
        gate.keep(structs.replace(made, of_node=of_node, again=(check,) if check else ()))


def resume(cluster: dict[str, str], at: Path) -> None:
    for name in NODES:
        keep(Path(cluster["ENVCHECK_HOME"]), name, "pass")
        slurm(cluster, "scontrol", "update", f"nodename={name}", "state=resume")
    until(lambda: idle(cluster) == len(NODES), at)


def slurm(environment: dict[str, str], *command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=timeout)


def node(environment: dict[str, str], name: str) -> str:
    return slurm(environment, "sinfo", "--noheader", "--Node", f"--nodes={name}", "--format=%T %E").stdout


@contextlib.contextmanager
def started(command: list[str], environment: dict[str, str], at: Path, name: str = "") -> Iterator[None]:
    with (at / f"{name or command[0]}.out").open("wb") as out:
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
    completed = slurm(environment, "sinfo", "--noheader", "--Node", "--states=idle", "--format=%N")
    return len(completed.stdout.split()) if completed.returncode == 0 else 0


def until(ready: Callable[[], bool], at: Path, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not ready():
        if time.monotonic() > deadline:
            logs = {log.name: log.read_text(errors="replace")[-500:] for log in [*at.glob("*.log"), *at.glob("*.out")]}
            pytest.fail(f"it did not come up: {logs}")
        time.sleep(0.2)


def batch(environment: dict[str, str], at: Path, script: str) -> tuple[str, str]:
    """Run a job to its end; return what Slurm says of it, and its output. `sbatch --wait` looks every ten seconds."""
    job = slurm(environment, "sbatch", "--parsable", "-o", str(at / "out"), str(at / script)).stdout.strip()
    show = ["scontrol", "show", "job", job]
    until(lambda: re.search(ENDED, slurm(environment, *show).stdout) is not None, at, 250)
    return slurm(environment, *show).stdout, (at / "out").read_text()


def test_the_rendered_prolog_decides_and_its_reason_stays(cluster: dict[str, str], tmp_path: Path) -> None:
    """A fresh pass lets a job in; a fresh failure drains with its reason, and leaves a batch job to start again.

    A stale verdict, none, and a fault of the environment drain nothing.
    """
    state = Path(cluster["ENVCHECK_HOME"])
    assert slurm(cluster, "srun", "-w", "n1", "true").returncode == 0
    keep(state, "n2", "fail", check="gpu-visible", summary="7 of 8 GPUs")
    assert slurm(cluster, "srun", "-w", "n2", "--immediate=20", "true").returncode != 0
    until(lambda: "drain" in node(cluster, "n2"), tmp_path)
    assert "envcheck: gpu-visible: 7 of 8 GPUs" in node(cluster, "n2")
    keep(state, "n3", "fail", check="ecc", summary="2 errors")
    job = slurm(cluster, "sbatch", "--parsable", "-w", "n3", "-o", "/dev/null", "--wrap", "true").stdout.strip()
    until(lambda: "drain" in node(cluster, "n3"), tmp_path)
    until(lambda: "JobState=PENDING" in slurm(cluster, "scontrol", "show", "job", job).stdout, tmp_path)
    shown = slurm(cluster, "scontrol", "show", "job", job).stdout
    slurm(cluster, "scancel", job)
    assert "held" not in shown, shown
    assert "Priority=0 " not in shown, shown
    # Two of four are drained, which is the limit: of a third it is only said.
    keep(state, "n4", "fail", check="ecc", summary="2 errors")
    assert slurm(cluster, "srun", "-w", "n4", "--immediate=20", "true").returncode == 0
    keep(state, "n1", "pass", age=10_000.0)
    assert slurm(cluster, "srun", "-w", "n1", "--immediate=20", "true").returncode == 0
    keep(state, "n1", "fail", check="installed-files", summary="a file of torch is changed", of_node=False)
    assert slurm(cluster, "srun", "-w", "n1", "--immediate=20", "true").returncode == 0
    shutil.rmtree(state)
    assert slurm(cluster, "srun", "-w", "n[1,4]", "-N2", "--immediate=20", "true").returncode == 0
    states = [node(cluster, name) for name in ("n1", "n4")]
    assert not any("drain" in state for state in states), states


@pytest.mark.torch
def test_a_node_that_was_repaired_runs_the_next_job_after_one_command(
    cluster: dict[str, str], tmp_path: Path, torch_python: Path
) -> None:
    resume(cluster, tmp_path)
    state, at = Path(cluster["ENVCHECK_HOME"]), Path(cluster["SLURM_CONF"]).parent
    render(at, "prolog.sh", python=str(torch_python))
    try:
        for name in ("n2", "n3"):
            keep(state, name, "fail", check="requirements", summary="planted", python=str(torch_python))
        # A batch job: after the prolog of another one has failed, slurmd 22.05 may drain the node again and again.
        job = slurm(cluster, "sbatch", "--parsable", "-w", "n2", "-o", "/dev/null", "--wrap", "true").stdout.strip()
        until(lambda: "drain" in node(cluster, "n2"), tmp_path)
        slurm(cluster, "scancel", job)
        slurm(cluster, "scontrol", "update", "nodename=n3", "state=drain", "reason=a fan")
        gate_of = [*ENVCHECK, "fleet", "gate", "--recheck"]
        for name, words in (("n2", "n2 passed again (requirements), and is resumed"), ("n3", "not resumed: it is dr")):
            done = slurm({**cluster, "SLURMD_NODENAME": name}, *gate_of)
            assert (done.returncode, words in done.stdout) == (0, True), done.stdout + done.stderr
        until(lambda: "idle" in node(cluster, "n2"), tmp_path)
        assert slurm(cluster, "srun", "-w", "n2", "--immediate=20", "true").returncode == 0
        assert "a fan" in node(cluster, "n3")
    finally:
        render(at, "prolog.sh")


def test_the_rendered_sweep_says_a_line_a_node_and_leaves_reports_for_one_page_and_metrics(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    """What docs/fleet.md has a timer start reads them: one node by two names, one whose report is old, one absent."""
    resume(cluster, tmp_path)
    render(tmp_path, "sweep.sbatch")
    environment = {**cluster, **SOURCE, "ENVCHECK_RUN_ONLY": "open-files"}
    _, output = batch(environment, tmp_path, "sweep.sbatch")
    [reports] = (tmp_path / "reports").iterdir()
    found = {path.stem: json.loads(path.read_text()) for path in reports.glob("*.json")}
    assert set(found) == {*NODES}, output
    told, _, whole = output.partition(": 4 of 4 nodes passed\n")
    assert sorted(line.split(": ")[:2] for line in told.splitlines()[:-1]) == [[name, "PASS"] for name in NODES], told
    assert whole.startswith("use now: n[1-4]\n"), output
    # On its node's own command line a run knows the host's name alone, and that may be the full one.
    full = "hostname n1.site; unset SLURMD_NODENAME; exec " + shlex.join([*ENVCHECK, *RUN, "-o", f"{reports}/"])
    done = slurm(environment, "srun", "-w", "n1", "unshare", "--uts", "sh", "-c", full)
    assert (reports / "n1.site.json").exists(), done.stdout + done.stderr
    for number in range(5, 10):  # fewer than eight nodes have no outliers
        plant(reports, found["n1"], f"n{number}")
    plant(reports, found["n2"], "n2", hours=48)
    [timed] = re.findall(r"^ExecStart=\S+/envcheck (.*)$", DOCS.read_text(), re.MULTILINE)
    places = {"/shared/reports": str(reports), "n[1-1000]": "n[1-10]", "/srv/www": str(tmp_path)}
    places["/var/lib/prometheus/node-exporter"] = str(tmp_path)
    words = functools.reduce(lambda text, place: text.replace(*place), places.items(), timed).split()
    fleet = json.loads(slurm(environment, *ENVCHECK, *words, "--json").stdout)
    states = {"pass": 8, "fail": [], "error": [], "missing": ["n10"], "stale": ["n2"]}
    assert (fleet["nodes"], fleet["outliers"], fleet["verdict"]["good"]) == (states, [], "n[1,3-9]"), fleet
    metrics = (tmp_path / "envcheck-fleet.prom").read_text()
    for line in ('s{state="pass"} 8.0', '_state{node="n1",state="pass"} 1.0', '_state{node="n2",state="stale"} 1.0'):
        assert f"envcheck_fleet_node{line}\n" in metrics, metrics
    assert (tmp_path / "fleet.html").exists()


def plant(reports: Path, report: dict[str, Any], name: str, hours: float = 0) -> None:
    """Write a report as of another node, or as of a run that ended so long before."""
    times = {at: dt.datetime.fromisoformat(report[at]) - dt.timedelta(hours=hours) for at in ("started", "ended")}
    host = {**report["host"], "place": {**report["host"]["place"], "node": name}}
    made = {**report, "host": host, **{at: when.isoformat() for at, when in times.items()}}
    (reports / f"{name}.json").write_text(json.dumps(made))


def test_slurmd_calls_the_rendered_epilog_and_health_program(cluster: dict[str, str], tmp_path: Path) -> None:
    """The health program runs on idle nodes; an epilog whose check failed drains the node, another one does not."""
    resume(cluster, tmp_path)
    at = Path(cluster["SLURM_CONF"]).parent
    (at / "fails-on-n2").touch()
    assert slurm(cluster, "srun", "-w", "n[1-2]", "-N2", "true").returncode == 0
    until(lambda: "drain" in node(cluster, "n2"), tmp_path)
    until(lambda: "idle" in node(cluster, "n1"), tmp_path)
    (at / "fails-on-n2").unlink()
    calls = (at / "calls").read_text().splitlines()
    assert {line.split()[0] for line in calls if "--max-age 1s" in line} >= {"n1", "n2"}
    assert [line for line in calls if "--max-age 300s" in line], calls


SABOTAGE = Path(__file__).parents[1] / "fleet/group/sabotage"


@pytest.mark.torch
def test_the_rendered_group_of_sound_nodes_passes_also_with_a_cpu_quota_on_one(
    cluster: dict[str, str], tmp_path: Path, torch_python: Path
) -> None:
    resume(cluster, tmp_path)
    render(tmp_path, "group.sbatch", python=str(sabotaged(tmp_path, torch_python, "n2")))
    chosen = {"ENVCHECK_FLEET_GROUP_ONLY": "node-links,straggler"}  # enough to see them meet, and the quota
    quota = CPU / f"{BRIDGE}-n2/cpu.cfs_quota_us"
    if quota.exists():
        chosen["QUOTA_OF_RANKS"] = str(quota)
    try:
        ended, output = batch({**cluster, **chosen}, tmp_path, "group.sbatch")
    finally:
        if quota.exists():
            quota.write_text("-1")
    assert "ExitCode=0:0" in ended, output + ended
    found = {path.name: json.loads(path.read_text()) for path in (tmp_path / "reports").glob("*/*.json")}
    assert set(found) == {"group.json", *(f"{name}.json" for name in NODES)}, output
    assert {report["verdict"]["status"] for report in found.values()} == {"pass"}
    outcomes = {outcome["id"]: outcome for outcome in found["group.json"]["outcomes"]}
    assert outcomes["node-links"]["details"]["nodes"] == NODES
    assert "4 nodes came" in outcomes["group-formed"]["summary"]
    if quota.exists():
        assert "CPU quota" in outcomes["straggler"]["summary"], outcomes["straggler"]


def sabotaged(at: Path, torch_python: Path, only: str = "") -> Path:
    """Return a Python in which each node but the first does something wrong, or that one only."""
    (at / "python").write_text(
        f'#!/bin/sh\n[ "$SLURMD_NODENAME" != "{only or "$SLURMD_NODENAME"}" ] || export PYTHONPATH="{SABOTAGE}"\n'
        f'exec "{torch_python}" "$@"\n'
    )
    (at / "python").chmod(0o755)
    return at / "python"


def pairs(cluster: dict[str, str], at: Path, nodes: str, python: Path, *checks: str, **more: str) -> Any:
    """Return the verdict of `fleet pairs`, whose roll-call and groups have these checks alone."""
    only = {"ENVCHECK_RUN_ONLY": "open-files", "ENVCHECK_FLEET_GROUP_ONLY": ",".join(checks)}
    # What starts on a node is `envcheck` on PATH.
    path = {"PATH": f"{Path(sys.executable).parent}:{cluster['PATH']}"}
    given = ["--nodes", nodes, "--python", str(python), "--timeout", "60s", "--state", str(at / "state.json"), "--json"]
    environment = {**cluster, **only, **path, **SOURCE, **more}
    done = slurm(environment, *ENVCHECK, "fleet", "pairs", *given, timeout=280)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)["verdict"]


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_pairs_names_a_slow_port_and_a_node_that_sends_wrong_data(
    cluster: dict[str, str], tmp_path: Path, torch_python: Path
) -> None:
    resume(cluster, tmp_path)
    network("slow")
    try:
        slow = pairs(cluster, tmp_path, "n[1-3]", torch_python, "all-reduce-bandwidth")
    finally:
        network("sound")
    wrong = pairs(cluster, tmp_path, "n[1-3]", sabotaged(tmp_path, torch_python, "n3"), "node-links")
    told = (slow, "n2", "n[1,3]", "of what other groups reach"), (wrong, "n3", "n[1-2]", "messages arrived wrong")
    for verdict, who, good, why in told:
        [blame] = verdict["blame"]
        assert (blame["kind"], blame["who"], verdict["good"], why in blame["reason"]) == ("node", who, good, True)


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_pairs_names_the_node_whose_rank_dies_and_the_one_that_is_down(
    cluster: dict[str, str], tmp_path: Path, torch_python: Path
) -> None:
    resume(cluster, tmp_path)
    slurm(cluster, "scontrol", "update", "nodename=n3", "state=down", "reason=a fan")
    try:
        python = sabotaged(tmp_path, torch_python, "n4")
        # srun itself waits for a node that is down, each time until the test's time is over.
        verdict = pairs(cluster, tmp_path, "n[1-4]", python, "collectives", SLURM_IMMEDIATE="10")
    finally:
        slurm(cluster, "scontrol", "update", "nodename=n3", "state=resume")
    assert (verdict["exit_code"], verdict["blame"], verdict["good"]) == (3, [], "n[1-2]"), verdict
    why = {row["nodes"][0]: row["reason"] for row in verdict["undetermined"]}
    assert set(why) == {"n3", "n4"}
    assert "no report" in why["n3"]
    assert "collectives" in why["n4"]


@pytest.mark.torch
def test_each_culprit_is_named_a_slow_rank_one_that_sends_wrong_data_and_one_that_dies(
    cluster: dict[str, str], tmp_path: Path, torch_python: Path
) -> None:
    resume(cluster, tmp_path)
    checks = "all-reduce-bandwidth", "straggler", "node-links", "collectives"
    only = [word for check in checks for word in ("--only", check)]
    only += ["--python", str(sabotaged(tmp_path, torch_python)), "-o", f"{tmp_path}/reports/"]
    step = ["srun", "-N4", "--ntasks-per-node=1", "--wait=0", *ENVCHECK, "fleet", "group"]
    done = slurm({**cluster, **SOURCE}, *step, *only, timeout=280)
    assert done.returncode == 1, done.stdout + done.stderr
    found = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "reports").glob("*.json")}
    whole = {outcome["id"]: outcome for outcome in found["group"]["outcomes"]}
    # On CPUs, which others use too, a slow rank is named and is no fault.
    assert (whole["straggler"]["status"], whole["straggler"]["culprit"]) == ("warn", "rank 1 (cpu of n2)")
    assert (whole["node-links"]["status"], whole["node-links"]["culprit"]) == ("fail", "node n3")
    assert (whole["collectives"]["status"], whole["collectives"]["culprit"]) == ("error", "rank 3 (n4)")
    assert "SIGKILL" in whole["collectives"]["summary"]
    statuses = {name: found[name]["verdict"]["status"] for name in NODES}
    assert statuses == {"n1": "error", "n2": "error", "n3": "fail", "n4": "error"}
    fleet = json.loads(slurm(cluster, *ENVCHECK, "fleet", "report", f"{tmp_path}/reports", "--json").stdout)
    assert (fleet["verdict"]["good"], fleet["nodes"]["fail"]) == ("n[1-2]", ["n3"]), fleet
    assert "SIGKILL" in fleet["reasons"]["n4"]
