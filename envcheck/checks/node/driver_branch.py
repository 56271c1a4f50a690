"""A driver branch past its end of life gets no fixes, and newer CUDA wheels stop running on it one by one.

Seen in the wild: fleets still on R535 or R550 because nothing ever said so, until the floor of a CUDA family moved.
"""

from __future__ import annotations

from envcheck.checks import Check, Limit, Outcome, View, passed, undecided, warned
from envcheck.checks.node import _facts
from envcheck.matrix.facts import Facts

CHECK = Check(
    promise="the driver's branch is still maintained",
    level="quick",
    gpus=1,
    signals=("driver.version",),
)


def judge(view: View) -> Outcome:
    """Warn from the month after the branch's last; a branch whose end nobody published is reported as such."""
    driver, month = str(view.snapshot.signal("driver.version").value), view.snapshot.taken[:7]
    row = Facts(_facts.matrix(view)).branch(driver)
    if row is None or not month:
        return undecided(f"driver {driver} at {month or 'no date'}: its branch is not in the matrix", fix="refresh it")
    if row.end_of_life is None:
        return passed(f"R{row.branch}: no end of life is known", value=driver)
    limit = Limit(row.end_of_life, "month", f"matrix.yaml: drivers ({', '.join(row.source)})", "at most")
    if month > row.end_of_life:
        why = f"driver branch R{row.branch} ended in {row.end_of_life}"
        return warned(why, fix="move to a maintained branch: R580 is long-term", value=month, limit=limit)
    return passed(f"R{row.branch} is maintained until {row.end_of_life}", value=month, limit=limit)
