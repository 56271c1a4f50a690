"""A data-centre GPU shows the bus a window on its memory (BAR1); a small one leaves peers and network cards outside.

GeForce cards and the T4 have a small one by design: that is no fault.
"""

from envcheck.checks import Check, Limit, Outcome, View, matrix_facts, passed, warned, worst
from envcheck.checks.gpu_readings import Rule, read
from envcheck.matrix.facts.lookup import find_gpu

CHECK = Check("each GPU's BAR1 is as large as its model's can be, where that is known", "quick", 0.01, gpus=1)

_SOURCE = "NVIDIA GPUDirect RDMA guide: memory is reached through BAR1, on data-centre boards as large as it"
_ALIKE = "the other GPUs of this model in this node"
_FIX = "switch Above 4G decoding (large BARs) on in the BIOS; take boards with displays out of their display mode"
# Ampere and later boards for data centres; a T4 (7.5) has 256 MiB.
_SINCE = (8, 0)


def judge(view: View) -> Outcome:
    """Warn of a GPU whose window is smaller than its like's, or than its memory on boards made for data centres."""
    sizes, memory, names = read(view, "bar1_total"), read(view, "memory_total").values, read(view, "name").values
    usual = {name: max(sizes.values.get(gpu, 0) for gpu in names if names[gpu] == name) for name in names.values()}
    alike = {gpu: usual.get(names.get(gpu), 0) for gpu in sizes.values}
    odd = {gpu: size for gpu, size in sizes.values.items() if size < alike[gpu]}
    less = {gpu: size for gpu, size in sizes.values.items() if gpu not in odd and size < memory.get(gpu, 0)}
    small = {gpu: size for gpu, size in less.items() if _large(view, str(names.get(gpu)))}
    findings = [
        *sizes.lacking(),
        *sizes.blame(odd, lambda gpu: _rule("bar1.odd", odd[gpu], alike[gpu], _ALIKE)),
        *sizes.blame(small, lambda gpu: _rule("bar1.small", small[gpu], memory[gpu], _SOURCE)),
    ]
    least = min(sizes.values.values(), default=0)
    return worst(findings, sizes.absent() or passed(f"at least {int(least) >> 20} MiB", value=least, unit="B"))


def _rule(code: str, size: float, bound: float, source: str) -> Rule:
    text = f"BAR1 is small: {{gpu}} {int(size) >> 20} MiB; {int(bound) >> 20} MiB could be had"
    return Rule(warned, code, text, _FIX, Limit(bound, "B", source))


def _large(view: View, name: str) -> bool:
    """Return whether the window is as meant: Grace's CPU reaches the memory itself, and a vGPU's host chose it."""
    row = find_gpu(matrix_facts.matrix(view), name)
    if row is None or not row.datacenter or tuple(map(int, row.cc.split("."))) < _SINCE:
        return False
    shared = any(device.signal("virtualization").value == "vgpu" for device in view.snapshot.gpus)
    return view.snapshot.signal("host.arch").value == "x86_64" and not shared and not matrix_facts.wsl(view)
