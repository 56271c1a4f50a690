"""What cuInit's return codes mean on a node, and what to do: torch shows them as one line of text, or not at all."""

from __future__ import annotations

from typing import Final, NamedTuple

from envcheck.checks import View


class CudaInitError(NamedTuple):
    """A code by its name in cuda.h (CUresult), what it means here, and the remedy."""

    name: str
    means: str
    fix: str


_COMPAT: Final = (
    "take cuda-compat out of the way of the driver's own libcuda: remove its directory from LD_LIBRARY_PATH and "
    "/etc/ld.so.conf.d, or the package; forward compatibility is for data-centre GPUs"
)
CODES: Final = {
    100: CudaInitError(
        "CUDA_ERROR_NO_DEVICE",
        "the driver shows this process no GPU",
        "in a container use --gpus all; look at CUDA_VISIBLE_DEVICES and at the rights of /dev/nvidia*",
    ),
    101: CudaInitError(
        "CUDA_ERROR_INVALID_DEVICE",
        "the driver refuses a GPU that is named",
        "look at CUDA_VISIBLE_DEVICES, and whether MIG was switched on without instances",
    ),
    802: CudaInitError(
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "the NVSwitch fabric is not set up yet",
        "start nvidia-fabricmanager of the driver's very version, and look at the check fabric",
    ),
    803: CudaInitError(
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "the loaded libcuda and the kernel module have different versions",
        "compare them (check driver-nvml); " + _COMPAT,
    ),
    804: CudaInitError(
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "a forward-compatibility libcuda was loaded on a GPU or driver that has no forward compatibility",
        _COMPAT,
    ),
    805: CudaInitError(
        "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "the MPS control daemon does not answer",
        "start nvidia-cuda-mps-control again, or unset CUDA_MPS_PIPE_DIRECTORY",
    ),
    999: CudaInitError(
        "CUDA_ERROR_UNKNOWN",
        "CUDA does not start, and does not know why",
        "look at `dmesg`; load nvidia_uvm (nvidia-modprobe -u), and after a suspend unload and load it again",
    ),
}
# What cudaGetErrorString says, and torch with it; the runtime numbers 802 to 804 as the driver does.
_TEXTS: Final = {
    "forward compatibility was attempted on non supported HW": 804,
    "unsupported display driver / cuda driver combination": 803,
    "system not yet initialized": 802,
    "Error 804": 804,
    "Error 803": 803,
    "Error 802": 802,
}


def code(view: View) -> int | None:
    """Return cuInit's code as the worker asked for it, else the one that torch's error text is of; None for neither."""
    cuinit = view.environment.get("cuinit")
    if isinstance(cuinit, int) and not isinstance(cuinit, bool) and cuinit:
        return cuinit
    text = str(view.environment.get("device_error") or "")
    return next((number for words, number in _TEXTS.items() if words in text), None)


def known(view: View) -> CudaInitError | None:
    """Return what is known of the code that cuInit ended with; None where it did not fail, or nobody knows it."""
    return CODES.get(code(view) or 0)
