"""Small checks of a site's own, run by real processes in this interpreter; none of them needs torch."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.node.snapshot import Snapshot
from envcheck.runner.execute import Run, Watcher, validate
from envcheck.runner.local_python import ChosenPython, LocalPython, Target
from envcheck.runner.planning import discover, plan
from envcheck.runner.schema import OutcomeRow
from envcheck.runner.worker_session import RunPlan

HEAD = '''"""Goes wrong in a test."""
import ctypes, faulthandler, json, os, signal, subprocess, sys, time
from envcheck.checks import Check, failed, passed, too_slow
CHECK = Check(promise="holds", level="quick", {options})
'''
JUDGE = """
def judge(view, ranks):
    return passed("all ranks spoke", value=len(ranks), unit="ranks")
"""

AddCheck = Callable[..., Path]
RunSite = Callable[..., Run]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site" / "env").mkdir(parents=True)
    (tmp_path / "site" / "node").mkdir()
    return tmp_path / "site"


@pytest.fixture
def add(site: Path) -> AddCheck:
    """Return what writes one env check into the site: its measure's body, its options, its judge."""

    def write(name: str, measure: str, options: str = "ranks=2, timeout=5", judge: str = JUDGE) -> Path:
        body = textwrap.indent(textwrap.dedent(measure).strip(), "    ")
        path = site / "env" / f"{name}.py"
        path.write_text(HEAD.format(options=options) + f"def measure(rank):\n{body}\n" + textwrap.dedent(judge))
        return path

    return write


@pytest.fixture
def run_site(site: Path) -> RunSite:
    def run(
        *,
        spawn: bool = False,
        require_gpu: bool = False,
        timeout: float | None = None,
        snapshot: Snapshot | None = None,
        target: Target | None = None,
        **choices: float,
    ) -> Run:
        chosen = [f for f in discover(site) if f.path.is_relative_to(site)]
        planned = plan(chosen, level="full", nproc=2, require_gpu=require_gpu, timeout=timeout, **choices)
        ours = target or LocalPython(ChosenPython(Path(sys.executable), "--python"))
        result = Run(RunPlan(plan=planned, chosen=chosen, target=ours, site=site, spawn=spawn))
        validate(result, lambda: snapshot or Snapshot(), Watcher(), pause=0.0)
        return result

    return run


@pytest.fixture
def outcome(add: AddCheck, run_site: RunSite) -> Callable[..., OutcomeRow]:
    """Return what runs one check with this measure, beside a sound one that must not suffer for it."""

    def run(measure: str, *, spawn: bool = False, **check: str) -> OutcomeRow:
        add("sabotaged", measure, **check)
        add("sound", "return {'rank': rank.rank}")
        actual = run_site(spawn=spawn).outcomes
        assert actual["sound"].status == "pass"
        assert actual["sound"].ranks == [{"rank": 0}, {"rank": 1}]
        return actual["sabotaged"]

    return run
