"""Whatever a check's processes do to themselves is one error of that check, named, and of no other."""

from collections.abc import Callable

import pytest

from envcheck.runner.schema import OutcomeRow

Sabotage = Callable[..., OutcomeRow]

CASES = {
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "rank 0 died of SIGKILL"),
    "segfaults": ("ctypes.string_at(0)", "rank 0 died of SIGSEGV"),
    "aborts": ("os.abort()", "rank 0 died of SIGABRT"),
    "leaves quietly": ("os._exit(0)", "rank 0 exited with code 0 and no result"),
    "exits": ("sys.exit(3)", "rank 0 exited with code 3"),
    "exits at once": ("os._exit(3)", "rank 0 exited with code 3"),
    "exits with words": ("sys.exit('no')", "rank 0 exited with code 1"),
    "raises": ("raise RuntimeError('broken as\\nplanned')", "rank 0 RuntimeError: broken as"),
    "breaks an import": ("import no_such_module", "rank 0 ModuleNotFoundError: No module named 'no_such_module'"),
    "recurses": ("def f(): f()\nf()", "rank 0 RecursionError: maximum recursion depth exceeded"),
    "returns no dict": ("return [1]", "rank 0 TypeError: measure returned list, not a dict"),
    "returns nothing": ("pass", "rank 0 TypeError: measure returned NoneType, not a dict"),
    "returns no JSON": ("return {'x': object()}", "rank 0 TypeError: Object of type object is not JSON serializable"),
    "returns a circle": ("x = {}\nx['x'] = x\nreturn x", "rank 0 ValueError: Circular reference detected"),
    "returns too much": ("return {'x': 'y' * (1 << 21)}", "rank 0 ValueError: measure returned 2097"),
    "forges a result": ("open('rank0.json', 'w').write('[1'); os._exit(0)", "rank 0 its result file is not JSON"),
    "fills its result": (
        "open('rank0.json', 'w').write(' ' * (1 << 21)); os._exit(0)",
        "rank 0 its result file is over 1048576 bytes",
    ),
    "nests its result": (
        "open('rank0.json', 'w').write('[' * 100000 + ']' * 100000); os._exit(0)",
        "rank 0 its result file is not JSON",
    ),
    "leaves a pipe": ("os.mkfifo('rank0.json'); os._exit(0)", "rank 0 its result file cannot be read: it is no"),
    "leaves a pipe of progress": (
        "os.remove('rank0.progress'); os.mkfifo('rank0.progress'); os.mkfifo('rank0.doing'); os._exit(0)",
        "rank 0 exited with code 0 and no result",
    ),
    "leaves a link": (
        "os.symlink('/dev/zero', 'rank0.json'); os._exit(0)",
        "rank 0 its result file cannot be read: Too many levels",
    ),
    "leaves a directory": ("os.mkdir('rank0.json'); return {}", "rank 0 its result file cannot be read: Is a"),
    "forges its seconds": (
        "open('rank0.json', 'w').write('{\"measured\": {}, \"seconds\": \"many\"}'); os._exit(0)",
        "rank 0 its result file holds neither",
    ),
    "leaves by the front door": ("sys.exit()", "rank 0 exited with code 0 and no result"),
    "closes stdout": ("sys.stdout.close(); raise KeyError('lost')", "rank 0 KeyError: 'lost'"),
}


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
