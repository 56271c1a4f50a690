"""RDMA registers memory, registered memory is locked, and most systems let a user lock 8 MB."""

from __future__ import annotations

import resource

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, passed, skipped, undecided, warned
from envcheck.checks.support import process_group

CHECK = Check(promise="enough memory may be locked for RDMA", level="quick", gpus=1)


def measure(rank: Rank) -> Measured:
    """Return the bytes this environment may lock; -1 is no limit."""
    return {"rank": rank.rank, "bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]}


def judge(view: View, ranks: Ranks) -> Outcome:
    """Warn below the limit where an RDMA port is up: without one nothing needs as much."""
    from envcheck.checks import limits

    allowed, limit = (ranks[0].get("bytes") if ranks else None), limits.limit("memlock", "warn")
    if allowed is None or not process_group.finite(allowed):
        return undecided("the limit was not read", code="memlock.unread")
    if allowed == -1:
        return passed("memory may be locked without limit", value="unlimited", limit=limit)
    if allowed < limit.value:
        fix = "start the container with --ulimit memlock=-1, or raise memlock in limits.conf or the Slurm unit"
        text = f"{allowed / 2**20:.0f} MiB may be locked"
        if not any(port.get("state") == "ACTIVE" for port in view.snapshot.signal("ib.ports").value or []):
            return skipped(f"{text}; no RDMA port is up here that would need more", code="memlock.no-port")
        return warned(text, fix=fix, value=allowed, limit=limit, code="memlock.low")
    return passed(f"{allowed / 2**30:.0f} GiB may be locked", value=allowed, limit=limit)
