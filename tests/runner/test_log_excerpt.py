"""What is kept of a rank's last words: where it went wrong, and not what envcheck did around it."""

from envcheck.runner.judging import lost_rank
from envcheck.runner.outcomes import last_lines
from tests.builders import check_module
from tests.tables import each

STAGING = "/tmp/envcheck-run-x/plan/staging/envcheck"  # noqa: S108 (a path in a log)
RUNNER = [f'  File "{STAGING}/runner/{name}.py", line 6 in run' for name in ("worker_rank", "worker_group", "worker")]
NO_TORCH = "ModuleNotFoundError: No module named 'torch'"


def dump(*functions: str, name: str = "Current thread 0x1") -> list[str]:
    frames = [f'  File "/opt/torch/{function}.py", line 1 in {function}' for function in functions]
    return [f"{name} (most recent call first):", *frames, *RUNNER, "  ..."]


def test_a_hang_is_told_from_where_it_is_and_without_envchecks_frames() -> None:
    bootstrap = '  File "<frozen importlib._bootstrap>", line 241 in _call'
    lines = dump("wait", "all_reduce")
    lines.insert(2, bootstrap)
    own = '  File "envcheck/checks/env/ddp.py", line 48 in measure'
    lines.insert(4, own.replace("envcheck/checks", f"{STAGING}/checks"))
    assert last_lines("\n".join(["what it printed", *lines])) == [
        "what it printed",
        *dump("wait", "all_reduce")[:3],
        own,
    ]


def test_a_traceback_keeps_its_innermost_frames_with_their_source_and_the_exception() -> None:
    lines = [
        "Traceback (most recent call last):",
        f'  File "{STAGING}/runner/worker/rank.py", line 66, in measure',
        "    measured = load()(place)",
        "               ^^^^^^^^^^^^^",
        *(line for i in range(12) for line in (f'  File "/a/{i}.py", line 1, in f', "    f()")),
        "RuntimeError: broken",
    ]
    assert last_lines("\n".join(lines), 99) == [lines[0], *lines[4:]]
    assert last_lines("\n".join(lines), 2) == lines[-2:]


def test_a_line_of_a_flood_is_cut_to_its_end() -> None:
    [result] = last_lines("x" * 50_000 + "the end")
    assert result.endswith("xthe end")
    assert len(result) < 5_000


@each(
    ("error", "torch", "summary", "remedy"),
    [
        (NO_TORCH, NO_TORCH, f"torch cannot be imported: {NO_TORCH}", "an interpreter that has torch"),
        ("ImportError: x", "ImportError: x", "torch cannot be imported: ImportError: x", "broken (ImportError)"),
        # The second import of a broken torch may raise something else than the first.
        ("RuntimeError: y", "ImportError: x", "torch cannot be imported: ImportError: x", "broken (ImportError)"),
        ("RuntimeError: y", NO_TORCH, "rank 1 RuntimeError: y", "see the log"),
        ("RuntimeError: y", None, "rank 1 RuntimeError: y", "see the log"),
        ("still running after 1 s", "ImportError: x", "rank 1 still running after 1 s", "--timeout"),
    ],
)
def test_no_torch_a_broken_one_a_hang_and_the_checks_own_fault_are_told_apart(
    error: str, torch: str | None, summary: str, remedy: str
) -> None:
    outcome = lost_rank(check_module("x"), {"rank": 1, "text": error}, {"error": torch} if torch else {})
    assert (outcome.status, outcome.summary) == ("error", summary)
    assert remedy in outcome.remedy
