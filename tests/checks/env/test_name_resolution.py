"""What the lookups of torchrun cost: judged on both sides of the limit, and measured where no name server answers."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Rank, View
from envcheck.checks.env import name_resolution as check
from envcheck.checks.env import torchrun
from envcheck.checks.support import process_group
from tests import silent_resolver
from tests.interpreters import interpreters
from tests.tables import each

ROOT = Path(__file__).parents[3]
MEASURE = """
import json, sys, time
sys.path.insert(0, {root!r})
from envcheck.checks import Rank
from envcheck.checks.env import name_resolution
begun = time.monotonic()
measured = name_resolution.measure(Rank(0, 1, 0, "cpu", "gloo", ""))
print(json.dumps([measured, time.monotonic() - begun]))
"""
JOIN = """
import os, sys
sys.path.insert(0, {root!r})
import torch
from envcheck.checks import Rank
from envcheck.checks.support import process_group as _group
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
number = int(os.fork() == 0)
with _group.group(Rank(number, 2, number, "cpu", "gloo", {scratch!r})) as dist:
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    os.write(1, b"sum %d;" % int(tensor))
if number == 0:
    os.wait()
os._exit(0)
"""


def measured(**lookups: Any) -> list[dict[str, Any]]:
    """Return a measurement in which every lookup was quick but those given."""
    quick = {"seconds": 0.001, "error": None, "ended": True}
    names = {"own": check.OWN, "localhost": check.LOOPBACK, "mapped": check.MAPPED, "address": check.ADDRESS}
    return [{"rank": 0, "lookups": {names[key]: {**quick, **lookups.get(key, {})} for key in names}}]


@each(
    "lookups, status, culprits",
    [
        ({}, PASS, []),
        ({"own": {"seconds": check.LIMIT.value}}, PASS, []),
        ({"own": {"seconds": check.LIMIT.value + 0.01}}, WARN, [check.OWN]),
        ({"mapped": {"seconds": 1.5, "ended": False}}, WARN, [check.MAPPED]),
        ({"mapped": {"seconds": 0.2, "ended": False}}, WARN, [check.MAPPED]),
        ({"mapped": {"error": "no name"}}, PASS, []),
        ({"localhost": {"error": "not known"}, "own": {"seconds": 5.0}}, WARN, [check.OWN, check.LOOPBACK]),
        ({"own": {"seconds": float("nan")}}, ERROR, []),
        ({"own": {"seconds": -1.0}}, ERROR, []),
    ],
)
def test_each_slow_or_missing_name_is_a_finding_of_its_own(
    cpu: View, lookups: dict[str, Any], status: str, culprits: list[str]
) -> None:
    outcome = check.judge(cpu, measured(**lookups))
    assert outcome.status == status
    assert [finding.culprit for finding in outcome.findings] == culprits
    assert all("/etc/hosts" in finding.remedy for finding in outcome.findings)


@each("ranks", [[], [{"rank": 0}], [{"rank": 0, "lookups": {check.OWN: {"seconds": 0.1}}}]])
def test_what_was_not_looked_up_is_an_error(cpu: View, ranks: list[dict[str, Any]]) -> None:
    assert check.judge(cpu, ranks).status == ERROR


def test_a_lookup_that_breaks_is_kept_as_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "a" * 64)
    actual = check.measure(Rank(0, 1, 0, "cpu", "gloo", ""))["lookups"]
    assert actual[check.OWN]["error"]
    assert actual[check.LOOPBACK]["ended"]


@pytest.fixture
def lonely(tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Return what runs Python code where no name server answers: its output, and the questions that were asked."""

    def run(python: Path, code: str, hosts: str) -> tuple[str, str]:
        (tmp_path / "hosts").write_text(hosts)
        (tmp_path / "questions").touch()
        (tmp_path / "scratch").mkdir(exist_ok=True)
        argv = silent_resolver.command(python, "-c", code, hosts=tmp_path / "hosts", questions=tmp_path / "questions")
        completed = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=200)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout, (tmp_path / "questions").read_text()

    return run


@pytest.mark.parametrize(
    ("hosts", "slow"),
    [
        (silent_resolver.USUAL, [check.OWN, check.MAPPED]),
        (f"{silent_resolver.USUAL}192.0.2.1 {silent_resolver.NAME}\n", [check.MAPPED, check.ADDRESS]),
        (f"{silent_resolver.USUAL}127.0.0.1 {silent_resolver.NAME}\n::ffff:127.0.0.1 localhost\n", []),
    ],
)
def test_a_resolver_that_does_not_answer_is_seen_and_the_remedy_helps(
    cpu: View, lonely: Callable[..., tuple[str, str]], hosts: str, slow: list[str]
) -> None:
    printed, _ = lonely(Path(sys.executable), MEASURE.format(root=str(ROOT)), hosts)
    outcome = check.judge(cpu, [json.loads(printed)[0]])
    assert [finding.culprit for finding in outcome.findings] == slow


@pytest.mark.parametrize("python", interpreters())
def test_no_lookup_holds_up_the_measurement(lonely: Callable[..., tuple[str, str]], python: str) -> None:
    printed, _ = lonely(Path(python), MEASURE.format(root=str(ROOT)), silent_resolver.USUAL)
    assert json.loads(printed)[1] < 2 * check.PATIENCE + 1


@pytest.mark.torch
def test_a_group_on_one_machine_asks_for_no_name(
    lonely: Callable[..., tuple[str, str]], torch_python: Path, tmp_path: Path
) -> None:
    code = JOIN.format(root=str(ROOT), scratch=str(tmp_path / "scratch"))
    printed, questions = lonely(torch_python, code, silent_resolver.USUAL)
    assert printed == "sum 2;sum 2;"
    assert questions == ""


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
        (entry({**SOUND, "left": False}, code=1, failures=[[1, -6]]), FAIL, "rank 1 died of SIGABRT at its exit"),
        (entry(code=1, failures=[[0, 3]]), FAIL, "rank 0 ended with exit code 3"),
        (entry(code=1, raised="ValueError: no"), FAIL, "torchrun ended with exit code 1: ValueError: no"),
        (entry({**SOUND, "left": False}, code=None), FAIL, "rank 1 had returned and did not end"),
        (entry({**SOUND, "left": False}), FAIL, "rank 1 left before"),
        (entry(at_exit=True), FAIL, "registered with atexit raised"),
        (entry({**SOUND, "joined": None}, code=1, raised="OSError: gone"), FAIL, "rank 1 did not join: OSError"),
        (entry({**SOUND, "joined": {"wrong": 7, "world": 2}}), FAIL, "rank 1 of 2 had 7 wrong elements"),
        (entry({**SOUND, "joined": {"wrong": 0, "world": 1}}), FAIL, "rank 1 of 1"),
        (entry({**SOUND, "joined": {"wrong": None, "world": 2}}), FAIL, "rank 1 did not join"),
        ([{"rank": 0, "missing": "no torch.distributed.run"}], SKIP, "no torch.distributed.run"),
        ([], ERROR, "not started"),
        ([{"rank": 0}], ERROR, "not started"),
        (entry(ranks=[]), ERROR, "not started"),
        *((entry(ranks=ranks), ERROR, "each of its 2 ranks") for ranks in ([SOUND, None], [SOUND])),
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
