"""There are two kernel modules, open and proprietary, and not every GPU works with both.

Seen in the wild: a new Blackwell node with the proprietary module ("no devices were found"), and a V100 after an update
to a distribution that installs the open one by default.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, undecided, warned
from envcheck.checks.node import _gpus
from envcheck.matrix.versions import key

CHECK = Check(promise="the kernel module is one that drives these GPUs", level="quick", seconds=0.01, gpus=1)

_OPEN_FROM: Final = "7.5"
_OPEN_ONLY_FROM: Final = "10.0"
_SOURCE: Final = (
    "NVIDIA driver installation guide, kernel modules: open ones from Turing on; "
    "open only on Grace Hopper and Blackwell: general knowledge, its announcement was not at hand"
)


def judge(view: View) -> Outcome:
    """Warn on open below Turing and on proprietary from Blackwell on (and on Grace Hopper): it runs, unsupported."""
    flavour = view.snapshot.signal("driver.kernel_flavour")
    if flavour.value not in ("open", "proprietary", None):
        return undecided(f"driver.kernel_flavour is nonsense: {flavour.value!r}")
    capability, names = _gpus.read(view, "compute_capability"), _gpus.read(view, "name").values
    too_old = capability.where(lambda cc: key(str(cc)) < key(_OPEN_FROM))
    too_new = capability.where(lambda cc: key(str(cc)) >= key(_OPEN_ONLY_FROM))
    too_new |= {gpu: capability.values.get(gpu) for gpu, name in names.items() if "GH200" in str(name)}
    for needed, gpus in (("proprietary", too_old), ("open", too_new)):
        if gpus and flavour.value is None:
            return undecided(
                f"which module is loaded is unread ({flavour.reason}); {needed} is needed", fix="mount /proc"
            )
        if gpus and flavour.value != needed:
            why = f"{', '.join(names.get(gpu, gpu) for gpu in gpus)} needs the {needed} kernel module"
            limit = Limit(needed, "", _SOURCE, "equal")
            fix = f"install the driver's {needed} kernel modules"
            return warned(why, fix=fix, value=flavour.value, limit=limit, gpus=_gpus.uuids(view, gpus))
    said = flavour.value or "either would do"
    return capability.lacking() or passed(f"kernel module: {said}", value=said, limit=Limit("fitting", "", _SOURCE))
