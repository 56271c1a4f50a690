"""Speeds of GPUs and of the links between them: timed by events, judged by the limits of the model, culprits named."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Union

from envcheck.checks import Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned, worst
from envcheck.checks.support import exact_data, process_group
from envcheck.counting import counted

MIB = 1 << 20
# Larger than any L2 (B200: 126 MB), so that what is timed reads from memory.
FLUSH = 256 * MIB
# What the two tensors of `numbers` are: the words, and their complement.
MASKS = (0, -1)
STRAGGLER = Limit(
    0.9,
    "of the best GPU",
    "huggingface/gpu-fryer calls a GPU 10 % below the node's best an outlier; 5 % apart is normal "
    "(stas00/ml-engineering, compute/accelerator)",
)
WRONG_FIX = "run the kernels check on this GPU; wrong there too, take the GPU out"
COOLING = "look at fans, inlet air, power cables and supplies, and at this slot against the others (`nvidia-smi -q`)"
_HALF = 0.5
# Superchips, whose GPU hangs on the CPU by NVLink-C2C: the PCIe link that NVML shows carries nothing.
_COHERENT = re.compile(r"\bG[BH]\d+")
Judged = Union[Outcome, Limit, None]


def seconds(
    torch: Any,
    work: Callable[[], Any],
    before: Callable[[], Any],
    warmup: int,
    iterations: int,
    after: Callable[[], Any] = lambda: None,
) -> float:
    """Return the median seconds that `work` takes on its stream; `before` and `after` run around each, untimed."""
    marks = []
    for iteration in range(warmup + iterations):
        before()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        after()
        if iteration >= warmup:
            marks.append((start, end))
    torch.cuda.synchronize()
    return float(statistics.median(start.elapsed_time(end) for start, end in marks)) / 1000


def numbers(words: exact_data.Words, size: int, device: Any = "cpu") -> tuple[Any, Any]:
    """Return two tensors of so many bytes that differ in every bit: seeded words, and their complement."""
    first = words.tensor(max(1, size // 4), device)
    second = first.bitwise_not()
    words.confirm(second, MASKS[1])
    return first, second


def copied(
    words: exact_data.Words,
    target: Any,
    sources: Any,
    wrong: Callable[[int], Any],
    turns: tuple[int, int],
    before: Callable[[], Any] = lambda: None,
) -> tuple[float, Measured]:
    """Return the median seconds of a copy and {messages, wrong, first}: what became of each, warm-up included.

    The `sources`, the two tensors of `numbers`, are taken alternately, so that a copy that does nothing is seen.
    `wrong` returns how many elements are not that source's, as a tensor, which is not timed; plain Python looks at the
    last message. `turns` are how many warm up and how many are timed.
    """
    differing: list[Any] = []

    def copy() -> None:
        target.copy_(sources[len(differing) % 2], non_blocking=True)

    took = seconds(words.torch, copy, before, *turns, lambda: differing.append(wrong(len(differing) % 2)))
    counts = [int(count) for count in differing]
    return took, verdict([*counts[:-1], max(counts[-1], words.wrong(target, MASKS[(len(counts) - 1) % 2]))])


def verdict(counted: list[int]) -> Measured:
    """Return {messages, wrong, first} of what was wrong in each message."""
    bad = [turn for turn, count in enumerate(counted) if count]
    return {"messages": len(counted), "wrong": len(bad), "first": bad[0] if bad else None}


def judge(view: View, ranks: Ranks, limits_of: Mapping[str, str], unit: str, fix: str) -> Outcome:
    """Judge each rank's `values` by the limits named for them; each GPU that falls short is a finding.

    `limits_of` maps what every rank has to have measured to a check of limits.json; without a limit it is reported. A
    value that is not a number, or above what the hardware can do, is an error.
    """
    missing = [finding for entry in ranks for finding in _missing(entry, limits_of, unit)]
    judged = [
        _one(view, entry, name, limits_of[name], unit, fix)
        for entry in ranks
        for name in limits_of
        if process_group.positive((entry.get("values") or {}).get(name))
    ]
    findings = missing + [outcome for outcome in judged if isinstance(outcome, Outcome)]
    findings += unblamed(findings, behind(ranks, limits_of, unit, fix))
    if findings:
        return worst(findings, otherwise=findings[0])
    return _passed(ranks, unit, [row for row in judged if isinstance(row, Limit)])


def unblamed(findings: list[Outcome], more: list[Outcome]) -> list[Outcome]:
    """Return of `more` what is about no culprit that has a finding already."""
    blamed = {finding.culprit for finding in findings}
    return [finding for finding in more if finding.culprit not in blamed]


def _missing(entry: Measured, names: Iterable[str], unit: str) -> list[Outcome]:
    values, lacking = entry.get("values") or {}, entry.get("unsupported") or {}
    missing = [name for name in names if name not in lacking and not process_group.positive(values.get(name))]
    if values and not missing:
        return []
    summary = f"rank {entry['rank']} measured no {', '.join(missing) or unit}"
    return [undecided(summary, code="speed.missing", culprit=process_group.name(entry))]


def about(entry: Measured) -> dict[str, Any]:
    """Return what a finding says of the GPU that it is about."""
    return {"culprit": process_group.name(entry), "rank": entry["rank"], "device": entry["device"]}


def _one(view: View, entry: Measured, name: str, check: str, unit: str, fix: str) -> Judged:
    from envcheck.checks import limits

    row, value = _row(view, entry, check), float(entry["values"][name])
    where = f"{process_group.name(entry)} ({entry.get('name')}), {name}: {value:.4g} {unit}"
    if row is None:
        return None
    details = {**about(entry), "values": entry["values"]}
    if value > row["ceiling"]:
        summary = f"{where}: above the {row['ceiling']:g} that the hardware can do, so mismeasured"
        remedy = "look for a clock or a tensor that is not what it seems; run it again"
        return undecided(summary, fix=remedy, code="speed.impossible", **details)
    share, cap = capped(view, entry)
    cause = f"{text(entry.get('load') or {})}{slowed(entry.get('load') or {})}{cap}"
    short = limits.short(row, value, where, fix=fix, cause=cause, share=share, **details)
    return short or Limit(row["fail"], unit, row["source"], "at least")


def _row(view: View, entry: Measured, check: str) -> Measured | None:
    """Return the limits for this GPU model, else for its PCIe link; what a hypervisor shows of a link is no ceiling.

    In confidential computing copies to and from the host are encrypted, through bounce buffers: no floor holds there.
    """
    from envcheck.checks import limits

    if view.snapshot.signal("gpu.confidential").value and check in ("host-to-gpu", "gpu-to-host"):
        return None
    row = limits.find(check, gpu=entry.get("name"))
    models = [gpu for gpu in view.snapshot.gpus if gpu.signal("name").value == entry.get("name")]
    # Torch before 2.4 tells no UUID; then another GPU of the model stands for this one.
    gpu = next((gpu for gpu in view.snapshot.gpus if gpu.uuid == entry["device"]), next(iter(models), None))
    if row is not None or gpu is None or _COHERENT.search(str(entry.get("name"))):
        return row
    link = entry.get("link") or {}
    generation = link.get("generation", gpu.signal("pcie_gen_max").value)
    row = limits.pcie(check, generation, link.get("lanes", gpu.signal("pcie_width").value))
    return {**row, "ceiling": math.inf} if row and gpu.signal("virtualization").value != "none" else row


def capped(view: View, entry: Measured) -> tuple[float, str]:
    """Return which share of its speed is still owed by a GPU that somebody caps on purpose, and the words for it."""
    (power, limited), (clock, slowed) = _power_cap(view, entry["device"]), _clock_cap(entry.get("load") or {})
    return min(power, clock), limited + slowed


def _power_cap(view: View, device: str) -> tuple[float, str]:
    """Return the enforced share of the maker's power limit; below half of it nobody knows what is owed: 0."""
    for gpu in view.snapshot.gpus:
        limit, default = gpu.signal("power_limit").value, gpu.signal("power_limit_default").value
        if gpu.uuid == device and process_group.finite(limit) and process_group.finite(default) and 0 < limit < default:
            share = float(limit / default)
            return (share if share >= _HALF else 0.0), f"; its power is capped at {limit:g} of {default:g} W"
    return 1.0, ""


def _clock_cap(load: Measured) -> tuple[float, str]:
    """Return the share of the highest clock at which somebody has set this GPU, where its own reasons say so."""
    clock, most = spread(load, "clock"), spread(load, "clock_max")
    if not mostly(load, "applications clocks") or clock is None or most is None or not 0 < clock[1] < most[2]:
        return 1.0, ""
    return clock[1] / most[2], f"; its clock is set to {clock[1]:.0f} of {most[2]:.0f} MHz"


def behind(ranks: Ranks, names: Iterable[str], unit: str, fix: str) -> list[Outcome]:
    """Return a warning for each GPU that is behind the best of its model, the furthest behind first."""
    findings = []
    for name in names:
        having = [entry for entry in ranks if process_group.positive((entry.get("values") or {}).get(name))]
        measured = [(float(entry["values"][name]), entry) for entry in having]
        for value, entry in sorted(measured, key=lambda pair: pair[0]):
            best = max(other for other, peer in measured if peer.get("name") == entry.get("name"))
            if value < best * STRAGGLER.value:
                summary = f"{process_group.name(entry)}, {name}: {value:.4g} {unit}, where the best has {best:.4g}"
                share: dict[str, Any] = {"value": round(value / best, 4), "limit": STRAGGLER}
                findings.append(warned(summary, fix=fix, code="speed.behind", **share, **about(entry)))
    return findings


def _passed(ranks: Ranks, unit: str, met: list[Limit]) -> Outcome:
    names = [name for name in ranks[0]["values"] if all(name in entry["values"] for entry in ranks)]
    slowest = {name: min(float(entry["values"][name]) for entry in ranks) for name in names}
    speeds = ", ".join(f"{name} {value:.4g}" for name, value in slowest.items())
    models = " and ".join(sorted({str(entry.get("name")) for entry in ranks}))
    judged = "" if met else f": reported, not judged (no limit known for {models})"
    lacking = {name: why for entry in ranks for name, why in (entry.get("unsupported") or {}).items()}
    also = f"; not here: {', '.join(lacking)}" if lacking else ""
    return passed(
        f"slowest of {counted(len(ranks), 'GPU')}, {unit}: {speeds}{judged}{also}",
        value=slowest[names[0]],
        unit=unit,
        limit=met[0] if met else None,
        values={str(entry["rank"]): entry["values"] for entry in ranks},
        unsupported=lacking,
    )


FAULTS = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
CAPS = {
    "software power cap": "at its power limit",
    "applications clocks": "at clocks that somebody set",
    "sync boost": "at another GPU's clocks (sync boost)",
}
NO_FAULT = Limit(
    0,
    "samples with a fault among the reasons",
    "NVML clocks event reasons; leptonai/gpud clock_events.go: bits 0x8, 0x20, 0x40 and 0x80 are faults under load",
    "at most",
)
# A sampler that is late now and then has still seen the load; one that missed half of it has not.
_SHARE = 0.5
_FIX = "see the check's log; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility"


def unseen(entry: Measured, seconds: float, interval: float) -> process_group.Problem:
    """Return why the samples of `seconds` under load show too little of it, or None."""
    load = entry.get("load") or {}
    where = process_group.name(entry)
    if load.get("unread"):
        return undecided(f"{where}: {load['unread']}", fix=_FIX, code="load.unread", culprit=where)
    samples = load.get("samples") or []
    least = max(1, int(seconds / interval * _SHARE))
    if len(samples) < least:
        summary = f"{where}: {len(samples)} samples in {seconds:.0f} s, not {least}"
        return undecided(summary, fix=_FIX, code="load.few-samples", culprit=where)
    return None


def faults(load: Measured) -> dict[str, int]:
    """Return in how many samples each fault was among the GPU's reasons."""
    return {name: count for name in FAULTS if (count := _count(load, name))}


def caps(load: Measured) -> str:
    """Return what held the GPU back in most of its samples and is no fault, to be put behind a sentence; or nothing."""
    caps = [text for name, text in CAPS.items() if mostly(load, name)]
    return f"; {', '.join(caps)}" if caps else ""


def slowed(load: Measured) -> str:
    """Return the faults among a GPU's reasons, to be put behind a sentence; or nothing."""
    names = faults(load)
    return f"; {', '.join(names)}" if names else ""


def slows_down(entry: Measured, code: str, tell: Callable[..., Outcome] = warned) -> list[Outcome]:
    """Return the finding that a GPU slowed itself down for heat or power while it was watched."""
    load = entry.get("load") or {}
    found = faults(load)
    if not found:
        return []
    among = ", ".join(f"{name} in {count}" for name, count in found.items())
    summary = f"{process_group.name(entry)}: {among} of {counted(len(load['samples']), 'sample')}{text(load)}"
    judged: dict[str, Any] = {"value": sum(found.values()), "limit": NO_FAULT}
    return [tell(summary, fix=COOLING, code=code, **judged, **about(entry))]


def no_product(entry: Measured, dtype: str, error: Any) -> list[Outcome]:
    """Return the failure that a product that was verified is none, or the error that none was."""
    where = process_group.name(entry)
    if error is None:
        return [undecided(f"{where} verified no {dtype} product", code="data.missing", **about(entry))]
    if process_group.finite(error) and 0 <= error <= exact_data.TOLERANCE.get(dtype, 0.0):
        return []
    summary, unit = f"{where}: the {dtype} product is off by {error}", "relative error"
    return [failed(summary, fix=WRONG_FIX, value=error, unit=unit, code="data.wrong", **about(entry))]


def mostly(load: Measured, clock_reason: str) -> bool:
    """Return whether most samples give this reason."""
    return _count(load, clock_reason) * 2 > len(load.get("samples") or [])


def spread(load: Measured, quantity: str) -> tuple[float, float, float] | None:
    """Return the smallest, mean and largest sample of a quantity; None where this GPU does not tell it."""
    values = [float(s[quantity]) for s in load.get("samples") or [] if process_group.finite(s.get(quantity))]
    return (min(values), sum(values) / len(values), max(values)) if values else None


def text(load: Measured) -> str:
    """Return the clock, power and heat under load in a few words, to be put behind a sentence; or nothing."""
    clock, power, heat = (spread(load, quantity) for quantity in ("clock", "power", "temperature"))
    parts = [
        f"{clock[0]:.0f} to {clock[2]:.0f} MHz" if clock else "",
        f"{power[1]:.0f} W" if power else "",
        f"up to {heat[2]:.0f} C" if heat else "",
    ]
    summary = ", ".join(part for part in parts if part)
    return f" ({summary})" if summary else ""


def _count(load: Measured, clock_reason: str) -> int:
    samples: list[Any] = load.get("samples") or []
    return sum(clock_reason in (sample.get("reasons") or []) for sample in samples)


Pairs = list[tuple[int, int]]


def devices(torch: Any, rank: Rank) -> list[Any]:
    """Return every GPU that torch sees; on a machine without one the CPU twice, whose copies are real too."""
    if rank.device == "cpu":
        return [torch.device("cpu")] * 2
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def ordered(count: int) -> Pairs:
    """Return every pair of `count` GPUs in both directions."""
    return list(itertools.permutations(range(count), 2))


def name(torch: Any, device: Any, index: int) -> str:
    """Return "GPU 1 (GPU-1a2b...)": by torch's count and by UUID, as far as torch tells one."""
    if device.type != "cuda":
        return f"{device.type} {index}"
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", "") or "")
    return f"GPU {index} (GPU-{uuid})" if uuid else f"GPU {index}"


def uuid(named: str) -> str:
    """Return the UUID in a name of `name`, else the name."""
    return named.partition("(")[2].rstrip(")") or named


def unreachable(torch: Any, source: Any, target: Any) -> str | None:
    """Return why CUDA lets these two not reach each other's memory, None where it does."""
    if source.type != "cuda" or torch.cuda.can_device_access_peer(source, target):
        return None
    return "CUDA offers no peer access"


def doing(rank: Rank, text: str) -> None:
    """Leave word of what comes next: a rank that is lost at it can be asked no more."""
    Path(rank.scratch, f"rank{rank.rank}.doing").write_text(text, encoding="utf-8")


def synchronize(torch: Any, *places: Any) -> None:
    """Wait until these devices have done their work."""
    for place in places:
        if place.type == "cuda":
            torch.cuda.synchronize(place)


def link(view: View, source: str, target: str) -> str:
    """Return what is between two GPUs, by UUID: "nvswitch", "nvlink", nvidia-smi's PIX, PXB, PHB, NODE, SYS, or ""."""
    by_uuid = {gpu.uuid: gpu for gpu in view.snapshot.gpus}
    if source not in by_uuid or target not in by_uuid:
        return ""
    ends = {by_uuid[end].signal("index").value for end in (source, target)}
    pair: Any = next(
        (pair for pair in view.snapshot.signal("gpu.p2p").value or [] if {pair["a"], pair["b"]} == ends), {}
    )
    remotes = [by_uuid[end].signal("nvlink_remotes").value or [] for end in (source, target)]
    if all(isinstance(far, list) and far and set(far) == {"switch"} for far in remotes):
        return "nvswitch"
    return "nvlink" if pair.get("nvlink") == "ok" else str(pair.get("path") or "")


def links_up(view: View, *ends: str) -> int:
    """Return how many NVLinks the one of these GPUs has that has fewest; 0 where NVML does not say."""
    counts = [gpu.signal("nvlinks_active").value for gpu in view.snapshot.gpus if gpu.uuid in ends]
    return min(counts) if counts and all(isinstance(count, int) for count in counts) else 0
