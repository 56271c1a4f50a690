"""One rail of eight is down, or at a quarter of its rate, and NCCL goes on over the others without a word.

Seen in the wild: a cable that negotiated 100 instead of 400 Gb/s, a port that no subnet manager has configured, a RoCE
port without an address and so without a GID, a transceiver that drops its link every hour. Ports are compared with
their like (one link layer, one board), so that the unused second port of a management card raises no alarm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, failed, limits, passed, skipped, undecided, warned
from envcheck.checks.node import _ports
from envcheck.checks.node._ports import Port

CHECK = Check(
    promise="every InfiniBand and RoCE port of a kind is up, at one rate, with a GID, and stays up",
    level="quick",
    seconds=0.01,
)

# From so many ports of one kind on they are rails of a training node, and each of them is needed.
_RAILS: Final = 4
_CABLE: Final = "reseat or exchange the cable or transceiver, look at the switch's port (`ibstat`, `rdma link`)"
_MANAGER: Final = "start a subnet manager (opensm, or the switch's); the link is there and nobody has configured it"
_GID: Final = "give the interface an address and set it up: `show_gids` has to list a RoCE v2 GID (NCCL_IB_GID_INDEX)"
_ACTIVE: Final = "InfiniBand Architecture: only an active port carries traffic"
_LIKE: Final = "the other ports of its kind on this node"
_V2: Final = Limit("RoCE v2", "", "NCCL user guide, NCCL_IB_ROCE_VERSION_NUM: 2 is the default", "equal")


def judge(view: View) -> Outcome:
    """Judge each kind's ports by each other; the first trouble found is told, and fails where they are rails."""
    found = _ports.ports(view)
    if isinstance(found, Outcome):
        return found
    groups = _ports.groups(found)
    for trouble in (_down, _slow, _unaddressed, _flapping):
        outcome = next((told for group in groups if (told := trouble(view, group)) is not None), None)
        if outcome is not None:
            return outcome
    return _sound(found)


def _verdict(group: list[Port]) -> Callable[..., Outcome]:
    return failed if sum(map(_ports.active, group)) >= _RAILS else warned


def _down(_view: View, group: list[Port]) -> Outcome | None:
    up = [port for port in group if _ports.active(port)]
    down = [port for port in group if not _ports.active(port)]
    waiting = [port for port in down if port.get("physical") == "LinkUp"]
    bought = bool(up) or bool(waiting) or len(down) >= _RAILS
    missed = len(down) < len(up) or (bought and not _ports.ethernet(group[0]))
    if not down or not missed:
        return None
    states = ", ".join(sorted({f"{port['state']}, {port.get('physical')}" for port in down}))
    told = f"{_ports.told(down)}: {states}; {len(up)} of {len(group)} of its kind up"
    verdict = _verdict(group) if len(down) < len(up) else warned
    fix = _MANAGER if waiting and not _ports.ethernet(group[0]) else _CABLE
    return verdict(told, fix=fix, value=len(up), unit="ports", limit=Limit(len(group), "ports", f"{_ACTIVE}; {_LIKE}"))


def _slow(_view: View, group: list[Port]) -> Outcome | None:
    up = [port for port in group if _ports.active(port)]
    mute = [port for port in up if port.get("rate") is None]
    if mute:
        return undecided(f"{_ports.told(mute)}: active, and of no rate", fix="look at `ibstat` or `rdma link`")
    best = max((port["rate"] for port in up), default=0.0)
    slow = [port for port in up if port["rate"] < best]
    if not slow:
        return None
    least = min(port["rate"] for port in slow)
    told = f"{_ports.told(slow)}: {least:g} Gb/s, where its like have {best:g}"
    verdict = _verdict(group) if len(slow) * 2 < len(up) else warned
    return verdict(told, fix=_CABLE, value=least, unit="Gb/s", limit=Limit(best, "Gb/s", _LIKE))


def _unaddressed(_view: View, group: list[Port]) -> Outcome | None:
    bad = [p for p in group if _ports.active(p) and _ports.roce(p) and not p.get("gids", {}).get(_V2.value)]
    if not bad:
        return None
    kinds = sorted({kind for port in bad for kind in port.get("gids", {})})
    told = f"{_ports.told(bad)}: no RoCE v2 GID ({'only ' + ', '.join(kinds) if kinds else 'none at all'})"
    return (warned if kinds else _verdict(group))(told, fix=_GID, value=kinds, limit=_V2)


def _flapping(view: View, group: list[Port]) -> Outcome | None:
    """Warn of a port that lost its link far more often than its like; one alone is judged by the days it is up."""
    limit, uptime = limits.limit("infiniband-flaps", "warn"), view.snapshot.signal("host.uptime").value
    losses = {_ports.label(port): port.get("counters", {}).get("link_downed") or 0 for port in group}
    usual = min(losses.values()) if len(losses) > 1 else 0
    days = max(1.0, uptime / 86400) if isinstance(uptime, (int, float)) and len(losses) == 1 else 1.0
    bad = {name: count for name, count in losses.items() if not count - usual <= limit.value * days}
    if not bad:
        return None
    told = ", ".join(f"{name} {count} times" for name, count in bad.items())
    beside = f" (the least of its kind: {usual})" if len(losses) > 1 else f" in {days:.0f} days"
    return warned(f"lost its link: {told}{beside}", fix=_CABLE, value=max(bad.values()), unit=limit.unit, limit=limit)


def _sound(found: list[Port]) -> Outcome:
    up, ports = [port for port in found if _ports.active(port)], len(found)
    if not up:
        return skipped(f"none of {ports} InfiniBand or RoCE port(s) is in use")
    rates = sorted({f"{port['rate']:g} Gb/s {'RoCE' if _ports.ethernet(port) else 'InfiniBand'}" for port in up})
    unused = f"; {ports - len(up)} unused" if ports > len(up) else ""
    firmware = sorted({f"{port.get('model')}: {port.get('firmware')}" for port in found})
    told = f"{len(up)} port(s) up at {', '.join(rates)}{unused}"
    limit = Limit("ACTIVE", "", _ACTIVE, "equal")
    return passed(told, value="ACTIVE", limit=limit, ports=found, firmware=firmware)
