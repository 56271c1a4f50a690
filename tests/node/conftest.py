"""A stand-in for the `pynvml` module: one method per function that is asked, any of which may refuse."""

import ctypes
import inspect
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.node import nvml
from envcheck.node.signal_source import Source
from envcheck.node.snapshot import Signal

# nvmlReturn_t, by the texts that the tests have NVML refuse with.
CODES = {
    "Invalid Argument": 2,
    "Not Supported": 3,
    "Insufficient Permissions": 4,
    "Function Not Found": 13,
    "Corrupted infoROM": 14,
    "GPU is lost": 15,
    "GPU requires restart": 16,
    "Driver/library version mismatch": 18,
    "No Data": 21,
    "Argument Version Mismatch": 25,
    "Unknown Error": 999,
}
TEXTS = {code: text for text, code in CODES.items()}


# Every name of NVML's that a row or a reader asks for.
ASKED = frozenset(name for name in re.findall(r"\b(?:nvml|n)\.((?:c_)?(?:nvml|NVML)\w+)", inspect.getsource(nvml)))


class NVMLError(Exception):
    """What nvidia-ml-py raises: made of a code, or here of the text that belongs to it."""

    def __init__(self, what: int | str) -> None:
        self.value = CODES[what] if isinstance(what, str) else what
        super().__init__(TEXTS[self.value])


class Structure(ctypes.Structure):
    """What NVML fills in where it is given a place to write to."""

    _fields_ = (
        ("aggregateUncParity", ctypes.c_ulonglong),
        ("aggregateUncSecDed", ctypes.c_ulonglong),
        ("bThresholdExceeded", ctypes.c_uint),
        ("state", ctypes.c_uint),
        ("status", ctypes.c_uint),
        ("healthSummary", ctypes.c_uint8),
        ("clusterUuid", ctypes.c_ubyte * 16),
        ("cliqueId", ctypes.c_uint),
    )


class Older(ctypes.Structure):
    """The fabric's structure before it had a summary of its health."""

    _fields_ = (
        ("clusterUuid", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint),
        ("state", ctypes.c_uint),
    )


def filled(**values: int | tuple[int, ...]) -> Callable[..., int]:
    """Return a function of NVML that writes `values` where its last argument points to."""

    def write(*arguments: Any) -> int:
        place = arguments[-1]._obj  # noqa: SLF001 (what ctypes.byref was given)
        for name, value in values.items():
            setattr(place, name, value)
        return 0

    return write


def field(value: int = 0, code: int = 0) -> SimpleNamespace:
    return SimpleNamespace(nvmlReturn=code, valueType=1, value=SimpleNamespace(uiVal=value))


class FakeNvml:
    """NVML with one H100, whose answers are `answers` by function name; a function in `refused` raises."""

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 4
    NVML_VALUE_TYPE_UNSIGNED_INT = 1
    c_nvmlEccSramErrorStatus_v1_t = Structure  # noqa: N815 (NVML's name)
    c_nvmlGpuFabricInfo_v3_t = Structure  # noqa: N815 (NVML's name)
    c_nvmlGpuFabricInfo_v2_t = Older  # noqa: N815 (NVML's name)
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3

    def __init__(self, refused: dict[str, str], **answers: Any) -> None:
        self.refused = refused
        # A row's function that is not below answers 0: a new row needs an answer here only where it wants another.
        self.answers = {
            **{name: 0 for name in ASKED if name.startswith("nvml")},
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlSystemGetDriverVersion": "570.124.06",
            "nvmlSystemGetCudaDriverVersion_v2": 12080,
            "nvmlSystemGetNVMLVersion": "12.570.124.06",
            "nvmlSystemGetConfComputeState": SimpleNamespace(ccFeature=0),
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30, used=1 << 30, free=79 << 30),
            "nvmlDeviceGetPowerUsage": 71500,
            "nvmlDeviceGetEccMode": (1, 1),
            "nvmlDeviceGetMigMode": (0, 0),
            "nvmlDeviceGetTemperature": 33,
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:19:00.0"),
            "nvmlDeviceGetRemappedRows": (0, 1, 0, 0),
            "nvmlDeviceGetNvLinkState": 1,
            "nvmlDeviceGetNvLinkErrorCounter": 2,
            "nvmlDeviceGetBAR1MemoryInfo": SimpleNamespace(bar1Total=128 << 30),
            "nvmlDeviceGetRetiredPages": [],
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
            "nvmlDeviceGetVbiosVersion": "96.00.74.00.01",
            "nvmlDeviceGetGridLicensableFeatures_v4": SimpleNamespace(
                licensableFeaturesCount=1,
                gridLicensableFeatures=[SimpleNamespace(featureState=1), SimpleNamespace(featureState=0)],
            ),
            "nvmlDeviceGetRepairStatus": [0, 1],
            "nvmlDeviceGetRowRemapperHistogram": SimpleNamespace(max=638, high=1, partial=0, low=0, none=1),
            "nvmlDeviceGetFieldValues": [field()],
            "nvmlDeviceGetSramEccErrorStatus": filled(aggregateUncSecDed=1, aggregateUncParity=2),
            "nvmlDeviceGetGpuFabricInfoV": filled(
                state=3, status=0, healthSummary=1, clusterUuid=(0,) * 15 + (7,), cliqueId=32766
            ),
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML_"):
            return 0
        if name not in self.answers:
            raise AttributeError(name)
        return lambda *arguments: self._answer(name, arguments)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name in self.refused:
            raise NVMLError(self.refused[name])
        answer = self.answers[name]
        return answer(*arguments) if callable(answer) else answer


def read(sources: Mapping[str, Source]) -> dict[str, Signal]:
    """Read them one after the other."""
    return {name: source.signal() for name, source in sources.items()}


@pytest.fixture
def fake_nvml() -> Callable[..., FakeNvml]:
    """Return what builds an NVML that refuses what `refused` names."""
    return lambda refused=None, **answers: FakeNvml(refused or {}, **answers)


# A module `pynvml` for another process: what this file's FakeNvml answers, with `refused`, after `first` has run.
PYNVML = """
import importlib.util, os, subprocess, time
{first}
spec = importlib.util.spec_from_file_location("fake", {here!r})
fake = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fake)
nvml = fake.FakeNvml({refused!r})
def __getattr__(name):
    return getattr(nvml, name)
"""


@pytest.fixture
def installed_nvml(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return what has every Python that is started import a fake nvidia-ml-py; `first` is what that does first."""
    place = tmp_path_factory.mktemp("pynvml")
    monkeypatch.setenv("PYTHONPATH", str(place) + os.pathsep + os.environ.get("PYTHONPATH", ""))

    def install(refused: dict[str, str] | None = None, first: str = "") -> Path:
        code = PYNVML.format(first=first, here=__file__, refused=refused or {})
        (place / "pynvml.py").write_text(code)
        return place

    return install
