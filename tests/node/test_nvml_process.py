"""NVML is asked in another process: what that does to itself, or never does, is a reason here."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.node import nvml, subprocesses
from tests.waiting import eventually, runs

Install = Callable[..., Path]


def test_what_nvml_says_there_is_what_it_would_say_here(installed_nvml: Install, fake_nvml: Callable[..., Any]) -> None:
    installed_nvml({"nvmlDeviceGetMigMode": "Not Supported"})
    there, here = nvml.ask("all"), nvml.read(fake_nvml({"nvmlDeviceGetMigMode": "Not Supported"}))
    latency = there.signals.pop("nvml.latency"), here.signals.pop("nvml.latency")
    assert there.signals == here.signals
    assert [*there.gpus] == [*here.gpus]
    assert latency[0].value > 0
    assert latency[0].unit == latency[1].unit == "s"


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("os.abort()", "asking NVML: died of SIGABRT"),
        ("os._exit(7)", "asking NVML: exit code 7"),
        ("raise OSError('odd')", "asking NVML: exit code 1: OSError: odd"),
        ("print('hello')", "asking NVML: Expecting value"),
        ("raise ModuleNotFoundError(\"No module named 'pynvml'\")", "nvidia-ml-py: No module named 'pynvml'"),
    ],
)
def test_however_it_ends_there_it_is_a_reason_here(installed_nvml: Install, first: str, reason: str) -> None:
    installed_nvml(first=first)
    signals, gpus = nvml.ask("all")
    assert [*gpus] == []
    assert [*signals] == [*nvml.TYPES]
    assert {str(signal.reason)[: len(reason)] for signal in signals.values()} == {reason}


def test_a_driver_that_never_answers_is_a_reason_and_leaves_nothing_running(
    installed_nvml: Install, tmp_path: Path
) -> None:
    result = tmp_path / "pids"
    child = "subprocess.Popen(['sleep', '600'])"
    installed_nvml(
        first=f"print(os.getpid(), {child}.pid, file=open({str(result)!r}, 'w'), flush=True); time.sleep(600)"
    )
    signals, gpus = nvml.ask("identity", timeout=6.0)
    assert [*gpus] == []
    assert signals["driver.version"].reason == "NVML gave no answer in 6 s"
    assert not eventually(lambda: any(map(runs, result.read_text().split())), expected=False)


def test_a_module_that_lies_in_the_working_directory_is_not_imported(
    installed_nvml: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_nvml()
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    assert nvml.ask("identity").signals["driver.version"].value == "570.124.06"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it is left running
def test_what_no_signal_ends_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids, kill = tmp_path / "pid", os.killpg
    requests: list[tuple[int, int]] = []
    monkeypatch.setattr(subprocesses, "_GRACE", 0.05)
    monkeypatch.setattr(os, "killpg", lambda group, number: requests.append((group, number)))
    with pytest.raises(TimeoutError, match="no answer"):
        subprocesses.output(Path("/bin/sh"), "-c", f"trap '' INT; echo $$ > {pids}; exec sleep 600", timeout=2.0)
    assert [group for group, _ in requests] == [int(pids.read_text())]
    kill(*requests[0])
    os.waitpid(requests[0][0], 0)
