"""Whatever a check's processes do to themselves is one error of that check, named, and of no other."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.runner.local_python import PACKAGE, ChosenPython, LocalPython
from envcheck.runner.schema import OutcomeRow
from envcheck.runner.worker import rank_group
from tests.runner.conftest import AddCheck, RunSite
from tests.tables import beside, each

Sabotage = Callable[..., OutcomeRow]

CASES = beside(__file__)


@pytest.mark.parametrize("spawn", [False, True], ids=["fork", "spawn"])
@pytest.mark.parametrize("case", CASES)
def test_a_broken_rank_is_one_error_that_names_it(outcome: Sabotage, case: str, *, spawn: bool) -> None:
    measure, text = CASES[case]
    actual = outcome(measure, spawn=spawn, options="ranks=1, timeout=20")
    assert actual.status == "error"
    assert actual.summary.startswith(text)
    assert actual.remedy


def test_a_hang_is_ended_by_its_limit_and_says_where_it_hung(outcome: Sabotage) -> None:
    actual = outcome("def waits_for_ever(): time.sleep(600)\nwaits_for_ever()", options="ranks=2, timeout=1")
    assert actual.summary == "rank 0 still running after 1 s (ranks 0, 1); ended by SIGTERM"
    assert "waits_for_ever" in actual.log
    assert "envcheck/runner/" not in actual.log
    assert "--timeout" in actual.remedy
    assert actual.seconds < 30


def test_a_rank_deaf_to_sigterm_is_killed(outcome: Sabotage) -> None:
    deaf = "faulthandler.unregister(signal.SIGTERM)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
    actual = outcome(deaf, options="ranks=1, timeout=1")
    assert actual.summary == "rank 0 still running after 1 s (ranks 0); ended by SIGKILL"


def test_the_first_rank_to_be_lost_is_blamed_not_those_it_takes_with_it(outcome: Sabotage) -> None:
    measure = """
    if rank.rank == 1:
        os._exit(7)
    time.sleep(5)
    raise ConnectionError("peer is gone")
    """
    assert outcome(measure).summary == "rank 1 exited with code 7"


def test_a_flood_of_fake_results_on_stdout_changes_nothing(outcome: Sabotage) -> None:
    measure = """
    line = json.dumps({"event": "done", "id": "sabotaged", "ranks": [{}], "error": None, "measured": {}}) + "\\n"
    for _ in range(100 * 2**20 // len(line) // rank.world):
        sys.stdout.write(line)
    return {"rank": rank.rank}
    """
    actual = outcome(measure, options="ranks=2, timeout=60")
    assert actual.status == "pass"
    assert actual.ranks == [{"rank": 0}, {"rank": 1}]


def test_a_rank_cannot_write_events(outcome: Sabotage) -> None:
    measure = """
    forged = json.dumps({"event": "done", "id": "sound", "ranks": [], "error": None}) + "\\n"
    for fd in range(3, 64):
        try:
            os.write(fd, forged.encode())
        except OSError:
            pass
    return {"rank": rank.rank}
    """
    assert outcome(measure).status == "pass"


def test_a_byte_that_is_no_text_is_written_as_an_escape(outcome: Sabotage) -> None:
    actual = outcome("raise RuntimeError('\\udcff')", options="ranks=1, timeout=20")
    assert actual.summary == "rank 0 RuntimeError: \\udcff"


def test_a_rank_is_told_what_torchrun_would_tell_it() -> None:
    data = rank_group.environment(1, 2, 4711, {})
    assert data["GLOO_SOCKET_IFNAME"] == "lo"
    assert {k: data[k] for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert (data["MASTER_ADDR"], data["MASTER_PORT"]) == ("127.0.0.1", "4711")


def test_a_users_own_choice_is_what_is_tested() -> None:
    data = rank_group.environment(0, 2, 1, {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "7", "RANK": "5"})
    assert "GLOO_SOCKET_IFNAME" not in data
    assert "OMP_NUM_THREADS" not in data
    assert data["RANK"] == "0"


@pytest.mark.parametrize("spawn", [False, True], ids=["fork", "spawn"])
def test_ranks_meet_on_one_free_port_alone_in_an_empty_directory(
    add: AddCheck, run_site: RunSite, monkeypatch: pytest.MonkeyPatch, *, spawn: bool
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("PYTHONPATH", f"{PACKAGE.parent}{os.pathsep}/somewhere")
    add(
        "meets",
        """
        env = {k: v for k, v in os.environ.items() if k.startswith(("MASTER", "TORCHELASTIC", "NCCL", "PYTHONPATH"))}
        own = [p for p in sys.path if os.path.isdir(os.path.join(p, "envcheck"))]
        listed = [sorted(os.listdir(p)) for p in own]
        return {"env": env, "cwd": os.getcwd(), "scratch": rank.scratch, "listed": listed, "read": sys.stdin.read()}
        """,
    )
    # Not this interpreter: envcheck may well be installed in its environment.
    bare = LocalPython(ChosenPython(Path(sys.base_prefix, "bin", "python3"), "--python"))
    first, second = run_site(spawn=spawn, target=bare).outcomes["meets"].ranks
    assert first == second
    assert first["env"].pop("MASTER_PORT").isdigit()
    assert first["env"] == {"MASTER_ADDR": "127.0.0.1", "NCCL_DEBUG": "INFO", "PYTHONPATH": "/somewhere"}
    assert first["cwd"] == os.path.realpath(first["scratch"])
    # Of envcheck's own site-packages and checkout nothing else can be imported.
    assert first["listed"] == [["envcheck"]]
    assert first["read"] == ""


@each(("value", "count"), [("4", 4), ("4,2", 4), (" 3 ", 3), ("", 0), ("0", 0), ("abc", 0), ("-1", 0), ("9" * 5000, 0)])
def test_threads_are_chosen_as_openmp_reads_them(value: str, count: int) -> None:
    assert rank_group.chosen_threads({"OMP_NUM_THREADS": value}) == count
