"""A data-centre GPU shows the bus a window on its memory (BAR1); a small one leaves peers and network cards outside.

Seen in the wild: "Above 4G decoding" off in the BIOS, so that one board of eight gets 256 MiB; an L40S or A40 left in
its display mode. GeForce cards and the T4 have a small one by design: that is no fault.
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, passed, warned
from envcheck.checks.node import _facts, _gpus
from envcheck.matrix.gpus import find_gpu

CHECK = Check(
    promise="each GPU's BAR1 is as large as its model's can be, where that is known",
    level="quick",
    seconds=0.01,
    gpus=1,
)

_SOURCE: Final = "NVIDIA GPUDirect RDMA guide: memory is reached through BAR1, on data-centre boards as large as it"
_ALIKE: Final = "the other GPUs of this model in this node"
_FIX: Final = (
    "switch Above 4G decoding (large BARs) on in the BIOS; take boards with displays out of their display mode"
)
# Ampere and later boards for data centres; a T4 (7.5) has 256 MiB.
_SINCE: Final = (8, 0)


def judge(view: View) -> Outcome:
    """Warn of a GPU whose window is smaller than its like's, or than its memory on boards made for data centres."""
    sizes = _gpus.read(view, "bar1_total")
    lacking = sizes.lacking()
    if lacking is not None:
        return lacking
    memory, names = _gpus.read(view, "memory_total").values, _gpus.read(view, "name").values
    usual = {name: max(sizes.values[gpu] for gpu in sizes.values if names.get(gpu) == name) for name in names.values()}
    odd = {gpu: size for gpu, size in sizes.values.items() if size < usual.get(names.get(gpu), 0)}
    small = {gpu: size for gpu, size in sizes.values.items() if _large(view, gpu, names) and size < memory.get(gpu, 0)}
    for bad, bound, source in ((odd, usual, _ALIKE), (small, memory, _SOURCE)):
        if bad:
            limit = Limit(bound[next(iter(bad)) if bound is memory else names[next(iter(bad))]], "B", source)
            told = f"BAR1 is small: {_gpus.told(_mib(bad), 'MiB')}; {limit.value >> 20} MiB could be had"
            gpus = _gpus.uuids(view, bad)
            return warned(told, fix=_FIX, value=min(bad.values()), unit="B", limit=limit, gpus=gpus)
    least = min(sizes.values.values())
    return passed(f"at least {least >> 20} MiB", value=least, unit="B")


def _large(view: View, gpu: str, names: dict[str, Any]) -> bool:
    """Return whether this board's window covers its memory by design; a Grace's CPU reaches the memory by itself."""
    known = find_gpu(_facts.matrix(view), str(names.get(gpu)))
    capability = tuple(int(part) for part in known.cc.split(".")) if known else (0, 0)
    x86 = view.snapshot.signal("host.arch").value == "x86_64"
    return known is not None and known.datacenter and capability >= _SINCE and x86


def _mib(sizes: dict[str, Any]) -> dict[str, int]:
    return {gpu: int(size) >> 20 for gpu, size in sizes.items()}
