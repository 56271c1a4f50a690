"""nouveau, the free driver, takes a GPU before NVIDIA's own can, and CUDA does not run on it.

Seen in the wild: a kernel update whose initramfs forgot the blacklist, and half the GPUs gone after the reboot.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, undecided, warned

CHECK = Check(promise="nouveau is not loaded", level="quick", seconds=0.01, gpus=1, signals=("host.gpu_modules",))

_LIMIT: Final = Limit("not loaded", "", "NVIDIA/DCGM nvvs/src/Software.cpp: it refuses to run beside nouveau", "equal")


def judge(view: View) -> Outcome:
    """Warn where it is loaded beside NVIDIA's module; a GPU that it holds is missing in gpu-lost."""
    modules = view.snapshot.signal("host.gpu_modules").value
    if not isinstance(modules, list) or not all(isinstance(name, str) for name in modules):
        return undecided(f"host.gpu_modules is nonsense: {modules!r}")
    if "nouveau" in modules:
        fix = "blacklist nouveau (options nouveau modeset=0), rebuild the initramfs, reboot"
        return warned("nouveau is loaded beside NVIDIA's module", fix=fix, value="loaded", limit=_LIMIT)
    return passed("nouveau is not loaded", value="not loaded", limit=_LIMIT)
