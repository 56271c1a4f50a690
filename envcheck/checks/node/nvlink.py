"""One NVLink down costs a part of every collective's bandwidth; all of them down sends NCCL over PCIe without a word.

Virtual machines that have 12 of 18 links by design were failed for it (Azure/azurehpc-health-checks#162), so GPUs are
compared with each other first, and with their data sheet (nvlink.json) second.
"""

import json
from pathlib import Path
from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, warned, worst
from envcheck.checks.gpu_readings import Reading, Rule, read
from envcheck.counting import counted

CHECK = Check("every NVLink that should be there is up, at its speed", "quick", 0.01, gpus=1)

_KNOWN: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("nvlink.json").read_text(encoding="utf-8")
)
_PEERS = "the other GPUs of this node"
_FIX = "reset all GPUs of the node together; then look at the bridge, the board and the fabric manager's log"
_BY_DESIGN = "ask whoever set this node up whether that is by design; if not: " + _FIX
_GUESTS = ("passthrough", "vgpu")
_HALF = "links up: {gpu} {value}, and no other GPU has the other end of its bridge up"


def board(name: str, kind: str = "boards") -> dict[str, Any] | None:
    """Return the board of NVML's name, None for one whose links depend on a bridge ("bridges" has it), or without."""
    fits = (row for row in _KNOWN[kind] if any(word in name for word in row["holds"]))
    return next((row for row in fits if not any(word in name for word in row.get("unless", []))), None)


def judge(view: View) -> Outcome:
    """Fail where GPUs of a node differ (by bridge: those that have one); warn where all have less than their board."""
    links = read(view, "nvlinks")
    if read(view, "mig_mode").where(lambda mode: mode == "on"):
        return skipped("MIG is on: its instances do not use NVLink", code="gpu.mig")
    if len(view.snapshot.gpus) == 1:
        return worst(links.lacking(), skipped("one GPU has no other GPU to link to", code="gpu.not-enough"))
    up = {gpu: list(states).count("up") for gpu, states in links.values.items()}
    models = {gpu: str(found) for gpu in up if (found := _board(view, gpu))}
    groups = [{gpu: up[gpu] for gpu in models if models[gpu] == model} for model in dict.fromkeys(models.values())]
    groups.append({gpu: count for gpu, count in up.items() if gpu not in models and count})
    findings = [*links.lacking(), *(f for group in groups for f in (*_behind(links, group), *_short(links, group)))]
    findings += [*_alone(links, up), *_loose(links, up), *_slow(view, up)]
    return worst(findings, links.absent() or _sound(view, links, up))


def _board(view: View, gpu: str, kind: str = "boards") -> dict[str, Any] | None:
    return board(str(read(view, "name").values.get(gpu)), kind)


def _behind(links: Reading, up: dict[str, int]) -> list[Outcome]:
    most = max(up.values(), default=0)
    text = f"links up: {{gpu}} {{value}}; the others have {most}"
    rule = Rule(failed, "nvlink.down", text, _FIX, Limit(most, "links", _PEERS))
    return links.blame({gpu: count for gpu, count in up.items() if count < most}, rule)


def _alone(links: Reading, up: dict[str, int]) -> list[Outcome]:
    """Return the failure of the one GPU with links up, on a board that is linked by a bridge: it reaches no other."""
    linked = {gpu: count for gpu, count in up.items() if count}
    bridged = {gpu: 1 for gpu in linked if not _board(links.view, gpu)}
    rule = Rule(failed, "nvlink.half-bridge", _HALF, _FIX, Limit(2, "GPUs", _PEERS))
    return links.blame(bridged if len(linked) == 1 else {}, rule)


def _loose(links: Reading, up: dict[str, int]) -> list[Outcome]:
    """Warn of links that are no whole number of bridges: NVIDIA/nccl#557, a bridge that sat badly."""
    bridges = {gpu: bridge for gpu in up if (bridge := _board(links.view, gpu, "bridges"))}
    limits = {gpu: Limit(row["links"], "links of a bridge", row["source"]) for gpu, row in bridges.items()}
    loose = {gpu: up[gpu] for gpu, limit in limits.items() if up[gpu] % limit.value}
    text = "links up: {{gpu}} {{value}}; a bridge carries {}, so one of its contacts is open"
    return links.blame(
        loose, lambda gpu: Rule(warned, "nvlink.loose-bridge", text.format(limits[gpu].value), _FIX, limits[gpu])
    )


def _short(links: Reading, up: dict[str, int]) -> list[Outcome]:
    board, most = _board(links.view, next(iter(up), "")), max(up.values(), default=0)
    guest = all(gpu.signal("virtualization").value in _GUESTS for gpu in links.view.snapshot.gpus)
    if board is None or most >= board["links"] or (most > 0 and guest):
        return []
    text = f"{counted(most, 'link')} up on every GPU; the board has {board['links']}"
    rule = Rule(warned, "nvlink.short", text, _BY_DESIGN, Limit(board["links"], "links", board["source"]))
    return links.blame({gpu: count for gpu, count in up.items() if count == most}, rule)


def _slow(view: View, up: dict[str, int]) -> list[Outcome]:
    speeds = read(view, "nvlink_speed", newer=True)
    findings = speeds._replace(unread={gpu: why for gpu, why in speeds.unread.items() if up.get(gpu)}).lacking()
    linked = {gpu: speed for gpu, speed in speeds.values.items() if up.get(gpu)}
    best, text = max(linked.values(), default=0), "slow links: {gpu} {value} MB/s"
    boards = {gpu: _board(view, gpu) or {"mb_s": best, "source": _PEERS} for gpu in linked}
    limits = {gpu: Limit(board["mb_s"], "MB/s", board["source"]) for gpu, board in boards.items()}
    slow = {gpu: speed for gpu, speed in linked.items() if speed < max(boards[gpu]["mb_s"], best)}
    return [*findings, *speeds.blame(slow, lambda gpu: Rule(warned, "nvlink.slow", text, _FIX, limits[gpu]))]


def _sound(view: View, links: Reading, up: dict[str, int]) -> Outcome:
    most = max(up.values())
    if not most:
        return skipped("no GPU here has a bridge to another", code="nvlink.none")
    board = _board(view, max(up, key=lambda gpu: up[gpu]))
    limit = Limit(board["links"] if board else most, "links", board["source"] if board else _PEERS)
    if board and most < board["links"]:
        text = f"{counted(most, 'link')} up on every GPU of this virtual machine; the board has {limit.value}"
        return passed(f"{text}, and it was given these", value=most, limit=Limit(most, "links", _PEERS))
    without = [gpu for gpu, count in up.items() if not count]
    down = sum(list(states).count("down") for gpu, states in links.values.items() if up[gpu])
    noted = f"; {down} that NVML lists are unused" if down else ""
    bare = f"; no bridge on {', '.join(without)}" if without else ""
    text = f"{counted(most, 'link')} up on each of {counted(len(up) - len(without), 'GPU')}{noted}{bare}"
    return passed(text, value=most, limit=limit)
