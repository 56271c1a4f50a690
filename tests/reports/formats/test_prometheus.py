"""The textfile form: what an alert can rely on, by the format's own grammar and by promtool."""

import re
import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.reports.formats.prometheus import prometheus
from envcheck.reports.model import load
from envcheck.runner.schema import Plan
from tests import builders
from tests.builders import report, row

REPORTS = sorted((Path(__file__).parents[2] / "data" / "reports").glob("*.json"))
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\n"])*",?)*)\})? (\S+)')


def samples(text: str) -> dict[str, float]:
    """Return every sample by its name and labels; HELP and TYPE stand once and before their family."""
    data: dict[str, float] = {}
    typed: list[str] = []
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            assert line.split()[2] not in typed
            continue
        if line.startswith("# TYPE "):
            typed.append(line.split()[2])
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert match[1] == typed[-1]
        key = f"{match[1]}{{{match[2] or ''}}}"
        assert key not in data
        data[key] = float(match[3])
    return data


SLOW = structs.replace(builders.SLOW, details={"gpu": "GPU-1"})


def test_statuses_are_a_set_of_which_one_is_set() -> None:
    data = samples(prometheus(report(row("a", "pass"), SLOW)))
    at = 'envcheck_check_status{{check="{}",level="quick",status="{}"}}'
    assert [data[at.format("nccl", s)] for s in ("pass", "warn", "fail", "skip", "error")] == [0, 0, 1, 0, 0]
    assert data[at.format("a", "pass")] == 1
    assert data['envcheck_run_verdict{verdict="fail"}'] == 1
    assert data['envcheck_run_verdict{verdict="pass"}'] == 0


def test_values_and_limits_are_in_base_units() -> None:
    data = samples(prometheus(report(SLOW, row("b", "pass", value=3, unit="wrong elements"))))
    assert data['envcheck_check_value_bytes_per_second{check="nccl"}'] == 312.5e9
    assert data['envcheck_check_limit_bytes_per_second{check="nccl",kind="at least"}'] == 380e9
    assert data['envcheck_check_value{check="b",unit="wrong elements"}'] == 3


def test_gpus_are_told_by_uuid_and_findings_name_theirs() -> None:
    gpus = [
        Gpu(f"GPU-{i}", {"power_draw": Signal(70.0, unit="W"), "clock_sm": Signal(reason="hidden", why="failed")})
        for i in (1, 2)
    ]
    data = samples(prometheus(report(SLOW, snapshot=Snapshot("", {}, gpus))))
    assert data['envcheck_gpu_power_draw_watts{uuid="GPU-1",gpu="0"}'] == 70
    assert data['envcheck_gpu_findings{uuid="GPU-1",gpu="0"}'] == 1
    assert data['envcheck_gpu_findings{uuid="GPU-2",gpu="1"}'] == 0
    assert not any("clock_sm" in name for name in data)


def test_a_check_that_never_ran_is_an_error_and_the_run_not_complete() -> None:
    whole = report(row("a", "pass"))
    plan = Plan(level="quick", checks=whole.plan.checks, nproc=2)
    data = samples(prometheus(report(plan=plan, ended="")))
    assert data['envcheck_check_status{check="a",level="quick",status="error"}'] == 1
    assert data["envcheck_run_complete{}"] == 0
    assert not any("end_timestamp" in name for name in data)


def test_labels_are_escaped() -> None:
    text = prometheus(report(row("a", "pass", value=1.0, unit='q"\\\n\x00')))
    assert r'envcheck_check_value{check="a",unit="q\"\\\n"} 1.0' in text.splitlines()


@pytest.mark.promtool
@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_promtool_finds_nothing_to_say_of_the_examples(path: Path, promtool: str) -> None:
    command = [promtool, "check", "metrics"]
    completed = subprocess.run(command, input=prometheus(load(path)), capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stdout + completed.stderr) == (0, "")
