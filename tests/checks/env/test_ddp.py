"""What ranks of data-parallel training report, judged: the truth passes, and each fault is caught by name."""

import math
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, View
from envcheck.checks.env import ddp
from tests.builders import Entry, group


def run(hook: str) -> Entry:
    compressed = {"compression": 4.3} if hook == "powersgd" else {}
    return {"errors": [1e-6] * ddp.HOOK_STEPS, "ended": "a", **compressed}


def honest() -> Entry:
    digests = {"own": "a", "started": "a", "ended": "b", "accumulated": "c"}
    hooks = {hook: run(hook) for hook in ddp.HOOKS}
    return {**digests, **{kind: [0.01] * ddp.STEPS for kind in ddp.OFF}, "hooks": hooks}


def entries(world: int = 8, *, gpu: bool = True) -> list[Entry]:
    return group(honest(), world, gpu=gpu)


def test_a_gradient_may_be_off_by_its_tolerance_and_no_more(h100: View) -> None:
    wrong = []
    for kind in ddp.OFF:
        for error, status in ((1.0, PASS), (1.001, FAIL), (-1e-9, FAIL), (math.nan, FAIL), (None, FAIL)):
            ranks = entries()
            ranks[2][kind][1] = error
            outcome = ddp.judge(h100, ranks)
            if outcome.status != status or ("rank 2, step 1" in outcome.summary) is (status == PASS):
                wrong.append((kind, error, outcome))
    assert not wrong


def test_a_replica_that_drifts_is_named(h100: View, cpu: View) -> None:
    for moment in ddp.MOMENTS:
        ranks = entries()
        ranks[7][moment] = "different"
        outcome = ddp.judge(h100, ranks)
        assert (outcome.status, outcome.details["ranks"]) == (FAIL, [7])
    two = entries(2, gpu=False)
    two[1]["ended"] = "different"
    assert ddp.judge(cpu, two).details["ranks"] == [0, 1]


def test_a_start_with_other_weights_than_rank_0s_fails(h100: View) -> None:
    ranks = entries()
    for entry in ranks:
        entry["started"] = "other"
    assert ddp.judge(h100, ranks).code == "ddp.start"


def test_fewer_steps_than_asked_for_are_an_error(h100: View) -> None:
    for kind in ddp.OFF:
        ranks = entries()
        ranks[1][kind].pop()
        assert ddp.judge(h100, ranks).status == ERROR


def test_a_hook_may_round_and_no_more(h100: View) -> None:
    wrong = []
    for hook in ddp.HOOKS:
        for off, status in ((1.0, PASS), (1.001, FAIL), (math.nan, FAIL), (None, FAIL)):
            ranks = entries()
            ranks[7]["hooks"][hook]["errors"][2] = off and off * ddp.bound(hook, 8).value
            outcome = ddp.judge(h100, ranks)
            if outcome.status != status or (f"GPU-7, {hook} hook, step 2" in outcome.summary) is (status == PASS):
                wrong.append((hook, off, outcome))
    assert not wrong


def test_what_else_a_hook_does_wrong_is_named(h100: View) -> None:
    changes: list[tuple[str, Entry, str, str]] = [
        ("powersgd", {"compression": 1.0}, FAIL, "ddp.hook-compression"),
        ("powersgd", {"compression": None}, FAIL, "ddp.hook-compression"),
        ("bf16", {"ended": "b"}, FAIL, "ddp.replicas-differ"),
        ("bf16", {"errors": [0.0]}, ERROR, "ddp.unmeasured"),
        ("bf16", {"raised": "DistBackendError: NCCL error"}, FAIL, "ddp.hook-raised"),
    ]
    for hook, change, status, code in changes:
        ranks = entries()
        ranks[4]["hooks"][hook] |= change
        outcome = ddp.judge(h100, ranks)
        assert (outcome.status, outcome.code) == (status, code)


def test_a_hook_that_no_rank_has_is_named_and_one_that_some_lack_is_no_pass(cpu: View) -> None:
    ranks: list[dict[str, Any]] = entries(2, gpu=False)
    ranks[0]["hooks"]["bf16"] = {"unsupported": "TypeError: needs NCCL"}
    assert ddp.judge(cpu, ranks).status == ERROR
    ranks[1]["hooks"]["bf16"] = {"unsupported": "TypeError: needs NCCL"}
    outcome = ddp.judge(cpu, ranks)
    assert outcome.status == PASS
    assert "no bf16 hook: TypeError: needs NCCL" in outcome.summary
