"""Every benchmark still runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What a benchmark needs besides this checkout.
MARKS = {
    "collectives": pytest.mark.torch,
    "sound_extensions": pytest.mark.torch,
    "suite": pytest.mark.torch,
    "equal_builds": pytest.mark.engine,
    "images": pytest.mark.engine,
    "fetch": pytest.mark.tools,
    "registry": pytest.mark.tools,
}
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in NAMES])
def test_every_benchmark_runs_in_its_smallest_form(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    command = [sys.executable, str(ROOT / f"benchmarks/{name}.py"), "--smoke", "--json"]
    if MARKS.get(name) == pytest.mark.torch:
        option = "--cpu" if name == "sound_extensions" else "--python"
        command += [option, str(request.getfixturevalue("torch_python"))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr + completed.stdout
    assert json.loads(completed.stdout.splitlines()[-1] if name == "sound_extensions" else completed.stdout)
