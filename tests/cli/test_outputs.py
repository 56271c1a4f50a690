"""Several nodes, several ranks and several runs write in one directory, and no report is lost."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import envcheck
from envcheck.cli.report_output import Node, Output, OutputType, left_to_the_first, node_of
from envcheck.errors import ConfigError
from envcheck.runner.launcher import Place, place
from tests.builders import site_check
from tests.waiting import eventually

Start = Callable[..., "subprocess.Popen[str]"]


def slurm(node: int, nodes: int = 4) -> dict[str, str]:
    return {
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(node),
        "SLURM_NTASKS": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": "0",
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{nodes})",
        "SLURMD_NODENAME": f"n{node + 1}",
    }


def torchrun(rank: int, local_world: int, nodes: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(nodes * local_world),
        "LOCAL_RANK": str(rank % local_world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_RANK": str(rank // local_world),
        "GROUP_WORLD_SIZE": str(nodes),
        "TORCHELASTIC_RUN_ID": "none",
    }


def mpi(rank: int, local_world: int, nodes: int, *, local: int | None = None, world: int = 0) -> dict[str, str]:
    local = rank % local_world if local is None else local
    names = {"RANK": rank, "SIZE": world or nodes * local_world, "LOCAL_RANK": local, "LOCAL_SIZE": local_world}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()}


def array(task: int, node: int) -> dict[str, str]:
    numbers = {"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_ID": str(task)}
    return slurm(node, 2) | numbers | {"SLURMD_NODENAME": f"n{2 * task + node}"}


LAUNCHED = {
    "srun": [slurm(node) for node in range(4)],
    "srun, its step's number not handed into a container": [
        {k: v for k, v in slurm(node).items() if k != "SLURM_STEP_ID"} for node in range(4)
    ],
    "one srun a node": [
        slurm(0, 1) | {"SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_ID": str(n), "SLURMD_NODENAME": f"n{n}"}
        for n in range(2)
    ],
    "an array of jobs": [
        {"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_ID": str(n), "SLURMD_NODENAME": f"n{n}"} for n in range(2)
    ],
    "torchrun": [torchrun(rank, 1, 3) for rank in range(3)],
    "torchrun, several ranks a node": [torchrun(rank, 2, 2) for rank in range(4)],
    "mpirun": [mpi(rank, 2, 2) for rank in range(4)],
    "MPICH": [{"PMI_RANK": str(n), "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"} for n in range(2)],
    "an indexed Job": [{"JOB_COMPLETION_INDEX": str(n), "NODE_NAME": "k1"} for n in range(3)],
    "a pod a node": [{"RANK": str(n), "WORLD_SIZE": "2"} for n in range(2)],
    "mpirun, ranks in turn": [mpi(rank, 2, 2, local=rank // 2) for rank in range(4)],
    "mpirun, nodes of 4, 2, 2 and 4 ranks": [
        mpi(first + local, here, 4, local=local, world=12)
        for first, here in ((0, 4), (4, 2), (6, 2), (8, 4))
        for local in range(here)
    ],
    "an array of jobs of two nodes": [array(task, node) for task in range(2) for node in range(2)],
    "a torchrun for itself on each node of srun": [
        slurm(node, 2) | torchrun(rank, 2, 1) for node in range(2) for rank in range(2)
    ],
    "a torchrun for itself in each job of an array": [
        {"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_ID": str(n), "SLURMD_NODENAME": f"n{n}"} | torchrun(0, 1, 1)
        for n in range(2)
    ],
    "a torchrun for itself in each pod": [{"JOB_COMPLETION_INDEX": str(n)} | torchrun(0, 1, 1) for n in range(2)],
    "an mpirun for itself in each pod": [{"JOB_COMPLETION_INDEX": str(n)} | mpi(0, 1, 1) for n in range(2)],
    "a PyTorchJob": [{"PET_NODE_RANK": str(n), "PET_NNODES": "2"} for n in range(2)],
    "an elastic PyTorchJob": [{"PET_NODE_RANK": str(n), "PET_NNODES": "1:2"} for n in range(2)],
    "a torchrun for itself in each pod of a PyTorchJob": [
        {"PET_NODE_RANK": str(n), "PET_NNODES": "2"} | torchrun(0, 1, 1) for n in range(2)
    ],
    "Ray, without numbers of nodes": [
        {k: v for k, v in torchrun(rank, 2, 2).items() if not k.startswith("GROUP")} for rank in range(4)
    ],
    "ranks that Slurm's script numbered itself": [slurm(n) | {"RANK": str(n), "WORLD_SIZE": "4"} for n in range(4)],
}


@pytest.mark.parametrize("nameless", [False, True])
@pytest.mark.parametrize("launched", LAUNCHED.values(), ids=LAUNCHED.keys())
def test_each_node_writes_one_file_of_its_own(launched: list[dict[str, str]], *, nameless: bool) -> None:
    places = [place(environ) for environ in launched]
    assert all(where.several_nodes for where in places)
    writers = [where for where in places if left_to_the_first(where, {}) is None]
    assert len(writers) == len({where.node_rank for where in writers})
    names = [node_of(where, nameless=nameless, host="localhost").name for where in writers]
    assert len(set(names)) == len(names), names
    for output in (Output(Path("d"), directory=True), Output(Path("r.json"))):
        assert len({output.of(Node(name, several=True), ".json") for name in names}) == len(names)


def test_files_are_named_by_node() -> None:
    slurm_node = node_of(place(slurm(2)), nameless=False)
    assert Output(Path("envcheck-report.json")).of(slurm_node, ".json") == Path("envcheck-report-n3.json")
    assert Output(Path("out/r.json")).of(slurm_node, ".json") == Path("out/r-n3.json")
    assert Output(Path("out"), directory=True).of(slurm_node, ".html") == Path("out/n3.html")
    assert Output(Path("/dev/stdout")).of(slurm_node, ".json") == Path("/dev/stdout")
    assert node_of(place(slurm(2)), nameless=True).name == "node-2"
    assert node_of(Place(), nameless=False, host="desk").name == "desk"
    assert node_of(Place(launcher="slurm", node="../n1", nodes=2, world=2), nameless=False).name == "_n1-0"


@pytest.mark.parametrize(
    ("gpus", "refused"),
    [
        ({"SLURM_GPUS_PER_TASK": "1"}, True),
        ({"SLURM_GPUS_ON_NODE": "2", "SLURM_STEP_GPUS": "0"}, True),  # as Slurm 22.05 has it under --gpus-per-task=1
        ({"SLURM_GPUS_ON_NODE": "2", "SLURM_STEP_GPUS": "0,1"}, False),
        ({}, False),
    ],
)
def test_tasks_that_each_have_gpus_of_their_own_are_refused(gpus: dict[str, str], *, refused: bool) -> None:
    environ = slurm(0) | {"SLURM_NTASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "2(x4)"} | gpus
    expected = pytest.raises(ConfigError, match="each sees only its own GPUs") if refused else nullcontext()
    with expected:
        left_to_the_first(place(environ), environ)
    assert left_to_the_first(place(slurm(0)), slurm(0) | gpus) is None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "cwd").mkdir()
    started: list[subprocess.Popen[str]] = []

    def begin(*argv: str, seconds: float = 0, **environ: str) -> subprocess.Popen[str]:
        measure = f"import time; time.sleep({seconds}); return {{}}"
        site_check(tmp_path / "site/env/mine.py", "passed('fine')", measure, options="ranks=1, timeout=60")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "envcheck", "run", "--python", sys.executable, "--checks"),
                *(str(tmp_path / "site"), "--only", "mine", *argv),
            ],
            cwd=tmp_path / "cwd",
            env={**kept, "PYTHONPATH": str(Path(envcheck.__file__).parents[1]), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_four_nodes_in_one_directory_leave_four_reports_and_four_pages(start: Start, tmp_path: Path) -> None:
    nodes = [start("--html", "page.html", "--summary", "s.md", **slurm(node)) for node in range(4)]
    for node in nodes:
        out, err = node.communicate()
        assert node.returncode == 0, out + err
    left = {path.name for path in (tmp_path / "cwd").iterdir()}
    names = [f"n{node}" for node in (1, 2, 3, 4)]
    assert left == {
        f"{stem}-{name}{suffix}"
        for name in names
        for stem, suffix in (("envcheck-report", ".json"), ("page", ".html"), ("s", ".md"))
    }
    for name in names:
        report = json.loads((tmp_path / f"cwd/envcheck-report-{name}.json").read_text())
        assert (report["host"]["place"]["node"], report["host"]["place"]["nodes"]) == (name, 4)


def test_the_other_ranks_of_a_node_leave_it_to_the_first(start: Start, tmp_path: Path) -> None:
    done = start(**torchrun(1, 2, 1))
    out, err = done.communicate()
    assert (done.returncode, out) == (0, "")
    assert err == "envcheck: rank 1 checks nothing: rank 0 of the 2 on this node checks it and reports\n"
    assert not any((tmp_path / "cwd").iterdir())


def test_a_dash_prints_the_report_and_is_no_file_of_that_name(start: Start, tmp_path: Path) -> None:
    def ended(*words: str) -> tuple[int, str, str]:
        process = start(*words)
        out, err = process.communicate()
        return process.returncode, out, err

    code, out, err = ended("-o", "-")
    assert code == 0, err
    assert json.loads(out)["verdict"]["exit_code"] == 0
    for wrong, why in (("--html -", "use --json to print the report"), ("-o - --resume", "exclude each other")):
        code, _, err = ended(*wrong.split())
        assert (code, why in err) == (ConfigError.exit_code, True), err
    assert not any((tmp_path / "cwd").iterdir())
    assert "report: -\n" in ended("-o", "./-")[1]
    assert json.loads((tmp_path / "cwd/-").read_text())["verdict"]["exit_code"] == 0
    written = [OutputType.written(OutputType(printed=True).convert(v, None, None)) for v in ("-", "./-", "r.json")]
    assert written == ["-", "./-", "r.json"]


def test_a_pipe_takes_one_report(start: Start, tmp_path: Path) -> None:
    pipes = [tmp_path / "whole", tmp_path / "page"]
    for pipe in pipes:
        os.mkfifo(pipe)
    # Who reads a pipe that nobody opens waits for ever, and a program can be killed.
    readers = [subprocess.Popen(["sh", "-c", 'exec cat "$1" > "$1.out"', "sh", pipe]) for pipe in pipes]
    try:
        running = start("-o", str(pipes[0]), "--html", str(pipes[1]))
        out, err = running.communicate(timeout=120)
        assert running.returncode == 0, out + err
        assert [reader.wait(60) for reader in readers] == [0, 0]
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
    whole, page = (pipe.with_suffix(".out").read_text() for pipe in pipes)
    assert (json.loads(whole)["verdict"]["exit_code"], page[:9]) == (0, "<!DOCTYPE")


def test_sigterm_ends_a_run_as_an_interrupt_does(start: Start, tmp_path: Path) -> None:
    running = start("--html", "page.html", seconds=50)
    assert eventually((tmp_path / "cwd/envcheck-report.json").exists, expected=True, seconds=40)
    running.terminate()
    out, err = running.communicate()
    assert running.returncode == 128 + signal.SIGTERM, out + err
    assert "run the same command with --resume to continue" in err
    assert "cut short" in out
    assert (tmp_path / "cwd/page.html").exists()
