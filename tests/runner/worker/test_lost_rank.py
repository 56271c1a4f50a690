"""A rank that is stopped, hangs, dies or never comes is named, and not one of those that waited for it."""

from pathlib import Path
from typing import Any

import pytest

from envcheck.checks.support import progress_file
from envcheck.runner.local_python import ChosenPython, LocalPython
from envcheck.runner.worker import group_ending
from envcheck.runner.worker.group_ending import ObservedRank
from tests.runner.conftest import AddCheck, RunSite
from tests.tables import each

JOINED, LOADED, STARTED, LEFT = progress_file.JOINED, progress_file.LOADED, progress_file.STARTED, progress_file.LEFT
# Three ranks of a real torch that reduce again and again; one of them does `{fault}` after its fifth.
GROUP = """
import torch
from envcheck.checks.support import process_group as _group
{before}
with _group.group(rank) as dist:
    for step in range(40):
        if rank.rank == 1 and step == 5:
            {fault}
        dist.all_reduce(torch.ones(1000))
        time.sleep(0.05)
return {{"rank": rank.rank}}
"""
STOP = "os.kill(os.getpid(), signal.SIGSTOP)"
FAULTS = {
    "is stopped": ("", STOP, 60, ["is stopped (process state T"]),
    "sleeps for ever": ("", "time.sleep(600)", 12, ["has begun 5 collectives", "in number 6"]),
    "sleeps longer than gloo waits": (
        "_group.JOIN_SECONDS = 4",
        "time.sleep(600)",
        60,
        ["has begun 5 collectives", "waited for it: RuntimeError"],
    ),
    "is killed": ("", "os.kill(os.getpid(), signal.SIGKILL)", 60, ["died of SIGKILL"]),
    "leaves early": ("", "os._exit(0)", 60, ["exited with code 0 and no result"]),
    "never joins": ("if rank.rank == 1: time.sleep(600)", "pass", 12, ["has not joined the group"]),
    "is stopped before it joins": (f"if rank.rank == 1: {STOP}", "pass", 60, ["is stopped"]),
    "raises": ("", "raise ValueError('a bug of its own')", 60, ["ValueError: a bug of its own"]),
}


@pytest.mark.torch
@pytest.mark.parametrize("fault", FAULTS)
def test_the_rank_that_the_others_waited_for_is_named(
    add: AddCheck, run_site: RunSite, torch_python: Path, fault: str
) -> None:
    before, after, limit, words = FAULTS[fault]
    add("group", GROUP.format(before=before, fault=after), options=f"ranks=3, timeout={limit}")
    outcome = run_site(target=LocalPython(ChosenPython(torch_python, "--python"))).outcomes["group"]
    assert outcome.status == "error"
    assert outcome.summary.startswith("rank 1 "), outcome.summary
    assert all(word in outcome.summary for word in words), outcome.summary
    # A lost rank ends its group long before its limit.
    assert outcome.seconds < 40


@pytest.mark.torch
def test_a_rank_that_hangs_in_an_import_is_named(add: AddCheck, run_site: RunSite, torch_python: Path) -> None:
    path = add("group", GROUP.format(before="", fault="pass"), options="ranks=2, timeout=12")
    path.write_text(f"{path.read_text()}\nif os.environ.get('RANK') == '1': time.sleep(600)\n")
    outcome = run_site(target=LocalPython(ChosenPython(torch_python, "--python"))).outcomes["group"]
    assert outcome.summary.startswith("rank 1 still running after 12 s (ranks 0, 1): it still imports its check")


@each(
    ("running", "others", "rank", "word"),
    [
        ([ObservedRank(0, "S", JOINED, 5), ObservedRank(1, "T", JOINED, 5)], [], 1, "state T"),
        ([ObservedRank(0, "S", JOINED, 5), ObservedRank(2, "D", JOINED, 5)], [], 2, "state D"),
        ([ObservedRank(0, "S", JOINED, 6), ObservedRank(1, "R", JOINED, 5)], [], 1, "in number 6"),
        ([ObservedRank(1, "S", JOINED, 5)], [(JOINED, 6)], 1, "in number 6"),
        ([ObservedRank(0, "S", JOINED, 5), ObservedRank(1, "S", LOADED)], [], 1, "has not joined"),
        ([ObservedRank(0, "S", progress_file.JOINING), ObservedRank(1, "S", LOADED)], [], 1, "has not joined"),
        ([ObservedRank(0, "S", LOADED), ObservedRank(1, "S", STARTED)], [], 1, "imports its check"),
        ([ObservedRank(0, "S", JOINED), ObservedRank(1, "S", -1)], [], 1, "has not started"),
        ([ObservedRank(1, "S", JOINED, 9)], [(LEFT, 0)], 1, "has not left"),
        (
            [ObservedRank(0, "S", JOINED), ObservedRank(1, "S", STARTED), ObservedRank(2, "S", STARTED)],
            [],
            1,
            "so is rank 2",
        ),
    ],
)
def test_who_is_behind_is_named(running: list[ObservedRank], others: list[Any], rank: int, word: str) -> None:
    blamed = group_ending.culprit(running, others)
    assert blamed is not None
    assert blamed["rank"] == rank
    assert word in blamed["why"]


def dump(frame: str) -> str:
    return f'Current thread 0x00007f (most recent call first):\n  File "{frame}\n  File "check.py", line 1 in measure\n'


def test_of_ranks_as_far_as_each_other_the_one_that_does_not_wait_is_named() -> None:
    waits = dump('/x/torch/distributed/distributed_c10d.py", line 2 in recv')
    sleeps = dump('check.py", line 7 in sleeps')
    both = [ObservedRank(0, "S", JOINED, 5, waits), ObservedRank(1, "S", JOINED, 5, sleeps)]
    blamed = group_ending.culprit(both, [])
    assert blamed is not None
    assert blamed["rank"] == 1
    assert (
        group_ending.culprit([ObservedRank(0, "S", JOINED, 5, waits), ObservedRank(1, "S", JOINED, 5, waits)], [])
        is None
    )
    assert (
        group_ending.culprit([ObservedRank(0, "S", JOINED, 5, sleeps), ObservedRank(1, "S", JOINED, 5, sleeps)], [])
        is None
    )
    assert group_ending.culprit([], [(LEFT, 0)]) is None


def lost(text: str, running: list[ObservedRank]) -> dict[str, Any]:
    """Return the error of a group whose rank 0 raised `text`, having begun 6 collectives."""
    raised = ObservedRank(0, "", JOINED, 6, status=1)
    error = group_ending.error([raised], running, {0: {"error": text}, 1: {}}, "9 s", "SIGTERM")
    assert error is not None
    return error


def test_only_an_error_of_somebody_who_waited_is_blamed_on_another() -> None:
    behind = [ObservedRank(1, "S", JOINED, 5)]
    assert lost("RuntimeError: Timed out waiting 60000ms for recv operation", behind)["rank"] == 1
    assert lost("RuntimeError: Connection closed by peer [127.0.0.1]:4711", behind)["rank"] == 1
    assert lost("ValueError: a bug of its own", behind)["rank"] == 0
    assert lost("RuntimeError: Timed out waiting 60000ms for recv operation", [])["rank"] == 0
