"""One GPU's clocks, power, heat and reasons for slowing down, read while it works, from the driver's own library.

nvidia-ml-py need not be there: libnvidia-ml.so.1, which comes with the driver, is asked by ctypes.
"""

from __future__ import annotations

import ctypes
import threading
import time
import uuid
from types import TracebackType
from typing import Any, NamedTuple

from envcheck.checks import Measured
from envcheck.node.snapshot import clock_words

LIBRARY = "libnvidia-ml.so.1"
_NOT_FOUND, _NO_FUNCTION = 6, 13
# One reading is missing, which is no fault of the GPU: INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION (a slice's
# container may not ask the whole GPU everything), FUNCTION_NOT_FOUND, NO_DATA, DEPRECATED, UNKNOWN.
_SILENT = (2, 3, 4, _NO_FUNCTION, 21, 26, 999)
_CLOCK_SM, _GPU_SENSOR = 1, 0


class UnreadableGpu(RuntimeError):  # noqa: N818 (what it says of a GPU)
    """NVML could not be asked, or failed on something that this GPU has; the message says what and why."""


class _NotOffered(RuntimeError):  # noqa: N818
    """This GPU or driver does not offer the value, or not to this user."""


class _Quantity(NamedTuple):
    """What to ask: functions from new to old, what they fill in, and what one of it is in the unit we report."""

    functions: tuple[str, ...]
    fills: Any
    arguments: tuple[Any, ...] = ()
    scale: float = 1


# MHz, W, C, PCIe generation, lanes, %.
_QUANTITIES = {
    "clock": _Quantity(("nvmlDeviceGetClockInfo",), ctypes.c_uint, (_CLOCK_SM,)),
    "clock_max": _Quantity(("nvmlDeviceGetMaxClockInfo",), ctypes.c_uint, (_CLOCK_SM,)),
    "power": _Quantity(("nvmlDeviceGetPowerUsage",), ctypes.c_uint, (), 0.001),
    "power_limit": _Quantity(("nvmlDeviceGetEnforcedPowerLimit",), ctypes.c_uint, (), 0.001),
    "temperature": _Quantity(("nvmlDeviceGetTemperature",), ctypes.c_uint, (_GPU_SENSOR,)),
    "reasons": _Quantity(
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), ctypes.c_ulonglong
    ),
    "pcie_gen": _Quantity(("nvmlDeviceGetCurrPcieLinkGeneration",), ctypes.c_uint),
    "pcie_width": _Quantity(("nvmlDeviceGetCurrPcieLinkWidth",), ctypes.c_uint),
    # struct nvmlUtilization_t {unsigned int gpu, memory}
    "utilization": _Quantity(("nvmlDeviceGetUtilizationRates",), ctypes.c_uint * 2),
}


class Meter:
    """One GPU as NVML shows it. `not_offered` says of each quantity that it lacks why."""

    def __init__(self, library: Any, names: tuple[str, ...]) -> None:
        """Find the GPU by any of its names (UUIDs). Raises Unreadable."""
        self._library, self.not_offered = library, dict[str, str]()
        status = library.nvmlInit_v2()
        if status:
            raise UnreadableGpu(self._text(status))
        self._device = self._find(names)

    def read(self) -> Measured:
        """Return every quantity that this GPU offers, as it is now. Raises Unreadable."""
        summary: Measured = {}
        for name, quantity in _QUANTITIES.items():
            try:
                raw = self._ask(quantity)
            except _NotOffered as error:
                self.not_offered[name] = str(error)
                continue
            number = raw[0] if name == "utilization" else raw.value
            summary[name] = clock_words(number) if name == "reasons" else round(number * quantity.scale, 1)
        return summary

    def _ask(self, quantity: _Quantity) -> Any:
        for function in quantity.functions:
            filled = quantity.fills()
            call = getattr(self._library, function, None)
            status = call(self._device, *quantity.arguments, ctypes.byref(filled)) if call else _NO_FUNCTION
            if not status:
                return filled
            if status != _NO_FUNCTION:
                break
        raise (_NotOffered if status in _SILENT else UnreadableGpu)(self._text(status))

    def _find(self, names: tuple[str, ...]) -> Any:
        device, status = ctypes.c_void_p(), _NOT_FOUND
        for name in names:
            status = self._library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(device))
            if not status:
                return self._complete_reading(device)
        message = f"{names[0] if names else 'no UUID'}: {self._text(status)}"
        raise UnreadableGpu(message)

    def _complete_reading(self, device: Any) -> Any:
        """Return the GPU that a MIG slice is cut from: a slice has no clock, power or heat of its own."""
        parent = ctypes.c_void_p()
        find = getattr(self._library, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", None)
        return parent if find and not find(device, ctypes.byref(parent)) else device

    def _text(self, status: int) -> str:
        say = self._library.nvmlErrorString
        say.restype = ctypes.c_char_p
        message: bytes | None = say(status)
        return f"NVML: {message.decode() if message else f'error {status}'}"


def meter(identity: str, ordinal: int) -> Meter:
    """Return the meter of the GPU of this UUID, or (torch before 2.4) of CUDA's `ordinal`-th; raises Unreadable."""
    try:
        library = ctypes.CDLL(LIBRARY)
        bare = identity[4:] if identity.startswith(("GPU-", "MIG-")) else _cuda_uuid(ordinal)
    except (OSError, AttributeError) as error:
        message = f"{error} (a container needs NVIDIA_DRIVER_CAPABILITIES with utility)"
        raise UnreadableGpu(message) from None
    return Meter(library, (f"GPU-{bare}", f"MIG-{bare}"))


def _cuda_uuid(ordinal: int) -> str:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or cuda.cuDeviceGetUuid(ctypes.byref(raw), device):
        message = f"CUDA does not tell the UUID of its device {ordinal}"
        raise UnreadableGpu(message)
    return str(uuid.UUID(bytes=bytes(raw)))


class Sampler:
    """Samples of one GPU, taken by a thread every `interval` seconds while the block runs."""

    def __init__(self, identity: str, ordinal: int, interval: float = 1.0) -> None:
        self._gpu, self._interval = (identity, ordinal), interval
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._result: Measured = {"samples": [], "unread": None, "not_offered": {}}

    def __enter__(self) -> Sampler:  # noqa: PYI034 (typing.Self is newer than the oldest Python here)
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; a thread that hangs in the driver is left alone."""
        self._over.set()
        self._thread.join(5 * self._interval)

    def measured(self) -> Measured:
        """Return the samples (`at` in seconds from the start), why there are no more, and what this GPU never tells."""
        return {**self._result, "samples": list(self._result["samples"])}

    def _watch(self) -> None:
        began = time.monotonic()
        try:
            gpu = meter(*self._gpu)
            while not self._over.wait(self._interval):
                self._result["samples"].append({"at": round(time.monotonic() - began, 2), **gpu.read()})
                self._result["not_offered"] = dict(gpu.not_offered)
        except UnreadableGpu as error:
            self._result["unread"] = str(error)
