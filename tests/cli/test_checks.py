"""`envcheck checks`: the facts about each check, and that docs/checks.md and the limits agree with them."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from envcheck.checks import limits
from envcheck.cli import Settings
from envcheck.cli.commands.checks import MET, command, rows
from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.runner.planning import discover
from envcheck.runner.schema import OutcomeRow
from tests.builders import report, row, site_check
from tests.tables import each

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "checks.md"
SCRIPT = runpy.run_path(str(ROOT / ".ci/checks"))  # what `make checks` runs
GPUS = [Gpu("GPU-1", {"name": Signal("NVIDIA H200")})]
REAL = Snapshot("", {"origin": Signal("recorded")}, GPUS)


def listed_checks(*argv: str) -> str:
    result = CliRunner().invoke(command, argv, obj=Settings(None, verbose=False, quiet=False), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_page_of_checks_and_which_have_met_a_gpu_are_up_to_date() -> None:
    [table] = re.findall(r"(?s)<!-- checks -->\n\n(.*)\n<!-- /checks -->", PAGE.read_text(encoding="utf-8"))
    assert table == SCRIPT["markdown"](discover()), "run `make checks`"
    written = json.loads(MET.read_text(encoding="utf-8"))["met"]
    assert written == SCRIPT["met_in"](SCRIPT["recorded"]()), "run `make checks`"


def gemm(status: Any = "pass", kind: Any = "env", **more: Any) -> OutcomeRow:
    return row("gemm", status, kind=kind, **more)


@each(
    ("outcome", "facts", "met"),
    [
        (gemm(ranks=[{"is_cuda": True}]), {}, True),
        (gemm("fail", ranks=[{"is_cuda": True}]), {}, True),
        (gemm("warn", "node"), {}, True),
        (gemm("skip"), {}, False),
        (gemm("error"), {}, False),
        (gemm(ranks=[{"is_cuda": True}, {"is_cuda": False}]), {}, False),
        (gemm(), {"mode": "cpu"}, False),
        (gemm(), {"snapshot": Snapshot("", {"origin": Signal("made from documentation")}, GPUS)}, False),
        (gemm(), {"snapshot": Snapshot("", {}, GPUS)}, False),
        (gemm(), {"snapshot": Snapshot("", REAL.signals)}, False),
    ],
)
def test_what_counts_as_having_met_a_gpu(outcome: OutcomeRow, facts: dict[str, Any], met: Any) -> None:
    made = report(outcome, **{"snapshot": REAL, **facts})
    expected = {"check": "gemm", "gpu": "NVIDIA H200", "date": "2026-01-02", "report": "a.json"}
    assert SCRIPT["met_in"]([("a.json", made), ("b.json", made)]) == ([expected] if met else [])


def test_a_file_that_is_no_check_hides_no_other_check(tmp_path: Path) -> None:
    site_check(tmp_path / "node/my_sound.py", "passed('')")
    (tmp_path / "node/my_broken.py").write_text("def judge(:\n")
    settings = Settings(None, verbose=False, quiet=False)
    for more in ([], ["--json"]):
        argv = ["--checks", str(tmp_path), *more]
        result = CliRunner().invoke(command, argv, obj=settings, standalone_mode=False)
        assert result.return_value == 2
        assert "my-sound" in result.stdout
        assert "driver-cuda" in result.stdout
        assert f"envcheck: {tmp_path / 'node/my_broken.py'} cannot be imported: SyntaxError" in result.stderr


def test_a_level_holds_those_before_it() -> None:
    ids = [check["id"] for check in json.loads(listed_checks("--level", "static", "--json"))]
    assert ids == [actual.id for actual in discover() if actual.check.level == "static"]


def test_every_limit_belongs_to_a_check_that_tells_it() -> None:
    shown = {row["check"] for actual in discover() for row in rows(actual)}
    assert {row["check"] for row in limits.rows()} == shown, "name the row in the file of the check that judges by it"


def test_a_site_has_its_own_checks_told(tmp_path: Path) -> None:
    site_check(tmp_path / "node/ours.py", "passed('x')\nBOUND = Limit(3, 'W', 'the contract')")
    about = listed_checks("ours", "--checks", str(tmp_path))
    assert "runs on   node: data read from the node" in about
    assert "  at least 3 W\n    the contract\n" in about
