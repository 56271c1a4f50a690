"""`envcheck watch` with real commands: exit codes and signals are the command's, whatever happens to the watcher."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.errors import ConfigError
from envcheck.watch.run_command import GpuSample, TreeSample, WatchRecord, page, summarize, thinned
from tests.tables import each
from tests.waiting import eventually

SIMULATE = Path(__file__).parents[1] / "simulated/simulate.py"
WATCH = [sys.executable, "-m", "envcheck", "watch", "--interval", "0.1s"]


def seen(output: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(output.read_text())
    return document


@each(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
def test_the_exit_code_is_the_commands(script: str, code: int) -> None:
    assert subprocess.run([*WATCH, "--", "sh", "-c", script], capture_output=True, check=False).returncode == code


def test_a_command_that_is_not_there_or_cannot_run_is_as_in_a_shell(tmp_path: Path) -> None:
    for name, code in (("no-such-command", 127), (str(tmp_path), 126)):
        completed = subprocess.run([*WATCH, "--", name], capture_output=True, text=True, check=False)
        assert (completed.returncode, completed.stderr.count("\n")) == (code, 1), completed.stderr
        assert "; give a program on PATH" in completed.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--interval 3601s", "is not between"),
        ("--interval 0.009s", "is not between"),
        ("-o same --html same", "--output and --html are both same"),
    ],
)
def test_wrong_options_start_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["watch", *words.split(), "--", "touch", "started"])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert not [*tmp_path.iterdir()]


def test_standard_output_is_the_commands_alone() -> None:
    completed = subprocess.run([*WATCH, "--json", "--", "echo", "-n", "x"], capture_output=True, text=True, check=False)
    assert completed.stdout == "x"
    assert json.loads(completed.stderr)["schema"] == "envcheck/watch/1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_reaches_the_command_which_decides(number: signal.Signals, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'exit 42' {number.name[3:]}; : > {ready}; while :; do sleep 0.05; done"
    running = subprocess.Popen([*WATCH, "--", "sh", "-c", script], stderr=subprocess.DEVNULL)
    assert eventually(ready.exists, expected=True)
    running.send_signal(number)
    assert running.wait(30) == 42


def test_memory_and_cores_of_the_whole_tree_are_seen(tmp_path: Path) -> None:
    work = "import time; x = bytearray(200 << 20); t = time.process_time()\nwhile time.process_time() - t < 1: pass"
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}], check=True)"
    output = tmp_path / "watch.json"
    subprocess.run([*WATCH, "-o", str(output), "--", sys.executable, "-c", inner], check=True, capture_output=True)
    samples = seen(output)["processes"]
    assert max(sample["rss"] for sample in samples) > 200 << 20
    assert max(sample["processes"] for sample in samples) == 2
    assert samples[-1]["cpu"] > 0.3
    assert seen(output)["exit_code"] == 0


def test_files_that_cannot_be_written_change_no_exit_code(tmp_path: Path) -> None:
    page = tmp_path / "removed/page.html"
    page.parent.mkdir()
    words = [*WATCH, "--html", str(page), "--", "rmdir", str(page.parent)]
    completed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert completed.returncode == 0
    assert f"{page}: No such file or directory" in completed.stderr


def watched(tmp_path: Path, library: str) -> tuple[int, str]:
    """Watch a command that ends with 5, with this library in the place of nvidia-ml-py."""
    met = tmp_path / "met"
    (tmp_path / "pynvml.py").write_text(f"open({str(met)!r}, 'w').close()\n{library}")
    code = "import runpy, sys\nfrom envcheck.node import collect\ncollect.find_library = lambda name, **_: name\n"
    code += "sys.argv = ['envcheck', *sys.argv[1:]]\nrunpy.run_module('envcheck', run_name='__main__')"
    command = [sys.executable, "-c", code, "watch", "--interval", "0.1s", "-o", str(tmp_path / "watch.json")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command += ["--", "sh", "-c", f"until [ -e {met} ]; do sleep 0.05; done; sleep 1; exit 5"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return completed.returncode, completed.stderr


def test_a_watcher_that_dies_is_said_and_the_command_goes_on(tmp_path: Path) -> None:
    code, errors = watched(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert (code, "GPUs are not watched any more: their process ended" in errors) == (5, True)


LOST = """
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(number):
    if number == 0: raise NVMLError("GPU is lost")
    return number
"""


def test_a_lost_gpu_hides_no_other(tmp_path: Path) -> None:
    code, errors = watched(tmp_path, LOST)
    assert (code, "not watched" in errors) == (5, False), errors
    assert {sample["index"] for sample in seen(tmp_path / "watch.json")["gpus"]} == {1}


def test_simulated_gpus_are_sampled_while_the_command_runs(tmp_path: Path) -> None:
    output = ["-o", str(tmp_path / "watch.json"), "--html", str(tmp_path / "page.html")]
    command = [sys.executable, str(SIMULATE), "watch", "--interval", "0.1s", *output, "--", "sleep", "1.5"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "SIMULATED_GPUS": "2"})
    gpus = seen(tmp_path / "watch.json")["gpus"]
    assert {sample["index"] for sample in gpus} == {0, 1}
    assert all(sample["memory_total"] > 0 and sample["power_draw"] is not None for sample in gpus)
    assert "GPU memory" in (tmp_path / "page.html").read_text()


GIB = 1 << 30


def gpu(at: float, index: int = 0, **values: object) -> GpuSample:
    memory = {"memory_used": 40.0 * GIB, "memory_total": 80.0 * GIB}
    state = {"utilization": 95.0, "power_draw": 600.0, "clock_sm": 1900.0, "temperature": 60.0, "reasons": (), "ecc": 0}
    return GpuSample(at=at, uuid=f"GPU-{index}", index=index, **{**memory, **state, **values})  # type: ignore[arg-type]


def record_of(gpus: list[GpuSample], cpu: float = 1.0, **values: object) -> WatchRecord:
    """Return a run of ten seconds on four cores, `cpu` of which were busy."""
    tree = [TreeSample(float(at), 2, GIB, at * cpu, at * 1000, 0) for at in range(11)]
    seen = WatchRecord(("python", "train.py"), 1_800_000_000.0, 10.0, 0, 4, gpus, tree, [], [])
    return seen._replace(**values)  # type: ignore[arg-type]


def lines(seen: WatchRecord) -> dict[str, tuple[str, str]]:
    return {line.what: (line.status, line.text) for line in summarize(seen)}


@each(("percent", "status"), [(80.0, "good"), (79.9, "low")])
def test_utilization_is_held_against_80_percent(percent: float, status: str) -> None:
    assert lines(record_of([gpu(at, utilization=percent) for at in range(10)]))["utilization"][0] == status


@each(("used", "status"), [(64.0, "good"), (64.1, "low")])
def test_free_memory_at_the_fullest_moment_is_held_against_20_percent(used: float, status: str) -> None:
    samples = [gpu(at, memory_used=(used if at == 5 else 10) * GIB) for at in range(10)]
    assert lines(record_of(samples))["memory"][0] == status


def test_a_sound_run_is_not_said_to_be_slowed() -> None:
    sound = record_of([gpu(at, index) for at in range(10) for index in (0, 1)])
    assert {*lines(sound)} == {"utilization", "memory", "processes", "disks"}


def test_what_slowed_the_run_is_named() -> None:
    hot = [gpu(at, reasons=("hardware thermal slowdown",) if at > 4 else ()) for at in range(10)]
    assert lines(record_of(hot))["clocks"] == ("low", "GPU 0: hardware thermal slowdown in 50% of the samples")
    idle = [gpu(at, index, utilization=95.0 * (index == 0)) for at in range(10) for index in (0, 1)]
    assert lines(record_of(idle))["idle"][1].startswith("GPU 1 did nothing")
    uneven = [gpu(at, index, utilization=95.0 - 30 * index) for at in range(10) for index in (0, 1)]
    assert lines(record_of(uneven))["uneven"][1].startswith("65 to 95 %")
    errors = [gpu(at, ecc=at // 5) for at in range(10)]
    assert lines(record_of(errors))["memory errors"][1] == "GPU 0: 1 uncorrected ECC error"
    xid = {"code": 79, "bus_id": "0000:01:00", "text": "GPU has fallen off the bus", "age": 3.0}
    assert "Xid 79 on 0000:01:00" in lines(record_of([gpu(0.0)], xids=[xid]))["Xid"][1]


@each(("cpu", "why"), [(3.9, "data loading on the CPU"), (1.0, "more DataLoader workers")])
def test_gpus_that_wait_are_explained_by_the_cores(cpu: float, why: str) -> None:
    seen = record_of([gpu(at, utilization=5.0 if at % 3 == 0 else 99.0) for at in range(10)], cpu=cpu)
    assert why in lines(seen)["waiting"][1]


def test_what_a_gpu_does_not_offer_is_no_goal_that_is_met() -> None:
    bare = [GpuSample(at=float(at), uuid="GPU-0", index=0) for at in range(5)]
    seen = record_of(bare)
    assert lines(seen)["utilization"][0] == "unknown"
    assert "memory" not in lines(seen)


def test_the_page_shows_each_series_and_no_markup_of_the_command() -> None:
    seen = record_of([gpu(float(at)) for at in range(5)], command=("sh", "-c", "<script>alert(1)</script>"))
    text = page(seen)
    assert text.count("<figure") == 8
    assert "<script" not in text
    assert len(thinned([(float(at), 1.0) for at in range(10_000)])) <= 400
