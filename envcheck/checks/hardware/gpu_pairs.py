"""Every ordered pair of GPUs that one process sees: which can reach which, over what, and what it is at just now."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from envcheck.checks import Rank, View

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
    pair = next((p for p in _matrix(view) if {p.get("a"), p.get("b")} == ends), {})
    remotes = [by_uuid[end].signal("nvlink_remotes").value or [] for end in (source, target)]
    if all(isinstance(far, list) and far and set(far) == {"switch"} for far in remotes):
        return "nvswitch"
    return "nvlink" if pair.get("nvlink") == "ok" else str(pair.get("path") or "")


def links_up(view: View, *ends: str) -> int:
    """Return how many NVLinks the one of these GPUs has that has fewest; 0 where NVML does not say."""
    counts = [gpu.signal("nvlinks_active").value for gpu in view.snapshot.gpus if gpu.uuid in ends]
    return min(counts) if counts and all(isinstance(count, int) for count in counts) else 0


def _matrix(view: View) -> list[dict[str, Any]]:
    pairs = view.snapshot.signal("gpu.p2p").value
    return [pair for pair in pairs if isinstance(pair, dict)] if isinstance(pairs, list) else []
