"""Who else was on the GPUs before this run touched them: memory held, work done, and by whom as far as NVML tells."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from envcheck.checks import Limit, View
from envcheck.checks.readings import gpu_readings

HELD: Final = Limit(2 << 30, "B", "AMD-AGI/Primus node-smoke: at most 2 GiB in use before the first touch", "at most")
BUSY: Final = Limit(
    10, "%", "ours: a GPU that nobody computes on is at 0 %, one that draws a desktop at a few", "at most"
)


class GpuUser(NamedTuple):
    """Somebody on a GPU: its label and UUID, the bytes held and the share of time it worked (None: unknown), who."""

    gpu: str
    uuid: str
    held: float | None
    busy: float | None
    who: str

    def text(self) -> str:
        """Return "4711 (python) held 70.0 GiB on GPU 3"."""
        held = [] if self.held is None else [f"held {self.held / 2**30:.1f} GiB"]
        did = held if self.busy is None else [*held, f"kept it {self.busy:g} % busy"]
        return f"{self.who or 'a process not shown here'} {' and '.join(did)} on {self.gpu}"


def users(view: View) -> list[GpuUser]:
    """Return everybody who holds or does more than the limits allow; processes of other containers have no name."""
    held, busy = _over(view, "memory_used", HELD), _over(view, "utilization", BUSY)
    processes = gpu_readings.read(view, "processes").values
    labels = {gpu_readings.label(gpu): gpu.uuid for gpu in view.snapshot.gpus}
    return [
        GpuUser(label, uuid, held.get(label), busy.get(label), people(processes.get(label) or []))
        for label, uuid in labels.items()
        if label in held or label in busy
    ]


def _over(view: View, name: str, limit: Limit) -> dict[str, Any]:
    return gpu_readings.read(view, name).where(lambda value: not value <= limit.value)


def people(processes: list[dict[str, Any]]) -> str:
    """Return "4711 (python), 4712", the largest first, shortened where there are many."""
    with_pid = [process for process in processes if isinstance(process.get("pid"), int)]
    with_pid.sort(key=lambda process: -(process.get("memory") or 0))
    named = [f"{p['pid']} ({p['name']})" if p.get("name") else str(p["pid"]) for p in with_pid]
    return ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")  # noqa: PLR2004
