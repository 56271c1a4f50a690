"""Without persistence mode the driver lets go of an idle GPU, and whoever asks next waits while it wakes up.

Seen in the wild: seconds added to each start, nvidia-smi timeouts that monitoring takes for a dead GPU, and settings
(clocks, power limits, ECC counts) that are gone between two jobs.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, warned
from envcheck.checks.node import _facts, _gpus

CHECK = Check(promise="the driver stays loaded while the GPUs are idle", level="quick", seconds=0.01, gpus=1)

_LIMIT: Final = Limit("on", "", "NVIDIA driver persistence guide: run nvidia-persistenced", "equal")


def judge(view: View) -> Outcome:
    """Warn where it is off on a data-centre GPU; a desktop's display keeps the driver loaded anyway."""
    mode = _gpus.read(view, "persistence")
    off = mode.where(lambda word: word != "on")
    if off and _facts.datacenter(view) is not False:
        fix = "start nvidia-persistenced, on the host"
        return warned(f"off on {', '.join(off)}", fix=fix, value="off", limit=_LIMIT, gpus=_gpus.uuids(view, off))
    said = ", ".join(sorted(set(mode.values.values())))
    return mode.lacking() or passed(f"persistence mode: {said}", value=said, limit=_LIMIT)
