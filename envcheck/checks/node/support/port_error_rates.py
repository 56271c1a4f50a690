"""Error counters of InfiniBand and RoCE ports as rates: how many there may be for each day that the port was up.

A counter begins when the port comes up, or when somebody clears it, and the kernel does not say when that was. The
node's uptime is the longest that it can be, so the rate found is the least that it can be. The limits are rows of
limits.json.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from envcheck.checks import Outcome, View, limits, warned
from envcheck.checks.node.support import infiniband_ports
from envcheck.checks.node.support.infiniband_ports import Port

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


def findings(view: View, ports: list[Port]) -> list[Outcome]:
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
