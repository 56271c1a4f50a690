"""Without peer memory every byte between a network card and a GPU makes a detour through host memory.

With the open kernel module and a kernel of 5.12 or newer DMA-BUF does the same as nvidia-peermem. That one does not
load without the peer memory of an OFED; /sys/kernel/mm/memory_peers, which newer ones lack, tells nothing
(deepseek-ai/DeepEP#151).
"""

import re

from envcheck.checks import Check, Limit, Outcome, View, matrix_facts, passed, skipped, warned
from envcheck.checks.gpu_readings import unreadable
from envcheck.checks.node.infiniband import active, ports

CHECK = Check("network cards can read and write the GPUs' memory", "quick", 0.01, gpus=1)

_MODULES = ("nvidia_peermem", "nv_peer_mem", "efa_nv_peermem")
_DMA_BUF = (5, 12)
_SOURCE = "NVIDIA GPUDirect RDMA documentation: nvidia-peermem, or the open kernel module with Linux 5.12 or newer"
_LIMIT = Limit("nvidia_peermem, or DMA-BUF", "", _SOURCE, "equal")
_FIX = "`modprobe nvidia-peermem` (after MLNX_OFED or DOCA), or the open kernel module on Linux >= 5.12"


def judge(view: View) -> Outcome:
    """Warn where data-centre GPUs sit beside active ports and neither way to their memory is open."""
    listed, modules = ports(view), view.snapshot.signal("host.gpu_modules")
    if isinstance(listed, Outcome):
        return listed
    if not any(map(active, listed)):
        return skipped("no InfiniBand or RoCE port is in use", code="infiniband.unused")
    if matrix_facts.datacenter(view) is False:
        text = "not every GPU here is a data-centre one, and others have no GPUDirect RDMA"
        return skipped(text, code="peer-memory.not-datacenter")
    kernel, flavour = (view.snapshot.signal(name).value for name in ("host.kernel", "driver.kernel_flavour"))
    numbers = re.match(r"(\d+)\.(\d+)", str(kernel))
    if flavour == "open" and numbers and (int(numbers[1]), int(numbers[2])) >= _DMA_BUF:
        return passed(f"DMA-BUF: the open kernel module on Linux {kernel}", value="DMA-BUF", limit=_LIMIT)
    if loaded := next((name for name in _MODULES if name in (modules.value or [])), None):
        return passed(f"{loaded} is loaded", value=loaded, limit=_LIMIT)
    hidden = unreadable(view, "host.gpu_modules", "mount /proc", ("unsupported",))
    text = f"no DMA-BUF with the {flavour or 'unknown'} kernel module on Linux {kernel}, and no nvidia_peermem"
    return hidden or warned(text, fix=_FIX, value="neither", limit=_LIMIT, code="peer-memory.none")
