"""One link of many is slow, or a pair of GPUs takes the long way round: every ring goes through it.

Each ordered pair is timed alone, so that links do not share; judged by what this model reaches over NVSwitch where that
is known, else by what its links carry to a switch; reported elsewhere. `details.matrix` holds GB/s (1e9) from row to
column.
"""

from __future__ import annotations

import os
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, worst
from envcheck.checks.support import exact_data, gpu_speed, process_group

CHECK = checks.Check(
    promise="each GPU writes to each other one as fast as this model and link do, where that is known",
    level="standard",
    seconds=5.0,
    timeout=120.0,
    gpus=2,
    performance=True,
    limits=("peer-over-switches",),
)

SIZE = 512 * gpu_speed.MIB
_FREE_SHARE = 0.25
TURNS = (2, 5)
_FIX = "look at the states and errors of this pair's NVLinks (nvidia-smi nvlink -s, -e), at ACS and at PCIe width"
Pair = dict[str, Any]


def measure(rank: Rank) -> Measured:
    """Time copies from each GPU to each other one that it can reach, one pair at a time: the median GB/s."""
    import torch

    if os.environ.get("NCCL_P2P_DISABLE") == "1":  # where the first transfer hangs, so would these
        return {**process_group.standing(rank, torch.zeros(1, device=process_group.device_of(rank))), "off": True}
    devices = gpu_speed.devices(torch, rank)
    names = [gpu_speed.name(torch, device, index) for index, device in enumerate(devices)]
    size = min(SIZE, *(int(torch.cuda.mem_get_info(device)[0] * _FREE_SHARE) for device in devices))
    # The same bits reach every GPU through the host: what another one sends can be compared where it arrives.
    seed = exact_data.seed()
    words = exact_data.Words(torch, seed)
    pattern = gpu_speed.numbers(words, size // 3)
    held = [[one.to(device, copy=True) for one in pattern] for device in devices]
    for one, mask in [pair for rows in held for pair in zip(rows, gpu_speed.MASKS)]:
        words.confirm(one, mask)
    wrong: list[Measured] = []
    size = 4 * pattern[0].numel()
    matrix: list[list[float | None]] = [[None] * len(devices) for _ in devices]
    for source, target in gpu_speed.ordered(len(devices)):
        if gpu_speed.unreachable(torch, devices[source], devices[target]) is None:
            gpu_speed.doing(rank, f"{names[source]} -> {names[target]}")
            took, became = _copies(words, held[source], held[target])
            matrix[source][target] = size / took / 1e9
            wrong += [{"source": source, "target": target, **became}] if became["wrong"] else []
    models = [torch.cuda.get_device_name(device) for device in devices]
    measured = {"gpus": names, "models": models, "bytes": size, "matrix": matrix, "wrong": wrong, "seed": seed}
    return {**process_group.standing(rank, held[0][0]), **measured}


def _copies(words: exact_data.Words, sources: Any, destinations: Any) -> tuple[float, Measured]:
    torch, target = words.torch, words.torch.zeros_like(destinations[0])

    # PyTorch copies between GPUs on the source's current stream: that is where the events have to be. It waits for the
    # target's stream too, where the comparison runs, which must not be timed.
    with torch.cuda.device(sources[0].device):
        return gpu_speed.copied(
            words,
            target,
            sources,
            lambda turn: exact_data.compared(torch, target, destinations[turn]),
            TURNS,
            lambda: gpu_speed.synchronize(torch, target.device),
        )


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:
    """Judge each pair's GB/s by its model's limit; each pair that falls short is a finding, and names both GPUs."""
    entry = ranks[0]
    if entry.get("off") is True:
        why = "not tried: NCCL_P2P_DISABLE=1 is set, by you or because peer-to-peer is broken"
        return skipped(why, code="peer-to-peer.disabled")
    names, models, matrix = entry.get("gpus") or [], entry.get("models") or [], entry.get("matrix") or []
    if len(names) < 2 or len(models) != len(names) or [len(row) for row in matrix] != [len(names)] * len(names):  # noqa: PLR2004 (a pair)
        return undecided("the matrix of rates is not one of every pair", code="peer-bandwidth.unmeasured")
    if not isinstance(entry.get("wrong"), list):
        return undecided("no copy was compared with what was sent", code="data.missing")
    pairs = [
        _pair(view, entry, *ends) for ends in gpu_speed.ordered(len(names)) if matrix[ends[0]][ends[1]] is not None
    ]
    if not pairs:
        return skipped("no GPU here can reach another: CUDA offers no peer access", code="peer-to-peer.none")
    # The furthest behind its limit first: of findings that are equally bad, the first one stands for all.
    pairs.sort(key=_share)
    findings = [_wrong(names, one) for one in entry["wrong"]]
    findings += [finding for pair in pairs for finding in _findings(pair, matrix)]
    return worst(findings, otherwise=findings[0]) if findings else _passed(pairs, matrix)


def _wrong(names: list[str], one: Measured) -> Outcome:
    ends = [names[one["source"]], names[one["target"]]]
    pair, about = " -> ".join(ends), {"value": one["wrong"], "unit": "wrong copies", "code": "data.wrong"}
    text = f"{pair}: {one['wrong']} of {one['messages']} copies brought other bits, the first is copy {one['first']}"
    return failed(text, fix=_FIX, culprit=pair, gpus=[*map(gpu_speed.uuid, ends)], **about)


def _share(pair: Pair) -> float:
    rate = float(pair["rate"]) if process_group.finite(pair["rate"]) else 0.0
    return rate / (pair["row"]["fail"] if pair["row"] else 1e-9)


def _pair(view: View, entry: Measured, source: int, target: int) -> Pair:
    from envcheck.checks import limits
    from envcheck.checks.collectives import transports

    names, models = entry["gpus"], entry["models"]
    ends = [gpu_speed.uuid(names[source]), gpu_speed.uuid(names[target])]
    link = gpu_speed.link(view, *ends)
    alike = models[source] == models[target]
    row = limits.find("peer-bandwidth", gpu=models[source], transport=link) if alike else None
    if row is not None and gpu_speed.links_up(view, *ends) < row["links"]:
        row = None  # 12 of 18 links is some clouds' design; check nvlink says so
    carried = [transports.of_one(gpu) or 0.0 for gpu in view.snapshot.gpus if gpu.uuid in ends]
    if row is None and link == "nvswitch" and all(carried):
        row = limits.of_rate("peer-over-switches", min(carried))
    where = f"{names[source]} -> {names[target]}"
    return {"where": where, "ends": ends, "rate": entry["matrix"][source][target], "row": row, "link": link}


def _findings(pair: Pair, matrix: Any) -> list[Outcome]:
    from envcheck.checks import limits

    row, where, named = pair["row"], pair["where"], {"culprit": pair["where"], "matrix": matrix}
    if not process_group.positive(pair["rate"]):
        return [undecided(f"{where}: {pair['rate']} GB/s is no rate", code="speed.missing", **named)]
    value = float(pair["rate"])
    if row is None:
        return []
    if value > row["ceiling"]:
        summary = f"{where}: {value:.4g} GB/s, above the {row['ceiling']:g} its links can carry, so mismeasured"
        return [undecided(summary, fix="run it again", code="speed.impossible", **named)]
    short = limits.short(row, value, f"{where}: {value:.4g} GB/s", fix=_FIX, gpus=pair["ends"], **named)
    return [short] if short else []


def _passed(pairs: list[Pair], matrix: Any) -> Outcome:
    rates = [float(pair["rate"]) for pair in pairs]
    over = ", ".join(sorted({pair["link"] for pair in pairs} - {""}))
    slowest = min(pairs, key=lambda pair: float(pair["rate"]))
    extent = f"{len(pairs)} ordered pairs{f' over {over}' if over else ''}"
    row = pairs[0]["row"]
    if row is None:
        rates_text = f"{extent}: {min(rates):.4g} to {max(rates):.4g} GB/s, slowest {slowest['where']}"
        return passed(
            f"{rates_text}: reported, not judged (no limit known)", value=min(rates), unit="GB/s", matrix=matrix
        )
    floor, value = checks.Limit(row["fail"], "GB/s", row["source"], "at least"), float(pairs[0]["rate"])
    return passed(f"{extent}: at least {min(rates):.4g} GB/s", value=value, limit=floor, matrix=matrix)
