"""One rail of eight is down, or at a quarter of its rate, and NCCL goes on over the others without a word.

Seen in the wild: a cable that negotiated 100 instead of 400 Gb/s, a port that no subnet manager has configured, a RoCE
port without an address and so without a GID, a transceiver that drops its link every hour. Ports are compared with
their like (one link layer, one board), so that the unused second port of a card raises no alarm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from envcheck.checks import Check, Limit, Outcome, View, failed, limits, passed, skipped, undecided, warned, worst
from envcheck.checks.readings import infiniband_ports
from envcheck.checks.readings.infiniband_ports import Port
from envcheck.counting import counted

CHECK = Check(
    promise="every InfiniBand and RoCE port of a kind is up, at one rate, with a GID, and stays up",
    level="quick",
    seconds=0.01,
    limits=(
        "infiniband-excessive-buffer-overrun-errors",
        "infiniband-flaps",
        "infiniband-link-error-recovery",
        "infiniband-local-link-integrity-errors",
        "infiniband-port-rcv-errors",
        "infiniband-port-xmit-discards",
        "infiniband-symbol-error",
    ),
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
    """Judge each kind's ports by each other, and each port by its error counters; rails fail, others warn."""
    ports = infiniband_ports.ports(view)
    if isinstance(ports, Outcome):
        return ports
    findings = error_rates(view, ports)
    for group in infiniband_ports.groups(ports):
        for rule in (_down, _slow, _unaddressed, _flapping):
            findings += rule(view, group)
    return worst(findings, _sound(ports))


def _verdict(group: list[Port]) -> Callable[..., Outcome]:
    return failed if sum(map(infiniband_ports.active, group)) >= _RAILS else warned


def _down(_view: View, group: list[Port]) -> list[Outcome]:
    up = [port for port in group if infiniband_ports.active(port)]
    unused = infiniband_ports.unused(group)
    down = [port for port in group if not infiniband_ports.active(port) and port not in unused]
    waiting = [port for port in down if port.get("physical") == "LinkUp"]
    bought = bool(up) or bool(waiting) or len(down) >= _RAILS
    if not (len(down) < len(up) or (bought and not infiniband_ports.ethernet(group[0]))):
        return []
    verdict = _verdict(group) if len(down) < len(up) else warned
    limit = Limit(len(group), "ports", f"{_ACTIVE}; {_LIKE}")
    return [
        verdict(
            f"{infiniband_ports.label(port)}: {port['state']}, {port.get('physical')}; "
            f"{len(up)} of {len(group)} of its kind up",
            fix=_MANAGER if port in waiting and not infiniband_ports.ethernet(port) else _CABLE,
            value=len(up),
            unit="ports",
            limit=limit,
            code="infiniband.down",
            culprit=infiniband_ports.label(port),
        )
        for port in down
    ]


def _slow(_view: View, group: list[Port]) -> list[Outcome]:
    up = [port for port in group if infiniband_ports.active(port)]
    findings = [
        undecided(
            f"{infiniband_ports.label(port)}: active, and of no rate",
            fix="look at `ibstat` or `rdma link`",
            code="infiniband.rate-unread",
            culprit=infiniband_ports.label(port),
        )
        for port in up
        if port.get("rate") is None
    ]
    rated = [port for port in up if port.get("rate") is not None]
    best = max((port["rate"] for port in rated), default=0.0)
    slow = [port for port in rated if port["rate"] < best]
    verdict = _verdict(group) if len(slow) * 2 < len(rated) else warned
    for port in slow:
        name, rate = infiniband_ports.label(port), port["rate"]
        text, limit = f"{name}: {rate:g} Gb/s, where its like have {best:g}", Limit(best, "Gb/s", _LIKE)
        code = "infiniband.slow"
        findings.append(verdict(text, fix=_CABLE, value=rate, unit="Gb/s", limit=limit, code=code, culprit=name))
    return findings


def _unaddressed(_view: View, group: list[Port]) -> list[Outcome]:
    bad = [
        p
        for p in group
        if infiniband_ports.active(p) and infiniband_ports.roce(p) and not p.get("gids", {}).get(_V2.value)
    ]
    findings = []
    for port in bad:
        kinds, name = sorted(port.get("gids", {})), infiniband_ports.label(port)
        text = f"{name}: no RoCE v2 GID ({'only ' + ', '.join(kinds) if kinds else 'none at all'})"
        verdict = warned if kinds else _verdict(group)
        findings.append(verdict(text, fix=_GID, value=kinds, limit=_V2, code="infiniband.no-gid", culprit=name))
    return findings


def _flapping(view: View, group: list[Port]) -> list[Outcome]:
    """Warn of a port that lost its link far more often than its like; one alone is judged by the days it is up."""
    limit, uptime = limits.limit("infiniband-flaps", "warn"), view.snapshot.signal("host.uptime").value
    losses = {infiniband_ports.label(port): port.get("counters", {}).get("link_downed") or 0 for port in group}
    usual = min(losses.values()) if len(losses) > 1 else 0
    days = max(1.0, uptime / 86400) if isinstance(uptime, (int, float)) and len(losses) == 1 else 1.0
    beside = f"the least of its kind: {usual}" if len(losses) > 1 else f"in {counted(int(min(days, 1e6)), 'day')}"
    return [
        warned(
            f"lost its link: {name} {counted(count, 'time')} ({beside})",
            fix=_CABLE,
            value=count,
            unit=limit.unit,
            limit=limit,
            code="infiniband.flapping",
            culprit=name,
        )
        for name, count in losses.items()
        if not count - usual <= limit.value * days
    ]


def _sound(all_ports: list[Port]) -> Outcome:
    up, ports = [port for port in all_ports if infiniband_ports.active(port)], len(all_ports)
    if not up:
        return skipped(f"none of {counted(ports, 'InfiniBand or RoCE port')} is in use", code="infiniband.unused")
    rated = [port for port in up if port.get("rate") is not None]
    rates = sorted(
        {f"{port['rate']:g} Gb/s {'RoCE' if infiniband_ports.ethernet(port) else 'InfiniBand'}" for port in rated}
    )
    unused = f"; {ports - len(up)} unused" if ports > len(up) else ""
    firmware = sorted({f"{port.get('model')}: {port.get('firmware')}" for port in all_ports})
    text = f"{counted(len(up), 'port')} up at {', '.join(rates)}{unused}"
    limit = Limit("ACTIVE", "", _ACTIVE, "equal")
    return passed(text, value="ACTIVE", limit=limit, ports=all_ports, firmware=firmware)


_DAY: Final = 86400.0
_FIX: Final = "clean, reseat or exchange the cable or transceiver; `ibdiagnet --get_phy_info` shows which end it is"
_CONGESTED: Final = "look for congestion and credit loops (`ibdiagnet --pc`), then for a flapping link at the far end"


class Counter(NamedTuple):
    """One counter of a port: what it counts, its row of limits.json, and what to do."""

    name: str
    what: str
    row: str
    fix: str = _FIX


COUNTERS: Final = (
    Counter("symbol_error", "symbol errors", "infiniband-symbol-error"),
    Counter("link_error_recovery", "link recoveries", "infiniband-link-error-recovery"),
    Counter("port_rcv_errors", "packets received with errors", "infiniband-port-rcv-errors"),
    Counter("local_link_integrity_errors", "link integrity errors", "infiniband-local-link-integrity-errors"),
    Counter(
        "excessive_buffer_overrun_errors",
        "buffer overruns",
        "infiniband-excessive-buffer-overrun-errors",
        _CONGESTED,
    ),
    Counter(
        "port_xmit_discards", "packets discarded before they were sent", "infiniband-port-xmit-discards", _CONGESTED
    ),
)
# Ethernet discards what it cannot send by design: other counters show congestion.
_LOSSLESS: Final = ("port_xmit_discards",)


def error_rates(view: View, ports: list[Port]) -> list[Outcome]:
    """Return a warning for each active port and counter that is over its limit, for the days that the node is up."""
    days, since = _days(view)
    return [
        _finding(port, counter, count, days, since)
        for port in ports
        for counter in COUNTERS
        if (count := port.get("counters", {}).get(counter.name)) is not None
        and infiniband_ports.active(port)
        and not (counter.name in _LOSSLESS and infiniband_ports.ethernet(port))
        and not count <= limits.limit(counter.row, "warn").value * days
    ]


def _days(view: View) -> tuple[float, str]:
    """Return the days that counters may have run, at least one, and how that is known."""
    uptime = view.snapshot.signal("host.uptime").value
    if isinstance(uptime, (int, float)) and not isinstance(uptime, bool) and uptime > 0:
        return max(1.0, uptime / _DAY), f"in at most {max(1.0, uptime / 3600):.0f} h, since boot"
    return 1.0, "in a time that is not known, taken as a day"


def _finding(port: Port, counter: Counter, count: int, days: float, since: str) -> Outcome:
    limit = limits.limit(counter.row, "warn")
    return warned(
        f"{infiniband_ports.label(port)}: {count} {counter.what} {since}",
        fix=counter.fix,
        value=round(count / days, 2),
        unit=limit.unit,
        limit=limit,
        code=f"infiniband.{counter.name.replace('_', '-')}",
        culprit=infiniband_ports.label(port),
    )
