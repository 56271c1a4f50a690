"""One NVLink down costs a part of every collective's bandwidth; all of them down sends NCCL over PCIe without a word.

Seen in the wild: 17 of 18 links after a reset, a bridge that was not pushed in, and the opposite: virtual machines that
have 12 of 18 links by design and were failed for it (Azure/azurehpc-health-checks#162). So GPUs are compared with each
other first, and with their data sheet (nvlink.json) second.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, warned
from envcheck.checks.node import _gpus

CHECK = Check(promise="every NVLink that should be there is up, at its speed", level="quick", seconds=0.01, gpus=1)

_FILE: Final = Path(__file__).with_name("nvlink.json")
_PEERS: Final = "the other GPUs of this node"
_FIX: Final = "reset all GPUs of the node together; then look at the bridge, the board and the fabric manager's log"
_BY_DESIGN: Final = "ask whoever set this node up whether that is by design; if not: " + _FIX
_GUESTS: Final = ("passthrough", "vgpu")


@functools.cache
def boards() -> tuple[dict[str, Any], ...]:
    """Return the boards whose links are known."""
    return tuple(json.loads(_FILE.read_text(encoding="utf-8"))["boards"])


def board(name: str) -> dict[str, Any] | None:
    """Return the board of NVML's name, None for one whose links depend on a bridge, or that has none."""
    fits = (row for row in boards() if any(word in name for word in row["holds"]))
    return next((row for row in fits if not any(word in name for word in row.get("unless", []))), None)


def judge(view: View) -> Outcome:
    """Fail where GPUs of a node differ; warn where all have less than their board and are no virtual machine's."""
    links = _gpus.read(view, "nvlinks")
    lacking = links.lacking()
    if lacking is not None:
        return lacking
    if _gpus.read(view, "mig_mode").where(lambda mode: mode == "on"):
        return skipped("MIG is on: its instances do not use NVLink")
    if len(view.snapshot.gpus) == 1:
        return skipped("one GPU has nobody to be linked to")
    up = {gpu: list(states).count("up") for gpu, states in links.values.items()}
    most = max(up.values())
    behind = {gpu: count for gpu, count in up.items() if count < most}
    if behind:
        told = f"links up: {_gpus.told(behind)}; the others have {most}"
        limit = Limit(most, "links", _PEERS)
        gpus = _gpus.uuids(view, behind)
        return failed(told, fix=_FIX, value=min(behind.values()), unit="links", limit=limit, gpus=gpus)
    return _against_board(view, most, links)


def _against_board(view: View, most: int, links: _gpus.Reading) -> Outcome:
    known = board(str(view.snapshot.gpus[0].signal("name").value))
    limit = Limit(
        known["links"] if known else 1, "links", known["source"] if known else "at least one, where NVML shows any"
    )
    if 0 < most < limit.value and _guest(view):
        told = (
            f"{most} links up on every GPU of this virtual machine; the board has {limit.value}, and it was given these"
        )
        return _slow(view, known) or passed(told, value=most, unit="links", limit=Limit(most, "links", _PEERS))
    if most < limit.value:
        told = f"{most} links up on every GPU; the board has {limit.value}"
        return warned(told, fix=_BY_DESIGN, value=most, unit="links", limit=limit)
    slow = _slow(view, known)
    if slow is not None:
        return slow
    down = sum(list(states).count("down") for states in links.values.values())
    noted = f"; {down} that NVML lists are unused" if down else ""
    return passed(f"{most} links up on each of {len(links.values)} GPUs{noted}", value=most, unit="links", limit=limit)


def _guest(view: View) -> bool:
    return all(gpu.signal("virtualization").value in _GUESTS for gpu in view.snapshot.gpus)


def _slow(view: View, known: dict[str, Any] | None) -> Outcome | None:
    speeds = _gpus.read(view, "nvlink_speed").values
    best = max([*speeds.values(), 0])
    floor = known["mb_s"] if known else best
    slow = {gpu: speed for gpu, speed in speeds.items() if not speed >= max(floor, best)}
    if not slow:
        return None
    limit = Limit(floor, "MB/s", known["source"] if known else _PEERS)
    told = f"slow links: {_gpus.told(slow, 'MB/s')}"
    return warned(told, fix=_FIX, value=min(slow.values()), unit="MB/s", limit=limit, gpus=_gpus.uuids(view, slow))
