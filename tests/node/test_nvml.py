"""What NVML refuses is a reason on that one signal, and never costs another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from envcheck.node import nvml

Fake = Callable[..., Any]


def test_every_query_has_its_value_with_its_unit(fake_nvml: Fake) -> None:
    signals, [gpu] = nvml.read(fake_nvml())
    assert {name for name, signal in gpu.signals.items() if signal.value is None} == set()
    assert {name for name, signal in signals.items() if signal.value is None} == set()
    assert signals["driver.cuda"].value == "12.8"
    assert gpu.uuid == "GPU-1"
    assert gpu.signal("name").value == "NVIDIA H100 80GB HBM3"
    assert (gpu.signal("power_draw").value, gpu.signal("power_draw").unit) == (71.5, "W")
    assert gpu.signal("nvlinks_active").value == 4
    assert gpu.signal("remapped_rows").value == {"correctable": 0, "uncorrectable": 1, "pending": 0, "failed": 0}


@pytest.mark.parametrize(
    ("function", "signal"),
    [
        ("nvmlDeviceGetRemappedRows", "remapped_rows"),
        ("nvmlDeviceGetMigMode", "mig_mode"),
        ("nvmlDeviceGetNvLinkState", "nvlinks_active"),
        ("nvmlDeviceGetName", "name"),
    ],
)
def test_one_refused_query_is_one_reason(fake_nvml: Fake, function: str, signal: str) -> None:
    _, [gpu] = nvml.read(fake_nvml({function: "Not Supported"}))
    assert gpu.signal(signal).reason == "NVML: Not Supported"
    assert [name for name, s in gpu.signals.items() if s.value is None] == [signal]


def test_a_function_newer_than_nvidia_ml_py_is_a_reason(fake_nvml: Fake) -> None:
    fake = fake_nvml()
    del fake.answers["nvmlDeviceGetRemappedRows"]
    _, [gpu] = nvml.read(fake)
    assert gpu.signal("remapped_rows").reason == "nvidia-ml-py: nvmlDeviceGetRemappedRows"


def test_an_nvml_that_does_not_open_says_why_everywhere(fake_nvml: Fake) -> None:
    signals, gpus = nvml.read(fake_nvml({"nvmlInit": "Driver/library version mismatch"}))
    assert gpus == []
    assert {signal.reason for signal in signals.values()} == {"NVML: Driver/library version mismatch"}


def test_a_lost_gpu_is_still_a_gpu(fake_nvml: Fake) -> None:
    signals, gpus = nvml.read(fake_nvml({"nvmlDeviceGetHandleByIndex": "GPU is lost"}, nvmlDeviceGetCount=2))
    assert signals["gpu.count"].value == 2
    assert [gpu.uuid for gpu in gpus] == ["lost-0", "lost-1"]
    assert gpus[1].signal("name").reason == "NVML: GPU is lost"


def test_an_uncounted_node_has_the_reason(fake_nvml: Fake) -> None:
    signals, gpus = nvml.read(fake_nvml({"nvmlDeviceGetCount": "Unknown Error"}))
    assert gpus == []
    assert signals["gpu.count"].reason == "NVML: Unknown Error"


def test_identity_asks_no_more_than_names(fake_nvml: Fake) -> None:
    _, [gpu] = nvml.read(fake_nvml(), nvml.IDENTITY)
    assert set(gpu.signals) == {"index", "name", "uuid", "compute_capability"}
