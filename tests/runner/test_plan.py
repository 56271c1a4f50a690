"""Which checks a run does: by level, by name, and never silently none."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.checks import LEVELS
from envcheck.errors import ConfigError
from envcheck.images import lockfile
from envcheck.images.dockerfile import write_locks
from envcheck.images.promises import with_packages
from envcheck.images.spec import load_spec
from envcheck.matrix.facts.model import Cell
from envcheck.matrix.file.load import load
from envcheck.runner.planning import STARTING, CheckModule, discover, expected_to_fit, most_telling_first, plan, select
from envcheck.runner.schema import OutcomeRow, TargetFacts
from envcheck.runner.worker_session import RunPlan, worker_plan
from tests.builders import check_module
from tests.runner.conftest import AddCheck, RunSite
from tests.tables import each


def check(identity: str, level: str, **needs: Any) -> CheckModule:
    return check_module(identity, **{"level": level, "seconds": 2.0, "timeout": 30.0, "gpus": 1, "ranks": 0, **needs})


ALL = [check(f"a-{level}", level) for level in LEVELS]


def test_only_takes_a_check_of_any_level_and_skip_takes_one_out() -> None:
    assert [f.id for f in select(ALL, "static", only=["a_full"])] == ["a-full"]
    assert [f.id for f in select(ALL, "quick", skip=["a-static"])] == ["a-quick"]


def test_the_worker_is_told_of_env_checks_alone() -> None:
    node = ALL[0]._replace(kind="node", id="node")
    made = plan([node, ALL[1]], level="full", nproc=3)
    target: Any = SimpleNamespace(facts=TargetFacts(kind="image", name="i", chosen="--image"))
    asked = RunPlan(plan=made, chosen=[node, ALL[1]._replace(source="module:q")], target=target)
    hung = OutcomeRow(id="group", kind="env", status="fail", summary="hung", details={"hung": "after 1 s"})
    data = worker_plan(made, asked, {"group": hung}, several_nodes=False)
    [check] = data["checks"]
    numbers = {"ranks": 0, "least_ranks": 1, "gpus": 1, "seconds": 2.0, "timeout": 30.0}
    assert check == {"id": "a-quick", "source": "module:q", "probe": False, "imports": [], **numbers}
    assert (data["nproc"], data["environment"]["NCCL_P2P_DISABLE"]) == (3, "1")


SOUND = (
    '"""Doc."""\nfrom envcheck.checks import Check, passed\nCHECK = Check(promise="p", level="quick")\n'
    "def judge(view, ranks):\n    return passed('')\ndef measure(rank):\n    return {}\n"
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('CHECK = Check(promise="p", level="quick")', "", "has no CHECK"),
        ("def judge", "def judged", "has no judge"),
        ("def measure", "def measured", "has no measure"),
        ('"quick"', '"fast"', "has the level 'fast'"),
        ('"p"', '" "', "has no docstring or no promise"),
        ('"""Doc."""', "", "has no docstring or no promise"),
        ("def judge", "def ju dge", "cannot be imported: SyntaxError"),
        ("def judge", "import no_such\ndef judge", "cannot be imported: ModuleNotFoundError"),
        ("def judge", "1 / 0\ndef judge", "cannot be imported: ZeroDivisionError"),
        ("def judge", "raise SystemExit(0)\ndef judge", "cannot be imported: SystemExit"),
    ],
)
def test_a_file_that_is_no_check_is_a_loud_error_naming_it(site: Path, old: str, new: str, message: str) -> None:
    (site / "env" / "mine.py").write_text(SOUND.replace(old, new))
    with pytest.raises(ConfigError, match=rf"env/mine\.py {message}"):
        discover(site)


@pytest.mark.parametrize("name", ["ddp.py", None])
def test_a_name_taken_twice_and_an_empty_site_are_refused(site: Path, name: str | None) -> None:
    if name:
        (site / "env" / name).write_text(SOUND)
    with pytest.raises(ConfigError, match="two checks are named ddp" if name else "contains no check"):
        discover(site)


def test_a_check_of_a_site_is_measured_and_judged(add: AddCheck, run_site: RunSite, site: Path) -> None:
    add("mine", "return {'rank': rank.rank, 'device': rank.device, 'backend': rank.backend, 'world': rank.world}")
    (site / "node" / "here.py").write_text(
        '"""Doc."""\nfrom envcheck.checks import Check, failed\nCHECK = Check(promise="p", level="quick")\n'
        "def judge(view):\n    return failed(view.mode, fix='get one')\n"
    )
    (site / "env" / "_helper.py").write_text("")
    outcomes = run_site().outcomes
    assert outcomes["mine"].ranks == [{"rank": r, "device": "cpu", "backend": "gloo", "world": 2} for r in (0, 1)]
    assert (outcomes["here"].status, outcomes["here"].summary) == ("fail", "cpu")


@each(("gpus", "nproc", "seconds"), [(None, 1, 7.0), (0, 1, 1.0), (0, 2, 5.0), (1, 2, 3.0), (2, 1, 7.0), (8, 1, 7.0)])
def test_a_plan_counts_no_time_for_what_a_machine_has_too_few_gpus_for(
    gpus: int | None, nproc: int, seconds: float
) -> None:
    checks = [
        check("anywhere", "quick", seconds=1.0, gpus=0),
        check("a-gpu", "quick", seconds=2.0),
        check("together", "quick", seconds=4.0, gpus=0, least_ranks=2),
    ]
    assert plan(checks, level="full", nproc=nproc, gpus=gpus).seconds == seconds


def told(identity: str, kind: Any = "env", **about: Any) -> CheckModule:
    return check_module(identity, kind, **{"seconds": 1.0, **about})


def test_the_order_is_the_written_one() -> None:
    chosen = [
        told("fast", performance=True, seconds=0.5),
        told("late", level="standard"),
        told("dear", seconds=9.0),
        told("cheap"),
        told("cheap-too"),
        told("node", "node", level="standard"),
    ]
    result = [f.id for f in most_telling_first(chosen)]
    assert result == ["node", "cheap", "cheap-too", "dear", "fast", "late"]


@each(
    ("spare", "fitting"),
    [
        (3.0, ["node", "a", "b"]),
        (2.9, ["node", "a"]),
        (10.0, ["node", "a", "b", "c"]),
        (9.9, ["node", "a", "b"]),
        (-1.0, ["node"]),
    ],
)
def test_a_plan_says_beforehand_what_it_expects_to_fit(spare: float, fitting: list[str]) -> None:
    chosen = [told("node", "node", seconds=99.0), told("a"), told("b", seconds=2.0), told("c", seconds=7.0)]
    assert expected_to_fit(plan(chosen, level="full", nproc=2, budget=STARTING + spare)) == fitting
    assert expected_to_fit(plan(chosen, level="full", nproc=2)) == ["node", "a", "b", "c"]


def test_what_came_before_counts_and_a_check_that_has_begun_is_finished(add: AddCheck, run_site: RunSite) -> None:
    add("a_longer_than_planned", "time.sleep(3.0)\nreturn {}", "ranks=1, seconds=0.1")
    add("b_after_it", "return {}", "ranks=1, seconds=0.1")
    outcomes = run_site(budget=2.5).outcomes
    assert [(o.status, o.left_out) for o in outcomes.values()] == [("pass", False), ("skip", True)]


CELL = Cell(torch="2.8.0", variant="cu128", python="3.12")


def test_the_shipped_lock_of_a_cell_is_known_by_its_digest() -> None:
    spec = load_spec(load(), CELL)
    image_spec = with_packages(spec.promises)
    assert sorted(image_spec["packages"].split()) == sorted(
        f"{p.name}=={p.version}" for k in spec.locks for p in k.pins
    )
    assert {key: value for key, value in image_spec.items() if key != "packages"} == spec.promises


@each(
    "promises",
    [
        {},
        {"cell": str(CELL)},
        {"cell": str(CELL), "lock": "0" * 64},
        {"cell": "../..", "lock": "x"},
        {"cell": "torch9.9.9-cpu-py311", "lock": "x"},
    ],
)
def test_any_other_lock_adds_nothing(promises: dict[str, str]) -> None:
    assert with_packages(promises) == promises


def test_what_a_target_is_made_of_is_known_whatever_its_lock() -> None:
    assert (
        with_packages({"target": "jupyter", "lock": "0" * 64})["target_packages"] == "ipykernel ipywidgets jupyterlab"
    )
    assert (
        "huggingface-hub" in with_packages({"target": "train", "packages": "torch==2.8.0"})["target_packages"].split()
    )
    for cuda, expected in (("13.0", True), ("none", False)):
        assert ("bitsandbytes" in with_packages({"target": "train", "cuda": cuda})["target_packages"]) is expected


def test_the_lock_of_arm64_and_one_that_a_build_made_are_known_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = load_spec(load(), Cell(torch="2.9.1", variant="cpu", python="3.11"), arch="aarch64")
    assert with_packages(arm.promises)["packages"] == arm.packages

    cell = Cell(torch="2.8.0", variant="cu128", python="3.12")
    made = load_spec(load(), Cell(torch="2.14.1", variant="cu130", python="3.12"), "train").locks[-1]
    shipped = load_spec(load(), cell)
    promises = {**shipped.promises, "target": "train", "lock": lockfile.digest([*shipped.locks, made])}
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path))
    assert "packages" not in with_packages(promises)
    write_locks(tmp_path / "images", cell, [made])
    assert set(shipped.packages.split()) < set(with_packages(promises)["packages"].split())
