"""How right a diagnosis is: what was planted against what is named."""

from collections.abc import Iterable
from typing import NamedTuple

from envcheck.fleet.pairs.results import Diagnosis, name_of
from tests.fleet.simulated_fleet import Faults


class Score(NamedTuple):
    """Counts of planted faults that are named, of those that are not, and of names without a fault."""

    found: int
    missed: int
    wrong: int

    @classmethod
    def total(cls, scores: Iterable["Score"]) -> "Score":
        """Return the sum."""
        rows = [*scores]
        return cls(sum(s.found for s in rows), sum(s.missed for s in rows), sum(s.wrong for s in rows))

    @property
    def recall(self) -> float:
        """Return the share of the planted faults that is named; 1 where none was planted."""
        return self.found / (self.found + self.missed) if self.found + self.missed else 1.0

    @property
    def precision(self) -> float:
        """Return the share of the names that is right; 1 where nothing is named."""
        return self.found / (self.found + self.wrong) if self.found + self.wrong else 1.0


def score(diagnosis: Diagnosis, faults: Faults) -> Score:
    """Compare what is named with what was planted. A node that gave no report has to be named as undetermined.

    A GPU counts as its node; "not isolated" names nothing.
    """
    named = {frozenset(_who(blame.kind, blame.who)) for blame in diagnosis.blamed}
    named |= {frozenset(row.nodes) for row in diagnosis.undetermined}
    planted = _planted(faults)
    return Score(len(planted & named), len(planted - named), len(named - planted))


def _planted(faults: Faults) -> set[frozenset[str]]:
    if faults.kind == "bad-uplink":
        return {frozenset({f"{name_of(faults.who)} to other groups"})}
    if faults.kind == "bad-link":
        return {frozenset(faults.who)}
    return {frozenset({node}) for node in faults.who}


def _who(kind: str, who: str) -> list[str]:
    if kind == "gpu":
        return [who.partition(" ")[0]]
    return who.split("-") if kind == "link" and " " not in who else [who]
