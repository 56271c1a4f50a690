"""NCCL's own log: asked for before a group is joined, read back after, parsed without trusting a line of it.

NCCL writes what it connected, and over what, at level INFO; NCCL_DEBUG_FILE keeps that out of the check's output
(NVIDIA NCCL user guide, Environment variables). The lines are those of src/transport/{p2p,shm,net,nvls}.cc and
src/enqueue.cc from 2.8 to 2.30: the channel's and the device's number changed their form, algorithms their names. Since
2.22 a connection is made when a collective first needs it, so collectives have to be run before the log says much.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envcheck.checks import Measured, Rank

Logs = Mapping[int, Any]  # what `parse` made of each rank's
Pairs = dict[tuple[int, int], set[str]]  # the ways between two ranks

# TUNING names the algorithm of each call; a line per call has no place in a measurement of microseconds.
SUBSYSTEMS = "INIT,ENV,GRAPH,P2P,SHM,NET,NVLS"
MOST = 8 << 20  # more of a log than 64 ranks write
_MANY = 4096
_EDGE = re.compile(
    r"Channel \d+(?:/\d+)? : (\d{1,6})\[\w+\] -> (\d{1,6})\[\w+\](?: \[(?:send|receive)\])? "
    r"via (P2P|SHM|NET)/([^/(\r\n]{1,40})"
)
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_NETWORK = re.compile(r"NCCL INFO Using network ([^\r\n]{1,60})")
_AVAILABLE = re.compile(r"NVLS multicast support is (not )?available")
_USED = re.compile(r"NVLS comm (?:0x)?[0-9a-fA-F]+ headRank")
_SETTING = re.compile(r"NCCL INFO (NCCL_[A-Z0-9_]{1,40}) set by environment to ([^\r\n]{1,60})")
_CALL = re.compile(r"(?:(\w{1,20}): )?(\d{1,15}) Bytes -> Algo (\w{1,20}) proto")
_TROUBLE = re.compile(r"nvls\.cc:\d+ NCCL WARN [^\r\n]*|NCCL WARN [^\r\n]*(?:NVLS|[Mm]ulticast)[^\r\n]*")
# Settings that choose what ranks talk over.
CHOICES = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_ALGO", "NCCL_NET")
WAYS = ("P2P/", "SHM/", "NET/")
# NCCL_ALGO_* of src/include/nccl_tuner.h, as logs before 2.26 have them.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")


def ask(rank: Rank, *, calls: bool = False) -> None:
    """Have NCCL, if that is this rank's backend, log into its scratch; `calls` has each call's algorithm too.

    Has to come before the process group: NCCL reads its environment once.
    """
    if rank.backend != "nccl":
        return
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_SUBSYS"] = f"{SUBSYSTEMS},TUNING" if calls else SUBSYSTEMS
    # NCCL expands %h and %p; %% is a percent sign.
    os.environ["NCCL_DEBUG_FILE"] = str(_file(rank)).replace("%", "%%")


def read(rank: Rank) -> Measured:
    """Return what NCCL logged of this rank, as `parse` has it; {} where it logged nothing."""
    with contextlib.suppress(OSError), _file(rank).open("rb") as log:
        return parse(log.read(MOST).decode(errors="replace"))
    return {}


def _file(rank: Rank) -> Path:
    return Path(rank.scratch, f"nccl.rank{rank.rank}.log")


def parse(text: str) -> Measured:
    """Return what a log says: {lines, version, network, edges, nvls, algorithms, settings}.

    `edges` is {"0>1": ["P2P/CUMEM"]}, by rank; `nvls` {available, used, trouble}, None where it says nothing;
    `algorithms` {"AllReduce": "NVLS"}, of the largest message; `settings` the NCCL_* that it took from the environment
    or from nccl.conf.
    """
    edges: dict[str, list[str]] = {}
    for sender, receiver, kind, how in _EDGE.findall(text):
        ways = edges.setdefault(f"{int(sender)}>{int(receiver)}", [])
        way = f"{kind}/{how.strip()}"
        if way not in ways and len(edges) <= _MANY:
            ways.append(way)
    return {
        "lines": text.count("NCCL INFO"),
        "version": _last(_VERSION, text),
        "network": _last(_NETWORK, text),
        "edges": edges,
        "nvls": _nvls(text),
        "algorithms": _algorithms(text),
        "settings": {name: value.strip().rstrip(".") for name, value in _SETTING.findall(text)},
    }


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    matches = pattern.findall(text)
    return str(matches[-1]).strip() if matches else None


def _nvls(text: str) -> Measured:
    offers = _AVAILABLE.findall(text)
    trouble = _TROUBLE.search(text)
    return {
        "available": None if not offers else not any(offers),
        "used": bool(_USED.search(text)),
        "trouble": trouble.group(0)[:200].strip() if trouble else None,
    }


def _algorithms(text: str) -> dict[str, str]:
    largest: dict[str, tuple[int, str]] = {}
    for function, size, algorithm in _CALL.findall(text):
        held = largest.get(function or "any", (-1, ""))
        if int(size) >= held[0]:
            largest[function or "any"] = (int(size), _named(algorithm))
    return {function: algorithm for function, (_, algorithm) in largest.items()}


def _named(algorithm: str) -> str:
    listed = algorithm.isdecimal() and algorithm.isascii() and int(algorithm) < len(_ALGORITHMS)
    return _ALGORITHMS[int(algorithm)] if listed else algorithm.upper()


def edges(logs: Logs) -> Pairs:
    """Return, for each pair of ranks (lower first), every way that the logs of all ranks name between them."""
    pairs: Pairs = {}
    for log in logs.values():
        for edge, ways in ((log or {}).get("edges") or {}).items():
            sender, _, receiver = str(edge).partition(">")
            pair = (min(int(sender), int(receiver)), max(int(sender), int(receiver)))
            pairs.setdefault(pair, set()).update(map(str, ways))
    return pairs


def nvls(logs: Logs) -> Measured:
    """Return what all ranks' logs say of NVLS: available to all, used for large all-reduces, and the first trouble.

    Used is what calls say, where they were logged; buffers alone prove it only where nobody declined it: they are
    made before an algorithm is chosen.
    """
    nvls = [(log or {}).get("nvls") or {} for log in logs.values()]
    offered = [report["available"] for report in nvls if report.get("available") is not None]
    chosen = merged(logs, "algorithms").get("AllReduce", "")
    made = any(report.get("used") is True for report in nvls) and not nvls_declined(merged(logs, "settings"))
    return {
        "available": all(offered) if offered else None,
        "used": chosen.startswith("NVLS") if chosen else made,
        "trouble": next((report["trouble"] for report in nvls if report.get("trouble")), None),
    }


def merged(logs: Logs, field: str) -> dict[str, str]:
    """Return the `algorithms` or `settings` of all ranks' logs as one."""
    return {str(name): str(value) for log in logs.values() for name, value in ((log or {}).get(field) or {}).items()}


def nvls_declined(settings: Mapping[str, str]) -> bool:
    """Return whether a setting turns NVLS off."""
    algorithms = settings.get("NCCL_ALGO", "").upper()
    excluded = "NVLS" in algorithms if algorithms.startswith("^") else bool(algorithms) and "NVLS" not in algorithms
    return settings.get("NCCL_NVLS_ENABLE") == "0" or excluded
