"""InfiniBand and RoCE ports of a snapshot, and which of them are each other's like."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Outcome, View, skipped, undecided

Port = dict[str, Any]
_TEXTS = ("device", "layer", "state")


def ports(view: View) -> list[Port] | Outcome:
    """Return the ports, or the outcome where there are none, nobody asked, or what was read is no port."""
    signal = view.snapshot.signal("ib.ports")
    if signal.why == "not-collected":
        return skipped(
            "this snapshot is older than the question: its InfiniBand and RoCE ports were not collected",
            code="signal.not-collected",
        )
    if signal.why == "unsupported":
        return skipped(f"this system does not show its network devices ({signal.reason})", code="infiniband.hidden")
    if signal.reason is not None:
        return undecided(
            f"ib.ports cannot be read: {signal.reason}", fix="mount /sys, or --skip it", code="infiniband.unread"
        )
    if not isinstance(signal.value, list) or not all(_is_port(port) for port in signal.value):
        return undecided(
            f"ib.ports has an unexpected type or value: {str(signal.value)[:60]}",
            fix="take the snapshot again",
            code="infiniband.unexpected-value",
        )
    return signal.value or skipped("no InfiniBand or RoCE device here", code="infiniband.none")


def _is_port(port: Any) -> bool:
    if not isinstance(port, dict) or not all(isinstance(port.get(key), str) for key in _TEXTS):
        return False
    counts = [*_table(port, "gids").values(), *(n for n in _table(port, "counters").values() if n is not None)]
    rate = port.get("rate")
    return all(_counts(number) for number in counts) and (rate is None or (_number(rate) and rate > 0))


def _table(port: Port, key: str) -> dict[str, Any]:
    table = port.get(key, {})
    return table if isinstance(table, dict) else {"unexpected type": -1}


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value < 1e15  # noqa: PLR2004 (no more of anything)


def _counts(value: Any) -> bool:
    return isinstance(value, int) and _number(value) and value >= 0


def active(port: Port) -> bool:
    """Return whether traffic can flow."""
    return str(port["state"]) == "ACTIVE"


def ethernet(port: Port) -> bool:
    """Return whether this is a RoCE port, or an iWARP one."""
    return str(port["layer"]) == "Ethernet"


def roce(port: Port) -> bool:
    """Return whether this port has RoCE's addresses: an iWARP card (RNIC) has none, and needs none."""
    return ethernet(port) and port.get("type") in (None, "CA")


def unused(group: list[Port]) -> list[Port]:
    """Return the ports that never had a link since the driver's load, beside one of their card that is up.

    Where a card of the kind has all its ports up they are wanted, and a port without a link is none of these.
    """
    cards: dict[object, list[Port]] = {}
    for port in group:
        cards.setdefault(port.get("slot"), []).append(port)
    spared = [
        ports for slot, ports in cards.items() if slot and any(map(active, ports)) and not all(map(active, ports))
    ]
    if len(spared) < sum(any(map(active, ports)) for ports in cards.values()):
        return []
    return [port for ports in spared for port in ports if not active(port) and _never_linked(port)]


def _never_linked(port: Port) -> bool:
    return port.get("physical") != "LinkUp" and port.get("counters", {}).get("link_downed") == 0


def groups(listed: list[Port]) -> list[list[Port]]:
    """Return the ports by kind: one link layer and one board, for only such are comparable."""
    kinds = sorted({_kind(port) for port in listed})
    return [[port for port in listed if _kind(port) == kind] for kind in kinds]


def _kind(port: Port) -> tuple[str, str]:
    return str(port["layer"]), str(port.get("model"))


def label(port: Port) -> str:
    """Return "mlx5_0/1", as ibstat and NCCL_IB_HCA count."""
    return f"{port['device']}/{port.get('port', 1)}"


def names(ports: list[Port]) -> str:
    """Return the labels, shortened where there are many."""
    labels = [label(port) for port in ports]
    return ", ".join(labels[:4]) + (f" and {len(labels) - 4} more" if len(labels) > 4 else "")  # noqa: PLR2004
