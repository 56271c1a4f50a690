"""Reading a node: this one, and small trees that look like others."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envcheck.node import collect, nvml, signal_source
from envcheck.node.signal_source import ReadTask, Source, SourceReading, whole
from envcheck.node.snapshot import Signal
from tests.builders import plant

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n"


@pytest.fixture
def gpu_node(tmp_path: Path, installed_nvml: Callable[..., Path]) -> Path:
    plant(tmp_path, {"proc/driver/nvidia/version": OPEN})
    for name in ("usr/lib/x86_64-linux-gnu/libnvidia-ml.so", "usr/lib/x86_64-linux-gnu/libcuda.so"):
        plant(tmp_path, {f"{name}.570.124.06": ""})
        (tmp_path / f"{name}.1").symlink_to(f"{name.rpartition('/')[2]}.570.124.06")
    (tmp_path / "dev/shm").mkdir(parents=True)  # of the tree under test
    installed_nvml()
    return tmp_path


def test_this_machine_is_read_and_every_signal_has_exactly_one_of_value_and_reason() -> None:
    snapshot = collect.collect()
    everything = [*snapshot.signals.items(), *(s for gpu in snapshot.gpus for s in gpu.signals.items())]
    assert [name for name, signal in everything if (signal.value is None) == (signal.reason is None)] == []
    assert snapshot.signal("host.memory_total").value > 0
    assert collect.sound(snapshot) == snapshot
    assert sorted(snapshot.signals.keys() - collect.NODE.keys()) == []
    msgspec.json.encode(snapshot)


def test_a_gpu_node_shows_driver_libraries_and_gpus(gpu_node: Path) -> None:
    snapshot = collect.collect(gpu_node, {})
    assert snapshot.signal("driver.version").value == "570.124.06"
    assert snapshot.signal("driver.kernel").value == "570.124.06"
    assert snapshot.signal("driver.kernel_flavour").value == "open"
    assert snapshot.signal("driver.library").value == "570.124.06"
    assert [gpu.signal("compute_capability").value for gpu in snapshot.gpus] == ["9.0"]


def test_identify_reads_only_what_resolving_needs(gpu_node: Path) -> None:
    snapshot = collect.identify(gpu_node, {})
    assert snapshot.signal("host.arch").value
    assert snapshot.signal("driver.cuda").value == "12.8"
    assert "memory_total" not in snapshot.gpus[0].signals
    assert "env" not in snapshot.signals


def test_the_loaders_path_comes_first(gpu_node: Path) -> None:
    plant(gpu_node, {"usr/local/cuda/compat/libcuda.so.580.65.06": ""})
    (gpu_node / "usr/local/cuda/compat/libcuda.so.1").symlink_to("libcuda.so.580.65.06")
    snapshot = collect.collect(gpu_node, {"LD_LIBRARY_PATH": "/nowhere:/usr/local/cuda/compat"})
    assert snapshot.signal("driver.libcuda").value == "580.65.06"


def test_without_the_library_nvml_is_not_even_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "ask", lambda _what: pytest.fail("asked"))
    snapshot = collect.collect(tmp_path, {})
    assert snapshot.gpus == []
    assert "not on the loader's path" in str(snapshot.signal("driver.version").reason)
    assert "No such file" in str(snapshot.signal("shm.total").reason)


def test_when_nvml_does_not_open_the_kernel_still_says_its_version(
    gpu_node: Path, installed_nvml: Callable[..., Path]
) -> None:
    installed_nvml({"nvmlInit": "Driver/library version mismatch"})
    snapshot = collect.collect(gpu_node, {})
    assert snapshot.signal("driver.version").value == "570.124.06"
    assert snapshot.signal("driver.cuda").reason == "NVML: Driver/library version mismatch"


def test_every_source_gives_the_signals_it_names_and_each_signal_has_one_source(tmp_path: Path) -> None:
    sources = collect.sources(tmp_path, {}), collect.sources(Path("/"), os.environ)
    for lane in (lane for node in sources for lane in node):
        assert [*lane.read().signals] == [*lane.types]
    names = [name for lane in sources[0] for name in lane.types]
    assert sorted(names) == sorted(collect.NODE.keys() - {"origin"})


def test_a_source_that_hangs_costs_its_own_signals_and_the_rest_of_the_node_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, {"proc/uptime": "7.5 1.0\n", "etc/hostname": ""})
    os.mkfifo(tmp_path / "etc/os-release")  # whoever opens it waits for somebody who writes
    home, over = tmp_path / "home", threading.Event()
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda at: over.wait() if at == home else usage(at))
    monkeypatch.setattr(signal_source, "TIMEOUT", 0.5)
    snapshot = collect.collect(tmp_path, {"HOME": "/home", "TMPDIR": "/etc"})
    over.set()
    with (tmp_path / "etc/os-release").open("w"):  # lets go of whoever waits for it
        late = {name for name, signal in snapshot.signals.items() if "timed out" in str(signal.reason)}
    assert late == {"host.os", "disk.home.free"}
    assert snapshot.signal("host.os").reason == "timed out: no answer in 0.5 s"
    assert snapshot.signal("disk.tmp.free").value > 0
    assert snapshot.signal("host.uptime").value == 7.5


def test_secrets_are_not_kept(tmp_path: Path) -> None:
    environ = {"HF_TOKEN": "hf_canary", "NCCL_P2P_DISABLE": "1", "TORCH_API_KEY": "canary", "HOME": "/root"}
    snapshot = collect.collect(tmp_path, environ)
    assert snapshot.signal("env").value == {"NCCL_P2P_DISABLE": "1"}
    assert "canary" not in str(msgspec.json.encode(snapshot))


def test_a_groups_own_limit_is_read_before_the_tops(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": "1073741824\n"})
    snapshot = collect.collect(tmp_path, {})
    assert snapshot.signal("container.memory_limit").value == 1 << 30


def source(read: Callable[[], Signal]) -> Source:
    return Source(whole, read, "here")


def value(number: int) -> Signal:
    return Signal(number, source="here")


def test_each_that_hangs_is_given_up_by_its_own_time_and_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(signal_source, "TIMEOUT", 60)

    def hangs() -> SourceReading:
        never.wait()
        return SourceReading({})

    hung = [ReadTask({f"h{number}": whole, f"also {number}": whole}, hangs, 0.2) for number in range(50)]
    signals = signal_source.read([*hung, *signal_source.each({"sound": source(lambda: value(1))})]).signals
    never.set()
    assert signals.pop("sound") == value(1)
    assert len(signals) == 100
    assert {signal.reason for signal in signals.values()} == {"timed out: no answer in 0.2 s"}


def test_a_source_that_breaks_is_a_reason_of_all_its_signals_and_of_no_other() -> None:
    def breaks() -> dict[str, Signal]:
        message = "4,3"
        raise ValueError(message)

    broken = signal_source.together({"a": whole, "b": whole}, breaks)
    signals = signal_source.read([broken, *signal_source.each({"c": source(lambda: value(1))})]).signals
    assert signals == {**dict.fromkeys("ab", Signal(reason="ValueError: 4,3", why="failed")), "c": value(1)}


def test_where_no_thread_is_to_be_had_all_is_read_nonetheless(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert signal_source.read(
        signal_source.each({"a": source(lambda: value(1)), "b": source(lambda: value(2))})
    ).signals["b"] == value(2)
