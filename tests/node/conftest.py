"""A stand-in for the `pynvml` module: one method per function that is asked, any of which may refuse."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


class NVMLError(Exception):
    """What nvidia-ml-py raises."""


class FakeNvml:
    """NVML with one H100, whose answers are `answers` by function name; a function in `refused` raises."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_NVLINK_MAX_LINKS = 4

    def __init__(self, refused: dict[str, str], **answers: Any) -> None:
        self.refused = refused
        self.answers = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlSystemGetDriverVersion": "570.124.06",
            "nvmlSystemGetCudaDriverVersion_v2": 12080,
            "nvmlSystemGetNVMLVersion": "12.570.124.06",
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30, used=1 << 30, free=79 << 30),
            "nvmlDeviceGetEnforcedPowerLimit": 700000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 700000,
            "nvmlDeviceGetPowerUsage": 71500,
            "nvmlDeviceGetClockInfo": 345,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetCurrPcieLinkGeneration": 1,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetEccMode": (1, 1),
            "nvmlDeviceGetMigMode": (0, 0),
            "nvmlDeviceGetPersistenceMode": 0,
            "nvmlDeviceGetTemperature": 33,
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:19:00.0"),
            "nvmlDeviceGetBrand": 14,
            "nvmlDeviceGetRemappedRows": (0, 1, 0, 0),
            "nvmlDeviceGetNvLinkState": 1,
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)
        return lambda *_arguments: self._answer(name)

    def _answer(self, name: str) -> Any:
        if name in self.refused:
            raise NVMLError(self.refused[name])
        return self.answers[name]


@pytest.fixture
def fake_nvml() -> Callable[..., FakeNvml]:
    """Build an NVML that refuses what `refused` names."""
    return lambda refused=None, **answers: FakeNvml(refused or {}, **answers)
