"""A driver branch past its end of life gets no fixes, and newer CUDA wheels stop running on it one by one."""

import re

from envcheck.checks import Check, Limit, Outcome, View, matrix_facts, passed, skipped, undecided, warned
from envcheck.matrix.facts.lookup import Facts

CHECK = Check("the driver's branch is still maintained", "quick", gpus=1, signals=("driver.version",))

_UNLISTED = "of a branch that is not in the matrix"
_REFRESH = "refresh the matrix (`envcheck matrix check`), or install a driver of a branch that it lists"
_NUMBER = re.compile(r"\d{1,9}\.\d")


def judge(view: View) -> Outcome:
    """Warn from the month after the branch's last, and of a branch that the matrix does not know."""
    driver, month = str(view.snapshot.signal("driver.version").value), view.snapshot.taken[:7]
    elsewhere = "Windows" if matrix_facts.wsl(view) else "JetPack" if matrix_facts.jetson(view) else ""
    if elsewhere:
        text = f"driver {driver} is the one of {elsewhere}: NVIDIA's Linux branches and their ends do not apply to it"
        return skipped(text, code="driver-branch.not-applicable")
    if not _NUMBER.match(driver) or not month:
        text = f"driver {driver} at {month or 'no date'}"
        return undecided(text, fix="refresh it", code="driver-branch.unexpected-value")
    facts = Facts(matrix_facts.matrix(view))
    row = facts.branch(driver)
    if row is None:
        newest = max((int(row.branch) for row in facts.drivers), default=0)
        newer = int(driver.split(".", maxsplit=1)[0]) > newest
        age = f"newer than R{newest}, the newest branch of the matrix" if newer else _UNLISTED
        return warned(f"driver {driver} is {age}", fix=_REFRESH, value=driver, code="driver-branch.unknown")
    if row.end_of_life is None:
        return passed(f"R{row.branch}: no end of life is known", value=driver)
    limit = Limit(row.end_of_life, "", f"matrix.yaml: drivers ({', '.join(row.source)})", "at most")
    if month > row.end_of_life:
        why, fix = (
            f"driver branch R{row.branch} ended in {row.end_of_life}",
            "move to a maintained branch: R580 is long-term",
        )
        return warned(why, fix=fix, value=month, limit=limit, code="driver-branch.ended")
    return passed(f"R{row.branch} is maintained until {row.end_of_life}", value=month, limit=limit)
