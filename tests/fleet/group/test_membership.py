"""Which node this is, and where the group meets, from environments as launchers set them."""

import pytest

from envcheck.errors import ConfigError
from envcheck.fleet.group.membership import DEFAULT_PORT, membership
from tests.tables import each, one_line

# As a task of `srun -N4 --ntasks-per-node=1` in a job of four nodes has them (Slurm 22.05.8).
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    **dict.fromkeys(["SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_NNODES"], "4"),
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "n[1-4]",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURMD_NODENAME": "n3",
}
TORCHRUN = {
    "RANK": "8",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu-1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "job-9",
}
KUBERNETES = {
    "JOB_COMPLETION_INDEX": "3",
    "NNODES": "4",
    "NODE_NAME": "pool-a-3",
    "MASTER_PORT": "29500",
    "MASTER_ADDR": "envcheck-group-node-0-0.envcheck-group",
}
MPI = {f"OMPI_COMM_WORLD_{name}": value for name, value in {"RANK": "1", "SIZE": "4", "LOCAL_RANK": "1"}.items()}


def test_a_step_of_slurm() -> None:
    there = membership(SLURM)
    assert (there.node, there.nodes, there.name, there.names) == (2, 4, "n3", ("n1", "n2", "n3", "n4"))
    assert (there.address, there.run) == ("n1", "7.2")
    assert there.port in range(20000, 30000)
    assert there.port != membership({**SLURM, "SLURM_STEP_ID": "3"}).port


def test_a_step_of_two_nodes_is_not_the_job_of_four() -> None:
    step = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}
    there = membership({**SLURM, **step, "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "n[2,4]"})
    assert (there.node, there.nodes, there.address) == (1, 2, "n2")


def test_torchrun_and_an_indexed_job() -> None:
    there = membership(TORCHRUN)
    assert (there.node, there.nodes, there.processes) == (1, 2, 8)
    assert (there.address, there.port, there.run) == ("gpu-1", 29401, "job-9"), "torchrun's own store has its port"
    assert membership(TORCHRUN, "mine").run == "mine"
    there = membership(KUBERNETES)
    assert (there.node, there.nodes, there.name, there.port) == (3, 4, "pool-a-3", 29500)
    assert there.address == "envcheck-group-node-0-0.envcheck-group"
    assert membership({**KUBERNETES, "MASTER_PORT": ""}).port == DEFAULT_PORT


@each(
    "environ, words",
    [
        ({}, "no group of several nodes"),
        ({**TORCHRUN, "RANK": "16"}, "contradict each other"),
        ({**TORCHRUN, "RANK": "first"}, "RANK='first'"),
        ({**KUBERNETES, "JOB_COMPLETION_INDEX": "4"}, "contradict"),
        ({**KUBERNETES, "NODE_NAME": "../n1"}, "'../n1' is not a node's name"),
        ({**KUBERNETES, "NNODES": "9" * 9}, "more than 131,072 nodes"),
        ({**KUBERNETES, "MASTER_ADDR": ""}, "no variable names the first node"),
        ({**KUBERNETES, "MASTER_ADDR": "a b"}, "'a b' is not a host name"),
        ({**KUBERNETES, "MASTER_PORT": "65536"}, "MASTER_PORT='65536'"),
        ({**KUBERNETES, "MASTER_PORT": "http"}, "MASTER_PORT='http'"),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "a"}, "one process a node"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=one_line(words)):
        membership(environ)
