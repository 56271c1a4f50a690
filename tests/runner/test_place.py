"""A rank's place is read off whichever launcher there is; a contradiction is no place at all."""

from __future__ import annotations

import pytest

from envcheck.runner.place import Place, place

TORCHRUN = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "8",
    "SLURM_NTASKS": "9",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),1",
    "SLURMD_NODENAME": "n3",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Place()),
        (TORCHRUN, Place(launcher="torchrun", rank=9, world=16, local_rank=1, local_world=8)),
        (SLURM, Place(launcher="slurm", rank=8, world=9, local_rank=0, local_world=1, node="n3")),
        (TORCHRUN | SLURM, Place(launcher="torchrun", rank=9, world=16, local_rank=1, local_world=8)),
        (
            {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "NODE_NAME": "k1"},
            Place(launcher="kubernetes", rank=1, world=2, node="k1"),
        ),
    ],
)
def test_each_launcher_is_understood(environ: dict[str, str], expected: Place) -> None:
    assert place(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [
        TORCHRUN | {"RANK": "16"},
        TORCHRUN | {"RANK": "-1"},
        TORCHRUN | {"LOCAL_RANK": "8"},
        TORCHRUN | {"LOCAL_WORLD_SIZE": "17"},
        {"RANK": "0"},
        {k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"},
        {"JOB_COMPLETION_INDEX": "1"},
    ],
)
def test_what_no_launcher_would_say_is_a_group_of_one(environ: dict[str, str]) -> None:
    assert place(environ) == Place()


def test_slurm_without_a_count_for_its_node_knows_at_least_itself() -> None:
    found = place(SLURM | {"SLURM_STEP_TASKS_PER_NODE": "all", "SLURM_LOCALID": "3"})
    assert (found.local_rank, found.local_world) == (3, 4)
