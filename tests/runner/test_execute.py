"""A run as a whole: node and environment together, a lost performance measured twice, nothing left undecided."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.reports.model import RunReport, report_of
from envcheck.runner import worker_session
from envcheck.runner.judging import lost_rank
from envcheck.runner.local_python import PACKAGE, ChosenPython, LocalPython
from envcheck.runner.outcomes import last_lines, plain
from envcheck.runner.schema import TargetFacts
from tests.builders import check_module
from tests.interpreters import interpreters
from tests.runner.conftest import AddCheck, RunSite
from tests.tables import each

SPEED = """
def judge(view, ranks):
    speed = ranks[0]["speed"]
    return passed("fast", value=speed, unit="GB/s") if speed >= 100 else too_slow("slow", fix="wait", value=speed)
"""


def speeds(file: Path, *values: float) -> str:
    """Return a measure that gives one value after the other."""
    return (
        f"count = len(os.listdir({str(file)!r}))\n"
        f"open(os.path.join({str(file)!r}, str(count)), 'w').close()\n"
        f"return {{'speed': {values!r}[count]}}"
    )


@pytest.mark.parametrize(
    ("measured", "status", "kept"),
    [((100.0,), "pass", [100.0]), ((99.0, 100.0), "pass", [99.0, 100.0]), ((99.0, 98.0), "fail", [99.0, 98.0])],
)
def test_a_performance_that_falls_short_is_measured_again_before_it_fails(
    add: AddCheck,
    run_site: RunSite,
    tmp_path: Path,
    measured: tuple[float, ...],
    status: str,
    kept: list[float],
) -> None:
    (tmp_path / "seen").mkdir()
    add("speed", speeds(tmp_path / "seen", *measured), "ranks=1, performance=True", SPEED)
    actual = run_site().outcomes["speed"]
    assert (actual.status, actual.value, [a.value for a in actual.attempts]) == (status, kept[-1], kept)


def test_a_second_look_that_cannot_look_takes_nothing_away(add: AddCheck, run_site: RunSite, tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    add("speed", speeds(tmp_path / "seen", 99.0), "ranks=1, performance=True", SPEED)
    actual = run_site().outcomes["speed"]
    assert (actual.status, actual.value) == ("fail", 99.0)
    assert [(a.status, a.shown) for a in actual.attempts] == [("fail", True), ("error", False)]
    assert [(f.status, f.code) for f in actual.findings] == [("fail", "speed.fail"), ("error", "process.lost")]
    assert "measured again: rank 0 IndexError" in actual.summary
    assert "IndexError" in actual.log
    assert not actual.remeasure


def test_a_node_check_counts_the_gpus_nvml_shows_not_those_torch_sees(site: Path, run_site: RunSite) -> None:
    (site / "node" / "seen.py").write_text(
        '"""Doc."""\nfrom envcheck.checks import Check, passed\nCHECK = Check(promise="p", level="quick", gpus=1)\n'
        "def judge(view):\n    return passed('seen', value=len(view.snapshot.gpus))\n"
    )
    blind = Snapshot(signals={"driver.version": Signal(reason="no library", why="failed")})
    skipped = run_site(snapshot=blind).outcomes["seen"]
    assert (skipped.status, skipped.summary) == ("skip", "needs 1 GPU, found none: no library")
    assert run_site(snapshot=Snapshot(gpus=[Gpu("GPU-1")])).outcomes["seen"].value == 1


def test_a_node_that_cannot_be_read_is_raised_and_one_that_hangs_holds_up_nobody_who_leaves(
    add: AddCheck, site: Path
) -> None:
    add("one", "return {}", "timeout=5")
    code = HANGS.format(root=str(PACKAGE.parent), site=str(site))
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (completed.stdout, completed.returncode) == ("ValueError: no node\nSystemExit: 3\nleft\n", 0), (
        completed.stderr
    )


# A node that never answers, and a user who presses Ctrl-C when torch is there.
HANGS = """
import gc, pathlib, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has it ignored
sys.path.insert(0, {root!r})
from envcheck.runner import execute
from envcheck.runner.planning import discover
from envcheck.runner.planning import plan
from envcheck.runner.local_python import LocalPython
from envcheck.runner.execute import Run
from envcheck.runner.worker_session import RunPlan
from envcheck.runner.local_python import ChosenPython
site = pathlib.Path({site!r})
chosen = [f for f in discover(site) if f.id == "one"]
class Watcher:
    def running(self, check): pass
    def learned(self, run): pass
def fails():
    raise ValueError("no node")
def hangs():
    signal.raise_signal(signal.SIGINT)
    threading.Event().wait()
def run(collect):
    python = ChosenPython(pathlib.Path(sys.executable), "x")
    made = Run(RunPlan(plan=plan(chosen, level="full", nproc=1), chosen=chosen, target=LocalPython(python), site=site))
    execute.validate(made, collect, Watcher())
try:
    run(fails)
except ValueError as error:
    print(f"ValueError: {{error}}")
try:
    run(lambda: sys.exit(3))
except SystemExit as error:
    print(f"SystemExit: {{error}}")
gc.collect()  # a finalizer of the runs before this one would swallow what the signal raises
try:
    run(hangs)
except KeyboardInterrupt:
    print("left")
"""


class ScriptedTarget:
    """A target whose worker is a script of events, one for each start."""

    facts = TargetFacts(kind="python", name="scripted", chosen="test")

    def __init__(self, events: list[Any], code: int | None) -> None:
        self.events, self.code, self.ended = events, code, 0

    def start(self, directory: Path) -> ScriptedTarget:
        run = json.loads((directory / "plan.json").read_text())["run"]
        lines = [json.dumps({"run": run, **e} if isinstance(e, dict) else e) + "\n" for e in self.events]
        (directory / "events.jsonl").write_text("".join(lines) + '{"event": "don')
        return self

    def promises(self, environment: object) -> dict[str, str]:  # noqa: ARG002 (the contract's)
        return {}

    def poll(self) -> int | None:
        return self.code

    def logs(self) -> str:
        return "last words\n"

    def close(self) -> None:
        self.ended += 1


FACTS = {"event": "environment", "facts": {"device_count": 0, "devices": [], "python": "3.11.2"}}
DONE: dict[str, Any] = {
    "event": "done",
    "id": "one",
    "ranks": [{}],
    "error": None,
    "seconds": 1.0,
    "body": 0.5,
    "logs": [""],
    "progress": [],
    "survivors": [],
    "kept": {},
}


@pytest.mark.parametrize(
    ("events", "code", "summary"),
    [
        ([FACTS], 0, "the worker exited with code 0: last words"),
        ([FACTS], -9, "the worker died of SIGKILL: last words"),
        ([FACTS, {"event": "end"}], None, "the worker ended without a message"),
        (
            [FACTS, {"event": "started", "id": "two", "limit": 0.1}],
            None,
            "the worker stopped answering and was ended",
        ),
        ([FACTS, {"event": "died", "status": -6}], None, "the worker died of SIGABRT: last words"),
        ([], 3, "the worker exited with code 3 while importing torch: last words"),
    ],
)
def test_however_a_worker_ends_every_check_has_its_outcome_and_it_is_ended(
    add: AddCheck,
    run_site: RunSite,
    monkeypatch: pytest.MonkeyPatch,
    events: list[dict[str, Any]],
    code: int | None,
    summary: str,
) -> None:
    monkeypatch.setattr(worker_session, "_OVER", 0.2)
    add("two", "return {}", "timeout=0.1")
    target = ScriptedTarget(events, code)
    run = run_site(target=target)
    assert run.outcomes["two"].summary == summary
    assert run.outcomes["two"].code == ("worker.lost" if events else "torch.import-lost")
    assert run.outcomes["two"].log == ("" if events[1:] == [{"event": "end"}] else "last words")
    assert target.ended == 1
    assert run.verdict.exit_code == 3


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (os.mkfifo, "it is no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "Too many levels of symbolic links"),
        (lambda path: path.write_bytes(b"{" * 5000), "they have over 20000 bytes, or 4096 in a line"),
        (lambda path: path.write_bytes(b"{}\n" * 9000), "they have over 20000 bytes, or 4096 in a line"),
    ],
    ids=["pipe", "link", "endless line", "endless lines"],
)
def test_what_an_image_puts_in_the_place_of_its_results_holds_up_nobody(
    add: AddCheck,
    run_site: RunSite,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[Path], object],
    why: str,
) -> None:
    monkeypatch.setattr(worker_session, "_LINE", 4096)
    monkeypatch.setattr(worker_session, "_MOST", 20000)
    add("one", "return {}")

    class PlantedTarget(ScriptedTarget):
        def start(self, directory: Path) -> ScriptedTarget:
            plant(directory / "events.jsonl")
            return self

    run = run_site(target=PlantedTarget([], None))
    assert run.outcomes["one"].summary == f"the worker's results cannot be read: {why}"
    assert run.verdict.exit_code == 3


ATTACKS: list[Any] = [
    {"event": "environment"},
    {"event": "done", "id": "one"},
    {**DONE, "error": {"text": 1, "rank": 0}},
    {**DONE, "seconds": float("nan")},
    {**DONE, "ranks": json.loads("[" * 300 + "]" * 300)},
    {**DONE, "run": "an earlier one"},
    {"event": "started", "id": "one", "limit": "0.1"},
    {**DONE, "why": "an event that says how the worker ended"},
    {**DONE, "kept": {"gpus": ["GPU-1"]}},
    {"event": ["x"]},
    {"event": "silent"},
    {**DONE, "id": ""},
    {"event": "left-out", "id": "one", "left": 0.0},
]
TWICE = [FACTS, DONE, {**DONE, "ranks": []}, {"event": "end"}]


def test_an_event_that_does_not_fit_is_skipped_and_told(add: AddCheck, run_site: RunSite) -> None:
    add("one", "return {}")
    clean = run_site(target=ScriptedTarget([FACTS, {"event": "waiting"}, DONE, {"event": "end"}], None))
    assert clean.verdict.exit_code == 0
    assert run_site(target=ScriptedTarget(TWICE, None)).outcomes["worker-events"].status == "error"
    for attack in ATTACKS:
        run = run_site(target=ScriptedTarget([FACTS, attack, DONE, {"event": "end"}], None))
        assert (run.outcomes["one"].status, run.outcomes["worker-events"].status) == ("pass", "error"), attack
        assert (run.verdict.exit_code, run.environment) == (3, FACTS["facts"]), attack


def test_data_that_another_seed_made_is_of_another_run(tmp_path: Path) -> None:
    checks = [
        {"id": name, "source": f"{kind}:x", "timeout": 1.0} for name, kind in (("one", "module"), ("mine", "file"))
    ]
    plan = {"run": "r", "seed": 7, "budget": None, "several_nodes": False, "checks": checks}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    ranks: list[tuple[str, Any]] = [
        ("one", [{"seed": 7}, {"seed": 8}]),
        ("one", [{"seed": 6}]),
        ("mine", [{"seed": 6}]),
    ]
    said = [FACTS, *({**DONE, "id": check, "ranks": each} for check, each in ranks), {"event": "end"}]
    seen = worker_session.events(ScriptedTarget(said, None), tmp_path, plan)
    assert [event["event"] for event in seen] == ["environment", "done", "foreign", "done", "end"]


def test_each_run_has_a_seed_of_its_own_or_the_one_that_was_asked_for(
    add: AddCheck, run_site: RunSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("one", "return {'asked': os.environ['ENVCHECK_SEED']}", "ranks=1")
    seeds = []
    for wanted in ("12", "", ""):
        monkeypatch.setenv("ENVCHECK_SEED", wanted)
        row = run_site().outcomes["one"]
        seeds.append(row.ranks[0]["asked"])
        assert "ran_with" not in row.details
    assert seeds[0] == "12"
    assert len(set(seeds)) == 3


NESTS = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sound=st.sampled_from([FACTS, DONE, {"event": "started", "id": "one", "limit": 0.1}]), data=st.data())
def test_whatever_an_image_says_ends_in_a_verdict(
    add: AddCheck, run_site: RunSite, sound: dict[str, Any], data: st.DataObject
) -> None:
    add("one", "return {}")
    field = data.draw(st.sampled_from(sorted(sound)))
    said = {**sound, field: data.draw(JSON)} if data.draw(st.booleans()) else data.draw(JSON)
    run = run_site(target=ScriptedTarget([FACTS, said, {"event": "end"}], 0))
    assert run.verdict.exit_code in (0, 1, 3)
    assert msgspec.json.decode(msgspec.json.encode(report_of(run)), type=RunReport)


def test_what_an_image_leaves_in_the_directory_of_its_plan_ends_nothing(tmp_path: Path) -> None:
    with worker_session.working_directory({}, None) as directory:
        subprocess.run([sys.executable, "-c", NESTS], cwd=directory, check=True)
        (directory / "word").symlink_to(tmp_path / "elsewhere")
        worker_session.leave_word(directory / "word")
    subprocess.run(["rm", "-rf", directory.parent], check=True)
    assert not (tmp_path / "elsewhere").exists()


def test_a_process_that_no_signal_ends_is_named_in_the_report(add: AddCheck, run_site: RunSite) -> None:
    add("one", "return {}")
    stuck = [{"pid": 4711, "state": "D"}]
    run = run_site(target=ScriptedTarget([FACTS, {**DONE, "survivors": stuck}, {"event": "end"}], None))
    assert run.outcomes["one"].details == {"survivors": stuck}


def test_measurements_that_json_cannot_hold_are_told_not_nulled() -> None:
    assert plain({"x": [float("nan"), float("inf")], 1: (2.5, None, True), "o": {"s"}}) == {
        "x": ["nan", "inf"],
        "1": [2.5, None, True],
        "o": ["s"],
    }


@pytest.mark.parametrize("spawn", [False, True], ids=["fork", "spawn"])
@pytest.mark.parametrize("python", interpreters())
def test_the_worker_runs_in_every_python_there_is(
    add: AddCheck, run_site: RunSite, python: str, *, spawn: bool
) -> None:
    add("version", "return {'python': list(sys.version_info[:2])}")
    add("raises", "raise ValueError('as planned')", "ranks=1")
    run = run_site(target=LocalPython(ChosenPython(Path(python), "--python")), spawn=spawn)
    assert run.environment["python"].startswith(".".join(map(str, run.outcomes["version"].ranks[0]["python"])))
    assert run.outcomes["raises"].summary == "rank 0 ValueError: as planned"


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
        ("ImportError: x", "ImportError: x", "torch cannot be imported: ImportError: x", "torch is there but broken"),
        # The second import of a broken torch may raise something else than the first.
        ("RuntimeError: y", "ImportError: x", "torch cannot be imported: ImportError: x", "torch is there but broken"),
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
