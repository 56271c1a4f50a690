"""Huge pages that somebody set aside are memory that no training can have, and `free` does not say where it went."""

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, undecided, warned

CHECK = Check("no large part of memory is set aside and unused", "quick", 0.01)

_PART = 0.25
_SOURCE = "ours: a quarter of memory; Linux hugetlbpage: a page that is set aside serves nothing else"
_FIX = "if nothing here uses them: sysctl vm.nr_hugepages=0, and take hugepages= off the kernel's command line"


def judge(view: View) -> Outcome:
    """Warn where unused huge pages take more than their part; tell what transparent ones are set to."""
    free, total = (view.snapshot.signal(name) for name in ("host.hugepages_free", "host.memory_total"))
    if free.value is None:
        return skipped(f"the number of reserved huge pages is unknown here ({free.reason})", code="hugepages.hidden")
    if total.value is None or free.value > total.value:
        text = f"huge pages of {free.value!r} B in a memory of {total.value!r} B"
        return undecided(text, fix="take the snapshot again", code="hugepages.unexpected-value")
    limit = Limit(int(total.value * _PART), "B", _SOURCE, "at most")
    transparent = view.snapshot.signal("host.hugepages").value or "unknown"
    summary = f"{free.value / 2**30:.1f} GiB set aside and unused; transparent huge pages: {transparent}"
    if free.value > limit.value:
        return warned(summary, fix=_FIX, value=free.value, limit=limit, code="hugepages.unused")
    return passed(summary, value=free.value, limit=limit)
