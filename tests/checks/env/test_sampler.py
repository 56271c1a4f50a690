"""A GPU asked through the driver's library, which is stood in for: values, units, what is not offered, what fails."""

import ctypes
import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.checks.support import sampler as hardware_sampler
from tests.tables import each
from tests.waiting import eventually

UUID = "GPU-00000000-1111-4000-8000-000000000000"
ANSWERS = {
    "nvmlDeviceGetClockInfo": 1755,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetPowerUsage": 698123,
    "nvmlDeviceGetEnforcedPowerLimit": 700000,
    "nvmlDeviceGetTemperature": 61,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
    "nvmlDeviceGetUtilizationRates": (99, 40),
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
}
TEXTS = {
    2: b"Invalid Argument",
    3: b"Not Supported",
    4: b"Insufficient Permissions",
    6: b"Not Found",
    13: b"Function Not Found",
    15: b"GPU is lost",
    21: b"No data",
    26: b"Deprecated",
}


def answering(value: Any, status: int = 0) -> Any:
    def call(_device: Any, *arguments: Any) -> int:
        if not status:
            filled = arguments[-1]._obj  # noqa: SLF001 (what byref() points at)
            if isinstance(value, tuple):
                filled[:] = value
            else:
                filled.value = value
        return status

    return call


def library(known: str = UUID, mig: int | None = None, **changes: Any) -> Any:
    """Return NVML as ctypes shows it; a change is a value, or the status that a function gives."""

    def find(name: bytes, device: Any) -> int:
        device._obj.value = 7  # noqa: SLF001 (as above)
        return 0 if name.decode() == known else 6

    data: dict[str, Any] = {name: answering(value) for name, value in ANSWERS.items()}
    data |= {
        "nvmlInit_v2": lambda: 0,
        "nvmlDeviceGetHandleByUUID": find,
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": answering(mig, 0 if mig is not None else 2),
        "nvmlErrorString": lambda status: TEXTS.get(status),  # noqa: PLW0108 (ctypes sets its restype)
    }
    return SimpleNamespace(**{**data, **changes})


def read(**changes: Any) -> dict[str, Any]:
    return hardware_sampler.Meter(library(**changes), (UUID,)).read()


def test_what_a_gpu_says_is_in_the_units_promised() -> None:
    assert read() == {
        "clock": 1755,
        "clock_max": 1980,
        "power": 698.1,
        "power_limit": 700.0,
        "temperature": 61,
        "reasons": ["software power cap"],
        "utilization": 99,
        "pcie_gen": 5,
        "pcie_width": 16,
    }


def test_an_older_driver_is_asked_by_the_older_name() -> None:
    old = library(nvmlDeviceGetCurrentClocksThrottleReasons=answering(0x48))
    del old.nvmlDeviceGetCurrentClocksEventReasons
    assert hardware_sampler.Meter(old, (UUID,)).read()["reasons"] == ["hardware slowdown", "hardware thermal slowdown"]


@each("status, why", [*((number, TEXTS[number].decode()) for number in (2, 3, 4, 13, 21, 26)), (999, "error 999")])
def test_what_is_not_offered_is_told_and_nothing_else_is_lost(status: int, why: str) -> None:
    gpu = hardware_sampler.Meter(library(nvmlDeviceGetPowerUsage=answering(0, status)), (UUID,))
    assert "power" not in gpu.read()
    assert gpu.not_offered == {"power": f"NVML: {why}"}
    assert len(gpu.read()) == len(ANSWERS) - 1


def test_a_gpu_that_fails_is_unreadable() -> None:
    with pytest.raises(hardware_sampler.UnreadableGpu, match="GPU is lost"):
        read(nvmlDeviceGetTemperature=answering(0, 15))
    with pytest.raises(hardware_sampler.UnreadableGpu, match="error 999"):
        read(nvmlInit_v2=lambda: 999)
    with pytest.raises(hardware_sampler.UnreadableGpu, match="Not Found"):
        hardware_sampler.Meter(library(), ("GPU-other", "MIG-other"))


def test_a_slice_is_asked_of_the_gpu_it_is_cut_from() -> None:
    requests = []

    def temperature(device: Any, *arguments: Any) -> int:
        requests.append(device.value)
        return int(answering(50)(device, *arguments))

    content = library(known="MIG-1", mig=9, nvmlDeviceGetTemperature=temperature)
    assert hardware_sampler.Meter(content, ("GPU-1", "MIG-1")).read()["temperature"] == 50
    assert requests == [9]


def test_names_and_codes_are_those_of_nvidia() -> None:
    pynvml = importlib.import_module("pynvml")
    for name in ANSWERS:
        assert hasattr(pynvml, name), name
    silent = ("INVALID_ARGUMENT", "NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "NO_DATA", "DEPRECATED")
    names = (*silent, "UNKNOWN")
    codes = {name: getattr(pynvml, f"NVML_ERROR_{name}") for name in (*names, "NOT_FOUND")}
    ours = vars(hardware_sampler)
    assert ours["_SILENT"] == tuple(codes[name] for name in names)
    assert (ours["_NOT_FOUND"], ours["_NO_FUNCTION"]) == (codes["NOT_FOUND"], codes["FUNCTION_NOT_FOUND"])
    assert (ours["_CLOCK_SM"], ours["_GPU_SENSOR"]) == (pynvml.NVML_CLOCK_SM, pynvml.NVML_TEMPERATURE_GPU)


def test_a_machine_without_the_library_says_what_a_container_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_sampler, "LIBRARY", "libnvidia-ml-that-is-not-there.so.1")
    with pytest.raises(hardware_sampler.UnreadableGpu, match="utility"):
        hardware_sampler.meter(UUID, 0)
    with hardware_sampler.Sampler(UUID, 0, 0.01) as sampler:
        pass
    assert "utility" in sampler.measured()["unread"]
    assert sampler.measured()["samples"] == []


def sampled(actual: Any, monkeypatch: pytest.MonkeyPatch, samples: int) -> dict[str, Any]:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: actual)
    with hardware_sampler.Sampler(UUID, 0, 0.01) as sampler:
        eventually(
            lambda: bool(sampler.measured()["unread"] or sampler.measured()["samples"][samples - 1 :]), expected=True
        )
    return sampler.measured()


def test_a_gpu_lost_under_load_is_the_reason_for_no_more_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    data = sampled(library(nvmlDeviceGetClockInfo=answering(0, 15)), monkeypatch, 1)
    assert data["unread"] == "NVML: GPU is lost"


def test_a_torch_that_tells_no_uuid_has_cuda_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def uuid(raw: Any, _device: Any) -> int:
        raw._obj[:] = bytes.fromhex("00000000111140008000000000000000")  # noqa: SLF001 (what byref() points at)
        return 0

    content = library()
    content.cuDeviceGet, content.cuDeviceGetUuid = lambda *_: 0, uuid
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: content)
    assert hardware_sampler.meter("node1/all/0", 0).read()["clock"] == 1755
    content.cuDeviceGet = lambda *_: 101
    with pytest.raises(hardware_sampler.UnreadableGpu, match="device 0"):
        hardware_sampler.meter("node1/all/0", 0)
