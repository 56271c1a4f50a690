"""One signal over all GPUs: who has a value, whose driver or model does not offer it, and where reading it failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from envcheck.checks import Outcome, View, skipped, undecided
from envcheck.node.snapshot import Gpu

# A GPU, a driver or an nvidia-ml-py that has no such thing to say. What it does not count is not 0.
_NOT_OFFERED: Final = ("Not Supported", "Function Not Found", "nvidia-ml-py:")


# No GPU has more of anything: bytes, errors, MHz.
_MOST: Final = 1e15
_SWITCHES: Final = ("ecc_mode", "mig_mode", "persistence")
_TEXTS: Final = ("name", "compute_capability", "compute_mode", "recovery_action", "vbios")
_LISTS: Final = {"clock_reasons": str, "nvlinks": str, "processes": dict}
_RECORDS: Final = ("ecc_sram", "retired_pages", "remapped_rows", "nvlink_errors", "fabric")


def plausible(name: str, value: Any) -> bool:
    """Return whether a value has its signal's shape: an edited or half-written snapshot must not pass for health."""
    if name in _SWITCHES:
        return value in ("on", "off")
    if name in _TEXTS:
        return isinstance(value, str) and bool(value)
    if name in _LISTS:
        return isinstance(value, list) and all(isinstance(entry, _LISTS[name]) for entry in value)
    if name in _RECORDS:
        return isinstance(value, dict)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and (0 if name != "temperature_margin" else -_MOST) <= value < _MOST


class Reading(NamedTuple):
    """What every GPU of a view said of one signal, by the GPU's label."""

    name: str
    values: dict[str, Any]
    silent: dict[str, str]
    unread: dict[str, str]

    def lacking(self) -> Outcome | None:
        """Return the outcome of a signal that could not be read everywhere, or that no GPU offers; None otherwise."""
        if self.unread:
            told = "; ".join(f"{gpu}: {why}" for gpu, why in sorted(self.unread.items())[:3])
            return undecided(f"{self.name} cannot be read: {told}", fix="look at `nvidia-smi -q` and `dmesg`")
        if not self.values:
            why = next(iter(self.silent.values()), "no GPU")
            return skipped(f"no GPU here tells its {self.name} ({why})")
        return None

    def where(self, holds: Callable[[Any], bool]) -> dict[str, Any]:
        """Return the values that something holds of, by GPU."""
        return {gpu: value for gpu, value in self.values.items() if holds(value)}


def label(gpu: Gpu) -> str:
    """Return what people call this GPU: "GPU 3", as nvidia-smi counts."""
    index = gpu.signal("index").value
    return gpu.uuid if index is None else f"GPU {index}"


def read(view: View, name: str) -> Reading:
    """Read one signal off every GPU."""
    values, silent, unread = {}, {}, {}
    for gpu in view.snapshot.gpus:
        signal = gpu.signal(name)
        if signal.value is not None and plausible(name, signal.value):
            values[label(gpu)] = signal.value
        elif signal.value is not None:
            unread[label(gpu)] = f"nonsense: {str(signal.value)[:40]}"
        elif any(word in (signal.reason or "") for word in _NOT_OFFERED):
            silent[label(gpu)] = signal.reason or ""
        else:
            unread[label(gpu)] = signal.reason or ""
    return Reading(name, values, silent, unread)


def uuids(view: View, labels: Iterable[str]) -> list[str]:
    """Return the UUIDs of the GPUs so labelled: an index changes, a UUID does not."""
    wanted = set(labels)
    return [gpu.uuid for gpu in view.snapshot.gpus if label(gpu) in wanted]


def at(view: View, slots: Iterable[object]) -> list[str]:
    """Return the UUIDs of the GPUs in these slots of the PCI bus."""
    wanted = {slot(one) for one in slots}
    return [gpu.uuid for gpu in view.snapshot.gpus if slot(gpu.signal("bus_id").value) in wanted]


def slot(bus_id: object) -> str:
    """Return NVML's 00000000:1B:00.0, the kernel's 0000:1b:00.0 and an Xid's 0000:1b:00 as the same."""
    domain, _, rest = str(bus_id).lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"


def told(values: dict[str, Any], unit: str = "") -> str:
    """Return "GPU 1 3 W, GPU 2 4 W", shortened where there are many."""
    parts = [f"{gpu} {value} {unit}".strip() for gpu, value in values.items()]
    return ", ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")  # noqa: PLR2004
