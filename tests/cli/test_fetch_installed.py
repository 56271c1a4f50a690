"""`fetch CELL` of an envcheck that is installed from its wheel, far from any checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path


def test_the_locks_come_with_the_wheel(tmp_path: Path) -> None:
    top = Path(__file__).parents[2]
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=top, check=True, capture_output=True)
    with zipfile.ZipFile(next((tmp_path / "dist").glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    profile = tmp_path / "profile.yaml"
    profile.write_text(
        "name: t\nclosed: true\npypi: [{url: 'http://127.0.0.1:9'}]\npytorch: [{url: 'http://127.0.0.1:9'}]\n"
    )
    words = [sys.executable, "-m", "envcheck", "fetch", "torch2.13.0-cpu-py311", "--mirror", str(profile)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "no_proxy": "*"}
    completed = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 3, completed.stderr
    assert "no connection" in completed.stderr
    where = [sys.executable, "-c", "import envcheck; print(envcheck.__file__)"]
    assert (
        str(tmp_path)
        in subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    )
