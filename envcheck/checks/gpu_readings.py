"""One signal of all GPUs: who has a value, who does not offer it, where reading failed; and findings about each GPU.

Values have their types: `collect.sound` has put a reason in place of each that does not fit.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from envcheck.checks import Limit, Outcome, View, skipped, undecided
from envcheck.counting import counted
from envcheck.node.snapshot import Gpu, Signal

# The envcheck, the user or the driver of a snapshot that lacks what only newer drivers report.
_NOT_KNOWN = ("not-collected", "denied", "no-data")
_MANY = 4
_HIDDEN = ("denied", "unsupported")


class Rule(NamedTuple):
    """What a finding about one GPU says. `text` is a format with {gpu} and {value}; `verdict` is failed or warned."""

    verdict: Callable[..., Outcome]
    code: str
    text: str
    fix: str
    limit: Limit | None = None

    def finding(self, gpu: str, value: Any, culprit: str, gpus: list[str]) -> Outcome:
        """Return what the rule says of one GPU, however it is named."""
        text, told = self.text.format(gpu=gpu, value=value), {"limit": self.limit, "gpus": gpus}
        return self.verdict(text, fix=self.fix, value=value, code=self.code, culprit=culprit, **told)

    def at(self, view: View, bus_id: object, value: Any = 1) -> Outcome:
        """Return what the rule says of the GPU at a PCI address."""
        return self.finding(str(bus_id), value, place(view, bus_id), at(view, [bus_id]))


class Reading(NamedTuple):
    """One signal of every GPU, by the GPU's label: its value, that it has none to offer, or why it is unread."""

    name: str
    values: dict[str, Any]
    silent: dict[str, str]
    unread: dict[str, str]
    view: View

    def lacking(self) -> list[Outcome]:
        """Return one error for each GPU whose signal could not be read, but a skip where gpu-lost fails for the GPU."""
        findings, code = [], f"{self.name.replace('_', '-')}.unread"
        for gpu in (gpu for gpu in self.view.snapshot.gpus if label(gpu) in self.unread):
            if lost(gpu):
                findings.append(skipped(f"{label(gpu)} is lost (see gpu-lost)", code="gpu.lost", **about(gpu)))
            else:
                text = f"{self.name} cannot be read: {label(gpu)}: {self.unread[label(gpu)]}"
                findings.append(undecided(text, fix="look at `nvidia-smi -q` and `dmesg`", code=code, **about(gpu)))
        return findings

    def absent(self) -> Outcome | None:
        """Return the skip of a signal that no GPU offers; None where at least one has a value."""
        if self.values:
            return None
        why = next(iter({**self.silent, **self.unread}.values()), "no GPU")
        text = f"no GPU here reports its {self.name} ({why})"
        return skipped(text, code=f"{self.name.replace('_', '-')}.not-reported")

    def where(self, holds: Callable[[Any], bool]) -> dict[str, Any]:
        """Return the values that satisfy a condition, by GPU."""
        return {gpu: value for gpu, value in self.values.items() if holds(value)}

    def blame(self, values: Mapping[str, Any], rule: Rule | Callable[[str], Rule]) -> list[Outcome]:
        """Return one finding for each GPU in `values`, its index and UUID the culprit, by `rule` or its GPU's own."""
        gpus = {label(gpu): gpu for gpu in self.view.snapshot.gpus}
        rules = {name: rule if isinstance(rule, Rule) else rule(name) for name in values}
        return [rules[name].finding(name, value, **about(gpus[name])) for name, value in values.items()]


def lost(gpu: Gpu) -> Signal | None:
    """Return the signal by which NVML says that a GPU is gone, or stands still until a reset; None if it answers."""
    final = next((signal for signal in gpu.signals.values() if signal.why in ("lost", "reset-required")), None)
    return final or (gpu.signal("name") if gpu.uuid.startswith("lost-") else None)


def label(gpu: Gpu) -> str:
    """Return what people call this GPU: "GPU 3", as nvidia-smi counts."""
    index = gpu.signal("index").value
    return gpu.uuid if index is None else f"GPU {index}"


def culprit(gpu: Gpu) -> str:
    """Return "GPU 3 (GPU-1a2b…)": the index people use, and the UUID, which does not change."""
    return gpu.uuid if label(gpu) == gpu.uuid else f"{label(gpu)} ({gpu.uuid})"


def about(gpu: Gpu) -> dict[str, Any]:
    """Return what a finding about one GPU says of it."""
    return {"culprit": culprit(gpu), "gpus": [gpu.uuid]}


def read(view: View, name: str, *, newer: bool = False) -> Reading:
    """Read one signal of every GPU. `newer` marks one that old snapshots lack: there it is not offered."""
    reading = Reading(name, {}, {}, {}, view)
    for gpu in view.snapshot.gpus:
        signal = gpu.signal(name)
        if signal.value is not None:
            reading.values[label(gpu)] = signal.value
        elif (signal.why == "unsupported" or (gpu.signal("mig_mode").value == "on" and signal.why == "denied")) or (
            newer and signal.why in _NOT_KNOWN
        ):
            reading.silent[label(gpu)] = signal.reason or ""
        else:
            reading.unread[label(gpu)] = signal.reason or ""
    return reading


def at(view: View, slots: Iterable[object]) -> list[str]:
    """Return the UUIDs of the GPUs in these slots of the PCI bus."""
    wanted = set(map(slot, slots))
    return [gpu.uuid for gpu in view.snapshot.gpus if slot(gpu.signal("bus_id").value) in wanted]


def slot(bus_id: object) -> str:
    """Return NVML's 00000000:1B:00.0, the kernel's 0000:1b:00.0 and an Xid's 0000:1b:00 as the same."""
    text = str(bus_id).lower()
    domain, _, address = (text if text.count(":") > 1 else f"0000:{text}").partition(":")
    return f"{domain[-4:]}:{address.partition('.')[0]}"


def place(view: View, bus_id: object) -> str:
    """Return the culprit of a PCI address: its GPU's index and UUID, or the address where NVML shows no GPU there."""
    there = [gpu for gpu in view.snapshot.gpus if slot(gpu.signal("bus_id").value) == slot(bus_id)]
    return f"{culprit(there[0])} at {bus_id}" if there else f"PCI {bus_id}"


def shortened(parts: list[str], most: int = _MANY) -> str:
    """Return "a, b, c, d and 2 more"."""
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")


def unreadable(view: View, name: str, fix: str, hidden: tuple[str, ...] = _HIDDEN) -> Outcome | None:
    """Return the skip of a missing or protected signal, or one that an older snapshot lacks; the error of others."""
    signal, signal_code = view.snapshot.signal(name), name.replace(".", "-").replace("_", "-")
    if signal.reason is None:
        return None
    if signal.why == "not-collected":
        return skipped(f"{name} was not read: this snapshot is from before it was", code="signal.not-collected")
    if signal.why in hidden:
        return skipped(f"{name} cannot be read ({signal.reason}): {fix}", code=f"{signal_code}.hidden")
    return undecided(f"{name} cannot be read: {signal.reason}", fix=fix, code=f"{signal_code}.unread")


HELD = Limit(2 << 30, "B", "AMD-AGI/Primus node-smoke: at most 2 GiB in use before the first touch", "at most")
BUSY = Limit(10, "%", "ours: a GPU that nobody computes on is at 0 %, one that draws a desktop at a few", "at most")


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
    held = read(view, "memory_used").where(lambda value: value > HELD.value)
    busy = read(view, "utilization").where(lambda value: value > BUSY.value)
    processes, labels = read(view, "processes").values, {label(gpu): gpu.uuid for gpu in view.snapshot.gpus}
    return [
        GpuUser(gpu, uuid, held.get(gpu), busy.get(gpu), people(processes.get(gpu) or []))
        for gpu, uuid in labels.items()
        if gpu in held or gpu in busy
    ]


def people(processes: list[dict[str, Any]]) -> str:
    """Return "4711 (python), 4712", the largest first, shortened where there are many."""
    named = sorted((p for p in processes if p.get("pid") is not None), key=lambda p: -(p.get("memory") or 0))
    return shortened([f"{p['pid']} ({p['name']})" if p.get("name") else str(p["pid"]) for p in named])


Pair = dict[str, Any]


def pairs_of_gpus(view: View) -> list[Pair] | Outcome:
    """Return every pair of the GPUs there are, or the outcome where they are unknown."""
    missing = unreadable(view, "gpu.p2p", "look at `nvidia-smi topo -p2p r`", ("unsupported",))
    if missing is not None:
        return missing
    pairs = view.snapshot.signal("gpu.p2p").value
    indices = sorted({gpu.signal("index").value for gpu in view.snapshot.gpus if gpu.signal("index").value is not None})
    known = {frozenset((pair["a"], pair["b"])) for pair in pairs}
    if any(frozenset(ends) not in known for ends in itertools.combinations(indices, 2)):
        text = f"gpu.p2p lists {counted(len(pairs), 'pair')} of {counted(len(indices), 'GPU')}"
        return undecided(text, fix="read the node again", code="gpu-p2p.incomplete")
    return [pair for pair in pairs if pair["a"] in indices and pair["b"] in indices]


def reachable(pair: Pair) -> bool:
    """Return whether both may read and write each other's memory."""
    return bool(pair["read"] == "ok" and pair["write"] == "ok")


def uuids_of_pair(view: View, pair: Pair) -> list[str]:
    """Return the UUIDs of the two GPUs of a pair."""
    return [gpu.uuid for gpu in view.snapshot.gpus if gpu.signal("index").value in (pair["a"], pair["b"])]
