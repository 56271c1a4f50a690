"""Broken peer-to-peer: seen once, left out after, and never taken for the fault of whoever ran without it."""

import json
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import (
    ERROR,
    FAIL,
    PASS,
    WARN,
    Limit,
    Outcome,
    failed,
    passed,
    skipped,
    too_slow,
    undecided,
    warned,
)
from envcheck.reports.model import judge_again
from envcheck.runner import judging
from envcheck.runner.execute import Run
from envcheck.runner.worker import fork_server, group_ending
from envcheck.runner.worker.fork_server import _Nursery
from tests.builders import after_rules, check_module
from tests.runner.conftest import AddCheck, RunSite
from tests.tables import each

PROBE = {"probe": True}
HANG = {"rank": 0, "text": "still running after 9 s (ranks 0, 1); ended by SIGKILL", "hung": True}
TEXT = str(HANG["text"])
SPEED = Limit(300, "GB/s", "somebody who measured it")
RAN_WITH = {"ran_with": ["NCCL_P2P_DISABLE=1"]}


def done(**ending: Any) -> dict[str, Any]:
    return {"ranks": [{}, {}], "error": None, "seconds": 1.0, "survivors": [], "kept": {}, **ending}


@each(
    ("ending", "off"),
    [
        ({}, False),
        ({"ranks": [{"broken": False}]}, False),
        ({"ranks": [{"broken": True}]}, True),
        ({"error": {**HANG, "doing": "GPU 0 -> GPU 1"}}, True),
        ({"error": {"rank": 0, "text": "died of SIGSEGV", "doing": "GPU 0 -> GPU 1"}}, True),
        # Lost before it copied anything: of peer-to-peer it says nothing.
        ({"error": {"rank": 0, "text": "RuntimeError: CUDA error: out of memory"}}, False),
    ],
)
def test_only_what_shows_peer_to_peer_broken_has_the_groups_after_it_go_without(
    ending: dict[str, Any], *, off: bool
) -> None:
    assert fork_server.later_environment(PROBE, done(**ending), {"A": "b"}) == {
        "A": "b",
        **(fork_server.P2P_OFF if off else {}),
    }
    assert fork_server.later_environment({"probe": False}, done(**ending), {}) == {}


@each(
    ("ending", "choices", "repeated"),
    [
        ({"error": HANG}, {}, True),
        ({"error": HANG}, {"gpu": False}, False),
        ({"error": HANG}, {"world": 1}, False),
        ({"error": HANG}, {"environment": {"NCCL_P2P_DISABLE": "1"}}, False),
        ({"error": {"rank": 1, "text": "died of SIGKILL"}}, {}, False),
        ({}, {}, False),
    ],
)
def test_a_group_of_gpus_that_hung_is_tried_again_where_that_can_help(
    ending: dict[str, Any], choices: dict[str, Any], *, repeated: bool
) -> None:
    data: dict[str, Any] = {"environment": {}, "gpu": True, "world": 2, **choices}
    assert fork_server.worth_another_try(done(**ending), **data) is repeated


BODY = """
with open(rank.scratch + "/rank0.doing", "w") as stream:
    stream.write("a first transfer")
if os.environ.get("NCCL_P2P_DISABLE") != "1":
    time.sleep(60)
return {"rank": rank.rank, "device": rank.device}
"""


@pytest.fixture
def nursery(add: AddCheck, tmp_path: Path) -> _Nursery:
    """Return the worker's own runner of groups, on a machine of two GPUs, with a check that hangs over peer-to-peer."""
    add("hangs", BODY, options="ranks=0, timeout=1")
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "site").symlink_to(tmp_path / "site" / "env")
    return _Nursery(
        tmp_path / "worker", {"ours": True, "nproc": 2, "budget": None, "environment": {}, "run": "1", "level": "full"}
    )


def test_a_group_that_hangs_is_ended_and_run_once_more_without_peer_to_peer(nursery: _Nursery, tmp_path: Path) -> None:
    check = {"id": "hangs", "source": "file:site/hangs.py", "ranks": 0, "gpus": 0, "timeout": 1.0, "probe": False}
    for identity in ("hangs", "hangs-too"):
        nursery.check({**check, "id": identity}, {"device_count": 2, "start": "fork"})
    events = [json.loads(line) for line in (tmp_path / "worker" / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["started", "started", "done", "started", "done"]
    first, second = (event for event in events if event["event"] == "done")
    assert first["ranks"] == [{"rank": 0, "device": "cuda:0"}, {"rank": 1, "device": "cuda:1"}]
    assert first["kept"].pop("hung").startswith("still running after 1 s")
    # The one after it is not left to hang at all.
    assert first["kept"] == second["kept"] == RAN_WITH


# What ranks print before NCCL's watchdog aborts them, by torch: 1.13 to 2.2, 2.4 and 2.5, from 2.6 on, the heartbeat's.
WATCHDOG = {
    "2.1": "[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60047 milliseconds before timing out.",
    "2.4": "[rank1]:[E321 02:07:08 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=15, OpType=_ALLGATHER_BASE, Timeout(ms)=60000) ran for 60060 milliseconds before timing out.",
    "2.6": "[rank1]:[E101 ProcessGroupNCCL.cpp:684] [PG ID 0 PG GUID 0(default_pg) Rank 1] Timeout at NCCL work: 10, "
    "last enqueued NCCL work: 12, last completed NCCL work: 9.",
    "heartbeat": "[rank1]:[F101 ProcessGroupNCCL.cpp:1497] [PG ID 0 PG GUID 0 Rank 1] ProcessGroupNCCL's watchdog got "
    "stuck for 480 seconds without making progress in monitoring enqueued collectives.",
}


@each("version", WATCHDOG)
def test_what_the_watchdog_of_nccl_says_is_a_hang(version: str) -> None:
    said = WATCHDOG[version]
    ended = group_ending.ObservedRank(1, log=said, status=-6)
    error = group_ending.error([ended], [], {1: {}}, "1 s", "")
    assert error is not None
    assert (error["hung"], error["text"].startswith("died of SIGABRT: NCCL's watchdog ended it")) == (True, True)
    assert group_ending.watchdog("Process group watchdog thread terminated with exception: CUDA error") is None


def test_a_probe_that_is_lost_while_it_copies_fails_and_names_the_pair() -> None:
    error = {"rank": 0, "text": "died of SIGSEGV", "doing": "GPU 0 (GPU-a) -> GPU 1 (GPU-b)"}
    outcome = judging.lost_rank(check_module(probe=True), error, {})
    assert outcome.status == FAIL
    assert outcome.summary == "P2P broken: GPU 0 (GPU-a) -> GPU 1 (GPU-b): the process died of SIGSEGV"
    assert outcome.culprit == "GPU 0 (GPU-a) -> GPU 1 (GPU-b)"
    assert outcome.remedy
    silent = judging.lost_rank(check_module(probe=True), {"rank": 0, "text": "died of SIGSEGV"}, {})
    assert (silent.status, silent.summary) == (ERROR, "rank 0 died of SIGSEGV")
    other = judging.lost_rank(check_module(), error, {})
    assert (other.status, other.summary) == (ERROR, f"{silent.summary}, while it was at: {error['doing']}")


WRONG = failed("two elements differ", fix="look at the links", value=2, code="data.wrong")
SLOW = too_slow("slow", fix="look at the links", value=9, unit="GB/s", limit=SPEED, code="speed.slow")
OWN = too_slow("slow", fix="look at this GPU", value=9, unit="TFLOP/s", limit=SPEED, code="speed.slow", device="GPU-1")
LOW = warned("low", fix="look at the links", value=290, unit="GB/s", limit=SPEED, code="speed.low")
FINE = passed("fine", value=400, unit="GB/s", limit=SPEED)


@each(
    ("outcome", "options", "status"),
    [
        (SLOW, {"performance": True}, ERROR),
        (OWN, {"performance": True}, FAIL),
        (LOW, {"performance": True}, WARN),
        (FINE, {"performance": True}, PASS),
        (WRONG, {"performance": True}, FAIL),
        (WRONG, {}, FAIL),
        (LOW, {}, WARN),
    ],
)
def test_what_was_measured_without_peer_to_peer_says_so_and_is_not_blamed_for_its_pace(
    outcome: Outcome, options: dict[str, Any], status: str
) -> None:
    result = after_rules(outcome, check_module(**options), RAN_WITH)
    assert result.status == status
    assert "NCCL_P2P_DISABLE=1" in result.summary
    assert outcome.summary in result.summary
    assert after_rules(outcome, check_module(**options), {}) == outcome
    alone = skipped("one rank", code="rank.not-enough")
    assert after_rules(alone, check_module(**options), RAN_WITH) == alone


LOST = undecided("rank 0 died of SIGSEGV", fix="see the log", code="process.lost", rank=0)


@each(("outcome", "status"), [(FINE, FAIL), (LOW, FAIL), (SLOW, FAIL), (LOST, ERROR)])
def test_a_group_that_hung_and_came_through_without_peer_to_peer_has_not_passed(outcome: Outcome, status: str) -> None:
    result = after_rules(outcome, check_module(performance=True), {**RAN_WITH, "hung": HANG["text"]})
    assert result.status == status
    assert TEXT in result.summary
    assert outcome.summary in result.summary
    assert result.remedy


HANGS_AT_PEERS = "open('rank0.doing', 'w').write('GPU 0 -> GPU 1')\ntime.sleep(60)"


def test_a_probe_that_hangs_fails_the_run_and_those_after_it_say_what_they_ran_with(
    add: AddCheck, run_site: RunSite
) -> None:
    add("z_probe", HANGS_AT_PEERS, options="timeout=1, probe=True")
    add("a_group", "return {'p2p': os.environ.get('NCCL_P2P_DISABLE')}")
    run = run_site()
    probe, group = (run.outcomes[i] for i in ("z-probe", "a-group"))
    assert (probe.status, run.verdict.exit_code) == ("fail", 1)
    assert probe.summary.startswith("P2P broken: GPU 0 -> GPU 1: the process still running after 1 s")
    assert group.ranks == [{"p2p": "1"}, {"p2p": "1"}]
    assert group.summary == "all ranks spoke; with NCCL_P2P_DISABLE=1"
    # Judged again from the report it stays what it was.
    past = Run(run.asked, environment=run.environment, snapshot=run.snapshot)
    judge_again(past, run.ordered)
    assert {i: (row.status, row.summary) for i, row in past.known.items()} == {
        i: (row.status, row.summary) for i, row in run.outcomes.items()
    }
