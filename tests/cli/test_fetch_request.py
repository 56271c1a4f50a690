"""What `fetch CELL` asks for, also when envcheck is installed from its wheel, far from any checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import types
import zipfile
from pathlib import Path

import pytest

from envcheck.cli import Settings, sources
from envcheck.cli.shared import process
from envcheck.cli.sources import locked_cells
from envcheck.data import data_path
from envcheck.errors import ConfigError
from envcheck.images.lockfile import read_locks
from envcheck.images.targets import SHARED_GROUPS
from envcheck.matrix.facts.model import HostArch
from envcheck.mirrors import probe
from envcheck.mirrors.profiles.model import Profile

SETTINGS = Settings(None, verbose=False, quiet=False)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_a_cell_is_its_files_for_this_machine(monkeypatch: pytest.MonkeyPatch, arch: HostArch) -> None:
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(machine=arch))
    (cell,) = locked_cells(SETTINGS, "torch2.10.0-cpu-py311", one=True)
    assert cell.locks == read_locks(data_path("images") / "torch2.10.0-cpu-py311", SHARED_GROUPS, arch)


def test_a_cell_without_a_lock_for_this_machine_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(machine="aarch64"))
    with pytest.raises(ConfigError, match=r"has no lock for aarch64; run `envcheck lock \S+ --arch aarch64`"):
        locked_cells(SETTINGS, "torch2.13.0-cpu-py311", one=False)


def test_the_locks_come_with_the_wheel(tmp_path: Path) -> None:
    top = Path(__file__).parents[2]
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=top, check=True, capture_output=True)
    [file] = (tmp_path / "dist").iterdir()
    assert file.name.startswith("torch_envcheck-")
    with zipfile.ZipFile(file) as wheel:
        wheel.extractall(tmp_path / "site")
    [info] = (tmp_path / "site").glob("*.dist-info")
    programs = (info / "entry_points.txt").read_text().splitlines()
    assert {f"{name} = envcheck.__main__:main" for name in ("envcheck", "torch-envcheck")} <= {*programs}
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


def test_a_fetch_into_the_store_says_its_bytes_every_five_seconds_in_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(sources, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    with sources.transfer_options(SETTINGS, Profile(name="none")) as means_of:
        means = means_of("torch.whl")
        for now[0], there in ((4.9, 1), (5.0, 2_000_000), (9.9, 3_000_000), (10.0, 8_000_000)):
            means.progress(there, 9_000_000)
    told = ["  torch.whl", "  ... 2.0 MB of 9.0 MB", "  ... 8.0 MB of 9.0 MB"]
    assert capsys.readouterr().err.splitlines() == told


@pytest.mark.parametrize("quiet", [False, True])
def test_a_probe_before_a_build_is_not_silent_for_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, quiet: bool
) -> None:
    monkeypatch.setattr(process, "SILENT", 0.02)
    monkeypatch.setattr(probe, "default_mirrors", list)
    monkeypatch.setattr(probe, "choose", lambda *_: (threading.Event().wait(0.15), (Profile(name="best"), []))[1])
    assert sources.probed_profile(Settings(None, verbose=False, quiet=quiet), []).name == "best"
    assert ("  ... mirrors are probed, 0 s\n" in capsys.readouterr().err) == (not quiet)
