"""What NVML's C functions write for the simulated GPUs. Below nvidia-ml-py in envcheck, and below ctypes in a rank.

A structure with a version has to come with the one its size says, as the driver insists.
"""

# ruff: noqa: B905, SLF001 (ctypes keeps what byref points to in _obj)

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from . import gpu

GIB = 1 << 30
LINKS = 18
_INVALID_ARGUMENT, _NOT_SUPPORTED, _NOT_FOUND, _VERSION_MISMATCH = 2, 3, 6, 25
# nvmlFieldValue_t's: recovery action, and the speed of a link in MB/s.
FIELDS = {230: 0, 90: 26562}
_UNSIGNED = 1


class _RefusedCall(Exception):  # noqa: N818 (a return code on its way)
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _written(place: Any, value: Any) -> None:
    """Write to where ctypes.byref points, or into a buffer."""
    target = getattr(place, "_obj", place)
    if isinstance(value, dict):
        if "version" in {name for name, _ in target._fields_} and target.version & 0xFFFFFF != ctypes.sizeof(target):
            raise _RefusedCall(_VERSION_MISMATCH)
        for name, one in value.items():
            setattr(target, name, one)
    elif isinstance(value, tuple):
        ctypes.memmove(ctypes.addressof(target), (ctypes.c_uint * len(value))(*value), ctypes.sizeof(target))
    else:
        target.value = value


def _places(arguments: tuple[Any, ...]) -> list[Any]:
    return [a for a in arguments if hasattr(a, "_obj") or isinstance(a, ctypes.Array)]


def _gives(*values: Any) -> Callable[..., int]:
    """Return a C function that writes these through its pointers; a function among them is asked for the GPU's own."""

    def function(*arguments: Any) -> int:
        for place, value in zip(_places(arguments), values):
            _written(place, value(_number(arguments[0])) if callable(value) else value)
        return 0

    return function


def _number(device: Any) -> int:
    return int(ctypes.cast(device, ctypes.c_void_p).value or 1) - 1


def _put(place: Any, index: int) -> int:
    number = ctypes.c_void_p(index + 1)
    ctypes.memmove(ctypes.addressof(place._obj), ctypes.byref(number), ctypes.sizeof(number))
    return 0


def _by_index(index: Any, place: Any) -> int:
    return _put(place, index.value) if index.value < gpu.COUNT else _INVALID_ARGUMENT


def _by_uuid(name: Any, place: Any) -> int:
    text = getattr(name, "value", name)
    known = {gpu.uuid_of(i).encode(): i for i in range(gpu.COUNT)}
    return _put(place, known[text]) if text in known else _NOT_FOUND


def _link(_device: Any, link: Any, place: Any) -> int:
    if getattr(link, "value", link) >= LINKS or gpu.COUNT == 1:
        return _INVALID_ARGUMENT
    place._obj.value = 1
    return 0


def _fields(_device: Any, _count: Any, values: Any) -> int:
    for value in values._obj:
        value.nvmlReturn = 0 if value.fieldId in FIELDS else _NOT_SUPPORTED
        value.valueType, value.value.uiVal = _UNSIGNED, FIELDS.get(value.fieldId, 0)
    return 0


def _none(*arguments: Any) -> int:
    """Count no pages, no processes."""
    next(a for a in arguments if hasattr(a, "_obj"))._obj.value = 0
    return 0


def _refuses(*_: Any) -> int:
    return _NOT_SUPPORTED


def _fine(*_: Any) -> int:
    return 0


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nvmlInit_v2": _fine,
    "nvmlInitWithFlags": _fine,
    "nvmlShutdown": _fine,
    "nvmlErrorString": lambda _code: b"Simulated Error",
    "nvmlSystemGetDriverVersion": _gives(b"580.95.05"),
    "nvmlSystemGetCudaDriverVersion_v2": _gives(13000),
    "nvmlDeviceGetCount_v2": _gives(gpu.COUNT),
    "nvmlDeviceGetHandleByIndex_v2": _by_index,
    "nvmlDeviceGetHandleByUUID": _by_uuid,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": _refuses,
    "nvmlDeviceGetName": _gives(gpu.NAME.encode()),
    "nvmlDeviceGetUUID": _gives(lambda index: gpu.uuid_of(index).encode()),
    "nvmlDeviceGetCudaComputeCapability": _gives(*gpu.CAPABILITY),
    "nvmlDeviceGetMemoryInfo": _gives({"total": 80 * GIB, "used": GIB // 2, "free": 79 * GIB}),
    "nvmlDeviceGetEnforcedPowerLimit": _gives(700000),
    "nvmlDeviceGetPowerUsage": _gives(71500),
    "nvmlDeviceGetClockInfo": _gives(1980),
    "nvmlDeviceGetMaxClockInfo": _gives(1980),
    "nvmlDeviceGetCurrentClocksEventReasons": _gives(1),
    "nvmlDeviceGetCurrPcieLinkGeneration": _gives(5),
    "nvmlDeviceGetMaxPcieLinkGeneration": _gives(5),
    "nvmlDeviceGetCurrPcieLinkWidth": _gives(16),
    "nvmlDeviceGetMaxPcieLinkWidth": _gives(16),
    "nvmlDeviceGetEccMode": _gives(1, 1),
    "nvmlDeviceGetTotalEccErrors": _gives(0),
    "nvmlDeviceGetSramEccErrorStatus": _gives({"aggregateUncParity": 0, "bThresholdExceeded": 0}),
    "nvmlDeviceGetRemappedRows": _gives(0, 0, 0, 0),
    "nvmlDeviceGetFieldValues": _fields,
    "nvmlDeviceGetMigMode": _gives(0, 0),
    "nvmlDeviceGetPersistenceMode": _gives(1),
    "nvmlDeviceGetComputeRunningProcesses_v3": _none,
    "nvmlDeviceGetTemperature": _gives(31),
    "nvmlDeviceGetPciInfo_v3": _gives(lambda index: {"busId": f"00000000:{16 + index:02X}:00.0".encode()}),
    "nvmlDeviceGetVirtualizationMode": _gives(0),
    "nvmlDeviceGetNvLinkState": _link,
    "nvmlDeviceGetNvLinkErrorCounter": _gives(0),
    "nvmlDeviceGetNvLinkRemoteDeviceType": _gives(2),
    "nvmlDeviceGetP2PStatus": _gives(0),
    "nvmlDeviceGetTopologyCommonAncestor": _gives(20),
    "nvmlDeviceGetGpuFabricInfoV": _gives({"state": 3, "status": 0, "healthSummary": 1}),
}


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except _RefusedCall as refused:
            return refused.code

    return call


def library(busy: int = 0) -> SimpleNamespace:
    """Return what ctypes.CDLL("libnvidia-ml.so.1") would; the GPUs are `busy` %."""
    functions = {**FUNCTIONS, "nvmlDeviceGetUtilizationRates": _gives((busy, busy // 2))}
    return SimpleNamespace(**{name: _called(function) for name, function in functions.items()})


def install() -> None:
    real = ctypes.CDLL

    def load(name: Any, *args: Any, **kwargs: Any) -> Any:
        return library(busy=97) if name == "libnvidia-ml.so.1" else real(name, *args, **kwargs)

    ctypes.CDLL = load  # type: ignore[misc,assignment]
