"""A rank's place is read off whichever launcher there is; a contradiction is no place at all."""

from envcheck.runner.launcher import Place, complaints, place
from tests.tables import each

LEFT_BEHIND = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}
TORCHRUN = {**LEFT_BEHIND, "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none"}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "8",
    "SLURM_NTASKS": "9",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_NNODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),1",
    "SLURMD_NODENAME": "n3",
}


@each(
    ("environ", "expected"),
    [
        ({}, Place()),
        (TORCHRUN, Place(launcher="torchrun", rank=9, world=16, local_rank=1, local_world=8, node_rank=8, nodes=2)),
        (SLURM, Place(launcher="slurm", rank=8, world=9, local_rank=0, local_world=1, node="n3", node_rank=2, nodes=3)),
        (
            TORCHRUN | {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"} | SLURM,
            Place(launcher="torchrun", rank=9, world=16, local_rank=1, local_world=8, node="n3", node_rank=1, nodes=3),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"} | SLURM,  # one node of three
            Place(launcher="torchrun", rank=1, world=2, local_rank=1, local_world=2, node="n3", node_rank=2, nodes=3),
        ),
        (
            {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "NODE_NAME": "k1"},
            Place(launcher="kubernetes", rank=1, world=2, node="k1", node_rank=1, nodes=2),
        ),
    ],
)
def test_each_launcher_is_understood(environ: dict[str, str], expected: Place) -> None:
    assert place(environ) == expected


@each(
    ("environ", "words"),
    [
        (SLURM | {"SLURM_NTASKS": "abc"}, ["SLURM_NTASKS='abc' is not a number"]),
        (SLURM | {"SLURM_NTASKS": "९"}, ["SLURM_NTASKS='९' is not a number"]),
        (SLURM | {"SLURM_PROCID": "9"}, ["slurm contradict each other: rank 9 of 9"]),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "all"}, ["SLURM_STEP_TASKS_PER_NODE='all'"]),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "4(x9999999999)"}, ["SLURM_STEP_TASKS_PER_NODE='4(x"]),
        (SLURM | {"SLURM_NNODES": "9" * 5000}, ["SLURM_NNODES='9999"]),
        (TORCHRUN | {"WORLD_SIZE": "-1"}, ["WORLD_SIZE='-1' is not a number"]),
        (TORCHRUN | {"RANK": "-1"}, ["RANK='-1' is not a number"]),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "17"}, ["local rank 1 of 17"]),
        ({"RANK": "0"}, []),
        (TORCHRUN | {"WORLD_SIZE": "0"}, ["torchrun contradict each other: rank 9 of 0"]),
        (TORCHRUN | {"RANK": "16"}, ["torchrun contradict each other: rank 16 of 16"]),
        (TORCHRUN | {"LOCAL_RANK": "8"}, ["local rank 8 of 8"]),
        (LEFT_BEHIND, ["LOCAL_RANK=1 stands beside no variable of a launcher"]),
        ({"RANK": "9", "WORLD_SIZE": "2"}, ["torchrun contradict each other: rank 9 of 2"]),
        ({"RANK": "one", "WORLD_SIZE": "two"}, ["RANK='one'", "WORLD_SIZE='two'"]),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1.5"}, ["OMPI_COMM_WORLD_SIZE='1.5'"]),
        ({"PET_NODE_RANK": "3", "PET_NNODES": "2"}, ["kubernetes contradict each other: rank 3 of 2"]),
    ],
)
def test_what_no_launcher_would_say_is_named_and_a_group_of_one(environ: dict[str, str], words: list[str]) -> None:
    texts = complaints(environ)
    assert len(texts) == len(words)
    assert all(word in complaint for word, complaint in zip(words, texts, strict=True)), texts
    assert place(environ).launcher == "slurm" or place(environ).world == 1, "a group of one"


@each("mark", ["CROSS_RANK", "LOCAL_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"])
def test_a_rank_of_another_launcher_is_not_left_behind(mark: str) -> None:
    environ = LEFT_BEHIND | {mark: "2"}
    assert (place(environ).rank, complaints(environ)) == (9, [])


def test_a_batch_script_is_no_rank_but_knows_its_node() -> None:
    batch = {"SLURM_NTASKS": "9", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NNODES": "3", "SLURM_NODEID": "0"}
    assert place(batch | {"SLURMD_NODENAME": "n1"}) == Place(node="n1", nodes=3)


def test_an_indexed_job_counts_no_pods_and_has_several() -> None:
    assert place({"JOB_COMPLETION_INDEX": "1"}) == Place(node_rank=1, nodes=0)
