"""Whatever a check's processes do to themselves is one error of that check, named, and of no other."""

from collections.abc import Callable

import pytest

from envcheck.runner.schema import OutcomeRow
from tests.tables import beside

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
