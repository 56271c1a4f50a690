"""Ranks as torchrun starts them: how each end of theirs is judged."""

from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.env import torchrun
from envcheck.checks.support import process_group
from tests.tables import each

SOUND = {"joined": {"wrong": 0, "world": 2, "backend": "gloo"}, "returned": True, "left": True}


def entry(second: Any = SOUND, **changed: Any) -> list[dict[str, Any]]:
    """Return a measurement of two ranks that did well, but for what is changed."""
    base = {"rank": 0, "nproc": 2, "by_name": True, "code": 0, "seconds": 5.0, "failures": [], "raised": None}
    return [{**base, "at_exit": False, "ranks": [SOUND, second], **changed}]


@each(
    "measured, status, word",
    [
        (entry(), PASS, "ended without a crash"),
        (entry(by_name=False), WARN, "own host name does not resolve"),
        (entry(code=1, failures=[[1, -11]]), FAIL, "rank 1 died of SIGSEGV at its exit, its work done"),
        (entry({**SOUND, "left": False}, code=1, failures=[[1, -6]]), FAIL, "rank 1 died of SIGABRT at its exit"),
        (entry(code=1, failures=[[0, 3]]), FAIL, "rank 0 ended with exit code 3"),
        (entry(code=1, raised="ValueError: no"), FAIL, "torchrun ended with exit code 1: ValueError: no"),
        (entry({**SOUND, "left": False}, code=None), FAIL, "rank 1 had returned and did not end"),
        (entry({**SOUND, "left": False}), FAIL, "rank 1 left before"),
        (entry(at_exit=True), FAIL, "registered with atexit raised"),
        (
            entry({**SOUND, "joined": None}, code=1, raised="RuntimeError: gone"),
            FAIL,
            "rank 1 did not join: RuntimeError",
        ),
        (entry({**SOUND, "joined": {"wrong": 7, "world": 2}}), FAIL, "rank 1 of 2 had 7 wrong elements"),
        (entry({**SOUND, "joined": {"wrong": 0, "world": 1}}), FAIL, "rank 1 of 1"),
        (entry({**SOUND, "joined": {"wrong": None, "world": 2}}), FAIL, "rank 1 did not join"),
        ([{"rank": 0, "missing": "no torch.distributed.run"}], SKIP, "no torch.distributed.run"),
        ([], ERROR, "not started"),
        ([{"rank": 0}], ERROR, "not started"),
        (entry(ranks=[]), ERROR, "not started"),
        (entry(ranks=[SOUND]), ERROR, "each of its 2 ranks"),
        (entry(ranks=[SOUND, None]), ERROR, "each of its 2 ranks"),
        (entry(code=[]), ERROR, "itself ended"),
        (entry(code=False), ERROR, "itself ended"),
        (entry(failures=None), ERROR, "itself ended"),
        (entry({**SOUND, "returned": False, "left": False}), FAIL, "rank 1 left before"),
    ],
)
def test_each_end_is_judged(cpu: View, measured: list[dict[str, Any]], status: str, word: str) -> None:
    outcome = torchrun.judge(cpu, measured)
    assert outcome.status == status
    assert word in outcome.summary


def test_a_module_that_torch_does_not_ask_for_is_named_to_install(cpu: View) -> None:
    """Torch 2.6 to 2.8 before Python 3.10: pytorch/pytorch#163946."""
    absent = "ModuleNotFoundError: No module named 'importlib_metadata'"
    outcome = torchrun.judge(cpu, entry({**SOUND, "joined": None}, code=1, raised=absent))
    assert {finding.remedy for finding in outcome.findings} == {"pip install importlib_metadata"}
    for broken in ("numpy._core", "_lzma", "envcheck.checks.x", "envcheck", "torch", "torch._C", "yaml"):
        assert process_group.remedy(f"ModuleNotFoundError: No module named '{broken}'", "other") == "other", broken


def test_every_rank_that_failed_is_a_finding(cpu: View) -> None:
    outcome = torchrun.judge(cpu, entry(code=1, failures=[[0, -6], [1, -11]]))
    assert [finding.culprit for finding in outcome.findings] == ["rank 0", "rank 1"]
