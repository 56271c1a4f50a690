"""One rail of eight is down, or at a quarter of its rate, and NCCL goes on over the others without a word.

Ports are compared with their like (one link layer, one board): the unused second port of a card is no fault.
"""

import itertools
from collections.abc import Callable
from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, failed, limits, passed, skipped, undecided, warned, worst
from envcheck.checks.gpu_readings import unreadable
from envcheck.counting import counted

_FIX = "clean, reseat or exchange the cable or transceiver; `ibdiagnet --get_phy_info` shows which end it is"
_CONGESTED = "look for congestion and credit loops (`ibdiagnet --pc`), then for a flapping link at the far end"
# What each counter counts, and what to do. Its row of limits.json is named after it.
COUNTERS = {
    "symbol_error": ("symbol errors", _FIX),
    "link_error_recovery": ("link recoveries", _FIX),
    "port_rcv_errors": ("packets received with errors", _FIX),
    "local_link_integrity_errors": ("link integrity errors", _FIX),
    "excessive_buffer_overrun_errors": ("buffer overruns", _CONGESTED),
    "port_xmit_discards": ("packets discarded before they were sent", _CONGESTED),
}
ROWS = {counter: f"infiniband-{counter.replace('_', '-')}" for counter in COUNTERS}
# Ethernet discards what it cannot send by design: other counters show congestion.
_LOSSLESS = ("port_xmit_discards",)
CHECK = Check(
    promise="every InfiniBand and RoCE port of a kind is up, at one rate, with a GID, and stays up",
    level="quick",
    seconds=0.01,
    limits=("infiniband-flaps", *sorted(ROWS.values())),
)

# From so many ports of one kind on they are rails of a training node, and each of them is needed.
_RAILS = 4
_CABLE = "reseat or exchange the cable or transceiver, look at the switch's port (`ibstat`, `rdma link`)"
_MANAGER = "start a subnet manager (opensm, or the switch's); the link is there and nobody has configured it"
_GID = "give the interface an address and set it up: `show_gids` has to list a RoCE v2 GID (NCCL_IB_GID_INDEX)"
_CRASHED = "look at `dmesg` for mlx5_core, power the machine off and on; if it comes back, exchange the card"
_ACTIVE = "InfiniBand Architecture: only an active port carries traffic"
_LIKE = "the other ports of its kind on this node"
_V2 = Limit("RoCE v2", "", "NCCL user guide, NCCL_IB_ROCE_VERSION_NUM: 2 is the default", "equal")
_DAY = 86400.0
Port = dict[str, Any]


def judge(view: View) -> Outcome:
    """Judge each kind's ports by each other, and each port by its error counters; rails fail, others warn."""
    listed = ports(view)
    if isinstance(listed, Outcome):
        return listed
    findings = [*_error_rates(view, listed), *_torn_down(view, listed)]
    kinds = sorted({_kind(port) for port in listed})
    for group in ([port for port in listed if _kind(port) == kind] for kind in kinds):
        findings += [*_down(group), *_slow(group), *_unaddressed(group), *_flapping(view, group)]
    return worst(findings, _sound(listed))


def _torn_down(view: View, listed: list[Port]) -> list[Outcome]:
    """Return each card whose firmware crashed: its driver shows neither ports nor interface (scitix/sichek#115)."""
    text, cards = "{} is a card whose driver shows neither ports nor interfaces", view.snapshot.signal("ib.torn_down")
    return [
        _verdict(listed)(text.format(bus), fix=_CRASHED, code="infiniband.torn-down", culprit=f"PCI {bus}")
        for bus in cards.value or []
    ]


def ports(view: View) -> list[Port] | Outcome:
    """Return the ports, or the outcome where there are none, or nobody asked."""
    found: list[Port] = view.snapshot.signal("ib.ports").value or []
    unread = unreadable(view, "ib.ports", "mount /sys, or --skip it", ("unsupported",))
    return found or unread or skipped("no InfiniBand or RoCE device here", code="infiniband.none")


def _kind(port: Port) -> tuple[str, str]:
    return str(port["layer"]), str(port.get("model"))


def active(port: Port) -> bool:
    """Return whether traffic can flow."""
    return bool(port["state"] == "ACTIVE")


def _ethernet(port: Port) -> bool:
    return bool(port["layer"] == "Ethernet")


def _label(port: Port) -> str:
    return f"{port['device']}/{port.get('port', 1)}"


def _count(port: Port, counter: str) -> Any:
    return (port.get("counters") or {}).get(counter)


def _unused(group: list[Port]) -> list[Port]:
    """Return ports without a link since the driver's load beside one that is up, where no card like it has all up."""
    cards: dict[object, list[Port]] = {}
    for port in group:
        cards.setdefault(port.get("slot"), []).append(port)
    used = [(slot, card) for slot, card in cards.items() if any(map(active, card))]
    spared = [card for slot, card in used if slot and not all(map(active, card))]
    down = [port for card in spared for port in card if not active(port)] if len(spared) == len(used) else []
    return [port for port in down if port.get("physical") != "LinkUp" and _count(port, "link_downed") == 0]


def _verdict(group: list[Port]) -> Callable[..., Outcome]:
    return failed if sum(map(active, group)) >= _RAILS else warned


def _down(group: list[Port]) -> list[Outcome]:
    up, unused = [port for port in group if active(port)], _unused(group)
    down = [port for port in group if not active(port) and port not in unused]
    waiting = [port for port in down if port.get("physical") == "LinkUp"]
    bought = bool(up or waiting) or len(down) >= _RAILS
    if not (len(down) < len(up) or (bought and not _ethernet(group[0]))):
        return []
    verdict, findings = _verdict(group) if len(down) < len(up) else warned, []
    bound = Limit(len(group), "ports", f"{_ACTIVE}; {_LIKE}")
    made: dict[str, Any] = {"value": len(up), "limit": bound, "code": "infiniband.down"}
    for port in down:
        name, fix = _label(port), _MANAGER if port in waiting and not _ethernet(port) else _CABLE
        text = f"{name}: {port['state']}, {port.get('physical')}; {len(up)} of {len(group)} of its kind up"
        findings.append(verdict(text, fix=fix, culprit=name, **made))
    return findings


def _slow(group: list[Port]) -> list[Outcome]:
    findings, rated = [], [port for port in group if active(port) and port.get("rate") is not None]
    for name in (_label(port) for port in group if active(port) and port.get("rate") is None):
        text, fix = f"{name}: active, and of no rate", "look at `ibstat` or `rdma link`"
        findings.append(undecided(text, fix=fix, code="infiniband.rate-unread", culprit=name))
    best = max((port["rate"] for port in rated), default=0.0)
    slow = [port for port in rated if port["rate"] < best]
    verdict = _verdict(group) if len(slow) * 2 < len(rated) else warned
    for port in slow:
        name, rate, code = _label(port), port["rate"], "infiniband.slow"
        text, limit = f"{name}: {rate:g} Gb/s, where its like have {best:g}", Limit(best, "Gb/s", _LIKE)
        findings.append(verdict(text, fix=_CABLE, value=rate, limit=limit, code=code, culprit=name))
    return findings


def _unaddressed(group: list[Port]) -> list[Outcome]:
    """Return each RoCE port without a RoCE v2 GID; an iWARP card (RNIC) has none, and needs none."""
    findings = []
    for port in group:
        kinds, name = port.get("gids") or {}, _label(port)
        if active(port) and _ethernet(port) and port.get("type") in (None, "CA") and not kinds.get(_V2.value):
            text = f"{name}: no RoCE v2 GID ({'only ' + ', '.join(sorted(kinds)) if kinds else 'none at all'})"
            verdict, code = warned if kinds else _verdict(group), "infiniband.no-gid"
            findings.append(verdict(text, fix=_GID, value=sorted(kinds), limit=_V2, code=code, culprit=name))
    return findings


def _flapping(view: View, group: list[Port]) -> list[Outcome]:
    """Warn of a port that lost its link far more often than its like; one alone is judged by the days it is up."""
    limit = limits.limit("infiniband-flaps", "warn")
    losses = {_label(port): _count(port, "link_downed") or 0 for port in group}
    alone = len(losses) == 1
    usual, days = 0 if alone else min(losses.values()), _days(view)[0] if alone else 1.0
    beside = f"in {counted(int(min(days, 1e6)), 'day')}" if alone else f"the least of its kind: {usual}"
    often = {name: count for name, count in losses.items() if count - usual > limit.value * days}
    made: dict[str, Any] = {"fix": _CABLE, "limit": limit, "code": "infiniband.flapping"}
    text = "lost its link: {} {} ({})"
    return [
        warned(text.format(name, counted(count, "time"), beside), value=count, culprit=name, **made)
        for name, count in often.items()
    ]


def _error_rates(view: View, ports: list[Port]) -> list[Outcome]:
    (days, since), findings = _days(view), []
    for port, (counter, (what, fix)) in itertools.product(filter(active, ports), COUNTERS.items()):
        count, limit = _count(port, counter), limits.limit(ROWS[counter], "warn")
        lossy = counter in _LOSSLESS and _ethernet(port)
        if count is not None and not lossy and count > limit.value * days:
            text, code = f"{_label(port)}: {count} {what} {since}", f"infiniband.{counter.replace('_', '-')}"
            value, culprit = round(count / days, 2), _label(port)
            findings.append(warned(text, fix=fix, value=value, limit=limit, code=code, culprit=culprit))
    return findings


def _days(view: View) -> tuple[float, str]:
    """Return the days that counters may have run, at least one, and how that is known."""
    uptime = view.snapshot.signal("host.uptime").value
    if uptime:
        return max(1.0, uptime / _DAY), f"in at most {max(1.0, uptime / 3600):.0f} h, since boot"
    return 1.0, "in a time that is not known, taken as a day"


def _sound(ports: list[Port]) -> Outcome:
    up, total = [port for port in ports if active(port)], len(ports)
    if not up:
        return skipped(f"none of {counted(total, 'InfiniBand or RoCE port')} is in use", code="infiniband.unused")
    rated = [port for port in up if port.get("rate") is not None]
    rates = sorted({f"{port['rate']:g} Gb/s {'RoCE' if _ethernet(port) else 'InfiniBand'}" for port in rated})
    unused = f"; {total - len(up)} unused" if total > len(up) else ""
    text = f"{counted(len(up), 'port')} up at {', '.join(rates)}{unused}"
    return passed(text, value="ACTIVE", limit=Limit("ACTIVE", "", _ACTIVE, "equal"), ports=ports)
