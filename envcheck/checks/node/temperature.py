"""Hot at rest is throttled under load.

Seen in the wild: dust, a failed fan, a blanking panel left out. What is too hot differs by model and even by board, so
each GPU is asked for the distance to its own slowdown.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned
from envcheck.checks.node import _gpus

CHECK = Check(
    promise="every GPU is well below the temperature at which it slows down", level="quick", seconds=0.01, gpus=1
)

_OVER: Final = Limit(1, "C", "NVML: the GPU's own slowdown threshold")
_NEAR: Final = Limit(10, "C", "ours: leptonai/gpud keeps a margin to the GPU's own slowdown threshold too")
_FIX: Final = "look at fans, filters, inlet temperature and blanking panels"


def judge(view: View) -> Outcome:
    """Fail where the slowdown has begun, warn where it is near."""
    margin = _gpus.read(view, "temperature_margin")
    for limit, verdict in ((_OVER, failed), (_NEAR, warned)):
        hot = {gpu: degrees for gpu, degrees in margin.values.items() if not degrees >= limit.value}
        if hot:
            told, least = f"degrees left to the slowdown: {_gpus.told(hot, 'C')}", min(hot.values())
            return verdict(told, fix=_FIX, value=least, unit="C", limit=limit, gpus=_gpus.uuids(view, hot))
    lacking = margin.lacking()
    if lacking is not None:
        return lacking
    least = min(margin.values.values())
    return passed(f"at least {least} C below the slowdown", value=least, unit="C", limit=_NEAR)
