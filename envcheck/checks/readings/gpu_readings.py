"""One signal of all GPUs: who has a value, who does not offer it, where reading failed; and findings about each GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from envcheck.checks import Limit, Outcome, View, skipped, undecided
from envcheck.counting import counted
from envcheck.node.nvml_queries import TYPES
from envcheck.node.snapshot import Gpu, Signal

# The envcheck, the user or the driver of a snapshot that lacks what only newer drivers report.
_NOT_KNOWN: Final = ("not-collected", "denied", "no-data")


class Reading(NamedTuple):
    """One signal of every GPU, by the GPU's label: its value, that it has none to offer, or why it is unread."""

    name: str
    values: dict[str, Any]
    silent: dict[str, str]
    unread: dict[str, str]
    view: View

    def lacking(self) -> list[Outcome]:
        """Return one error for each GPU whose signal could not be read, but a skip where gpu-lost fails for the GPU."""
        return [
            skipped(
                f"{gpu} is lost (see gpu-lost)",
                culprit=culprit(self.view, gpu),
                gpus=uuids(self.view, [gpu]),
                code="gpu.lost",
            )
            for gpu in sorted(self.lost)
        ] + [
            undecided(
                f"{self.name} cannot be read: {gpu}: {why}",
                fix="look at `nvidia-smi -q` and `dmesg`",
                code=f"{self.name.replace('_', '-')}.unread",
                culprit=culprit(self.view, gpu),
                gpus=uuids(self.view, [gpu]),
            )
            for gpu, why in sorted(self.unread.items())
            if gpu not in self.lost
        ]

    @property
    def lost(self) -> set[str]:
        """Return the GPUs without a value for which the check gpu-lost fails."""
        return {label(gpu) for gpu in self.view.snapshot.gpus if lost(gpu)} & self.unread.keys()

    def absent(self) -> Outcome | None:
        """Return the skip of a signal that no GPU offers; None where at least one has a value."""
        if self.values:
            return None
        why = next(iter({**self.silent, **self.unread}.values()), "no GPU")
        return skipped(
            f"no GPU here reports its {self.name} ({why})", code=f"{self.name.replace('_', '-')}.not-reported"
        )

    def where(self, holds: Callable[[Any], bool]) -> dict[str, Any]:
        """Return the values that satisfy a condition, by GPU."""
        return {gpu: value for gpu, value in self.values.items() if holds(value)}

    def blame(self, values: Mapping[str, Any], rule: Rule) -> list[Outcome]:
        """Return one finding for each GPU in `values`."""
        return blame(self.view, values, rule)


class Rule(NamedTuple):
    """What a finding about one GPU says. `text` is a format with {gpu} and {value}; `verdict` is failed or warned."""

    verdict: Callable[..., Outcome]
    code: str
    text: str
    fix: str
    limit: Limit | None = None
    unit: str = ""


def blame(view: View, values: Mapping[str, Any], rule: Rule) -> list[Outcome]:
    """Return one finding by `rule` for each GPU in `values`, with its index and UUID as the culprit."""
    return [
        rule.verdict(
            rule.text.format(gpu=gpu, value=value),
            fix=rule.fix,
            value=value,
            unit=rule.unit,
            limit=rule.limit,
            code=rule.code,
            culprit=culprit(view, gpu),
            gpus=uuids(view, [gpu]),
        )
        for gpu, value in values.items()
    ]


def lost(gpu: Gpu) -> Signal | None:
    """Return the signal by which NVML says that a GPU is gone, or stands still until a reset; None if it answers."""
    final = next((signal for signal in gpu.signals.values() if signal.why in ("lost", "reset-required")), None)
    return final or (gpu.signal("name") if gpu.uuid.startswith("lost-") else None)


def label(gpu: Gpu) -> str:
    """Return what people call this GPU: "GPU 3", as nvidia-smi counts."""
    index = gpu.signal("index").value
    return gpu.uuid if index is None else f"GPU {index}"


def culprit(view: View, labelled: str) -> str:
    """Return "GPU 3 (GPU-1a2b…)": the index people use, and the UUID, which does not change."""
    uuid = next((gpu.uuid for gpu in view.snapshot.gpus if label(gpu) == labelled), labelled)
    return labelled if uuid == labelled else f"{labelled} ({uuid})"


def read(view: View, name: str, *, newer: bool = False) -> Reading:
    """Read one signal of every GPU. `newer` marks one that old snapshots lack: there it is not offered.

    Raises KeyError for a name that no query reads.
    """
    fits, values, silent, unread = TYPES[name], {}, {}, {}
    for gpu in view.snapshot.gpus:
        signal = gpu.signal(name)
        if signal.value is not None and fits(signal.value):
            values[label(gpu)] = signal.value
        elif signal.value is not None:
            unread[label(gpu)] = f"unexpected type or value: {str(signal.value)[:40]}"
        elif _not_offered(gpu, signal) or (newer and signal.why in _NOT_KNOWN):
            silent[label(gpu)] = signal.reason or ""
        else:
            unread[label(gpu)] = signal.reason or ""
    return Reading(name, values, silent, unread, view)


def _not_offered(gpu: Gpu, signal: Signal) -> bool:
    """Tell whether the GPU or its driver does not count this; a user of one MIG instance may not ask the whole GPU.

    What it does not count is not 0.
    """
    sliced = gpu.signal("mig_mode").value == "on" and signal.why == "denied"
    return sliced or signal.why == "unsupported"


def uuids(view: View, labels: Iterable[str]) -> list[str]:
    """Return the UUIDs of the GPUs so labelled: an index changes, a UUID does not."""
    wanted_labels = set(labels)
    return [gpu.uuid for gpu in view.snapshot.gpus if label(gpu) in wanted_labels]


def at(view: View, slots: Iterable[object]) -> list[str]:
    """Return the UUIDs of the GPUs in these slots of the PCI bus."""
    wanted_slots = {slot(slot_text) for slot_text in slots}
    return [gpu.uuid for gpu in view.snapshot.gpus if slot(gpu.signal("bus_id").value) in wanted_slots]


def slot(bus_id: object) -> str:
    """Return NVML's 00000000:1B:00.0, the kernel's 0000:1b:00.0 and an Xid's 0000:1b:00 as the same."""
    text = str(bus_id).lower()
    domain, _, address = (text if text.count(":") > 1 else f"0000:{text}").partition(":")
    return f"{domain[-4:]}:{address.partition('.')[0]}"


def place(view: View, bus_id: object) -> str:
    """Return the culprit of a PCI address: its GPU's index and UUID, or the address where NVML shows no GPU there."""
    labels = [label(gpu) for gpu in view.snapshot.gpus if slot(gpu.signal("bus_id").value) == slot(bus_id)]
    return f"{culprit(view, labels[0])} at {bus_id}" if labels else f"PCI {bus_id}"


def listed(values: dict[str, Any], unit: str = "") -> str:
    """Return "GPU 1 3 W, GPU 2 4 W", shortened where there are many."""
    parts = [f"{gpu} {value} {unit}".strip() for gpu, value in values.items()]
    return ", ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")  # noqa: PLR2004


def uncollected(view: View, name: str) -> Outcome | None:
    """Return the skip of a signal that the envcheck which took this snapshot did not know; None where it did."""
    if view.snapshot.signal(name).why == "not-collected":
        return skipped(f"{name} was not read: this snapshot is from before it was", code="signal.not-collected")
    return None


def unreadable(view: View, name: str, fix: str) -> Outcome | None:
    """Return the skip of a missing or protected file, the error of one with an unexpected value; or None."""
    missing, signal = uncollected(view, name), view.snapshot.signal(name)
    if missing is not None or signal.reason is None:
        return missing
    signal_code = name.replace(".", "-").replace("_", "-")
    if signal.why in ("denied", "unsupported"):
        return skipped(f"{name} cannot be read ({signal.reason}): {fix}", code=f"{signal_code}.hidden")
    return undecided(f"{name} cannot be read: {signal.reason}", fix=fix, code=f"{signal_code}.unread")


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
    processes = read(view, "processes").values
    labels = {label(gpu): gpu.uuid for gpu in view.snapshot.gpus}
    return [
        GpuUser(label, uuid, held.get(label), busy.get(label), people(processes.get(label) or []))
        for label, uuid in labels.items()
        if label in held or label in busy
    ]


def _over(view: View, name: str, limit: Limit) -> dict[str, Any]:
    return read(view, name).where(lambda value: not value <= limit.value)


def people(processes: list[dict[str, Any]]) -> str:
    """Return "4711 (python), 4712", the largest first, shortened where there are many."""
    with_pid = [process for process in processes if isinstance(process.get("pid"), int)]
    with_pid.sort(key=lambda process: -(process.get("memory") or 0))
    named = [f"{p['pid']} ({p['name']})" if p.get("name") else str(p["pid"]) for p in with_pid]
    return ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")  # noqa: PLR2004


_FIELDS: Final = ("a", "b", "read", "write", "nvlink", "path")
Pair = dict[str, Any]


def pairs_of_gpus(view: View) -> list[Pair] | Outcome:
    """Return every pair of the GPUs there are, or the outcome where they are unknown."""
    signal = view.snapshot.signal("gpu.p2p")
    missing = uncollected(view, "gpu.p2p")
    if missing is not None:
        return missing
    if signal.why == "unsupported":
        return skipped(f"NVML tells nothing of peer-to-peer here ({signal.reason})", code="gpu-p2p.not-reported")
    pairs = signal.value if isinstance(signal.value, list) else []
    if signal.value is None or not all(isinstance(pair, dict) and all(f in pair for f in _FIELDS) for pair in pairs):
        return undecided(
            f"gpu.p2p cannot be read: {signal.reason or 'unexpected type or value'}",
            fix="look at `nvidia-smi topo -p2p r`",
            code="gpu-p2p.unread",
        )
    indices = sorted({gpu.signal("index").value for gpu in view.snapshot.gpus if gpu.signal("index").value is not None})
    read_pairs = {frozenset((pair["a"], pair["b"])) for pair in pairs}
    if any(frozenset(ends) not in read_pairs for ends in itertools.combinations(indices, 2)):
        return undecided(
            f"gpu.p2p lists {counted(len(pairs), 'pair')} of {counted(len(indices), 'GPU')}",
            fix="read the node again",
            code="gpu-p2p.incomplete",
        )
    return [pair for pair in pairs if pair["a"] in indices and pair["b"] in indices]


def reachable(pair: Pair) -> bool:
    """Return whether both may read and write each other's memory."""
    return bool(pair["read"] == "ok" and pair["write"] == "ok")


def why_unreachable(pair: Pair) -> str:
    """Return what NVML says against it."""
    return next((str(pair[word]) for word in ("read", "write") if pair[word] != "ok"), "ok")


def listed_pairs(pairs: list[Pair]) -> str:
    """Return "GPU 0 - GPU 3 (chipset not supported)", shortened where there are many."""
    parts = [f"GPU {pair['a']} - GPU {pair['b']} ({why_unreachable(pair)})" for pair in pairs]
    return ", ".join(parts[:3]) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")  # noqa: PLR2004


def uuids_of_pairs(view: View, pairs: list[Pair]) -> list[str]:
    """Return the UUIDs of the GPUs in these pairs."""
    ends = {pair[end] for pair in pairs for end in ("a", "b")}
    return [gpu.uuid for gpu in view.snapshot.gpus if gpu.signal("index").value in ends]
