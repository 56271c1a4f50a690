"""The diagnosis of a large fleet: groups, then one representative of each, then a search inside what does not pass.

The model: a group passes where all its nodes and all links between them are sound. So a list of nodes that does not
pass has a shortest beginning that does not, and the last node of that beginning is at fault, or its link to an earlier
one. The search for it costs a logarithm of tests, and a node is named only after it failed twice with a partner that
passed elsewhere. A link between two nodes of different groups that are not their representatives is never measured:
`tournament` measures every pair.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Mapping, Sequence

from envcheck.fleet.pairs.model import Diagnosis, GroupResult, GroupTest, UnclearNodes
from envcheck.fleet.pairs.planner.measured import Round, measure_alike, usual_speed
from envcheck.fleet.pairs.planner.roll_call import RollCall, roll_call
from envcheck.fleet.pairs.planner.search import Search

Domains = Mapping[str, str]


def diagnosis(nodes: Sequence[str], domains: Domains) -> Generator[Round, Sequence[GroupResult], Diagnosis]:
    """Find what is at fault among these nodes; `domains` names the NVLink domain or switch of a node, if known."""
    call = yield from roll_call(nodes)
    groups = grouped(call.present, domains)
    screened = yield from measure_alike([GroupTest("group", group) for group in groups if len(group) > 1])
    usual = usual_speed((one.results[0] for one in screened), [len(one.nodes) for one in screened])
    search = Search(groups, usual, apart=bool(domains))
    search.learn(screened)
    if screened and not search.good:
        return _no_group_passed(call, [one.name for one in screened], screened[0].reason)
    for one in screened:
        if not one.passed:
            yield from search.inside(one)
    yield from search.across()
    return Diagnosis(
        (*call.blamed, *search.blamed),
        (*call.not_isolated, *search.not_isolated),
        (*call.undetermined, *search.undetermined),
        tuple(node for node in call.present if search.usable(node)),
        tuple(call.notes),
    )


def _no_group_passed(call: RollCall, names: Sequence[str], reason: str) -> Diagnosis:
    why = f"not one of {len(names)} groups passed, so that there is no known-good partner: {reason}"
    unclear = UnclearNodes(tuple(call.present), why, tuple(names))
    return Diagnosis(
        tuple(call.blamed), (*call.not_isolated, unclear), tuple(call.undetermined), notes=tuple(call.notes)
    )


def grouped(nodes: Sequence[str], domains: Domains) -> list[tuple[str, ...]]:
    """Return the nodes by domain, or in ceil(sqrt(N)) groups of one size or sizes that differ by one."""
    if not nodes:
        return []
    if domains:
        names = dict.fromkeys(domains.get(node, "") for node in nodes)
        return [tuple(node for node in nodes if domains.get(node, "") == name) for name in names]
    count = math.isqrt(len(nodes) - 1) + 1
    ends = [len(nodes) * number // count for number in range(count + 1)]
    return [tuple(nodes[start:end]) for start, end in itertools.pairwise(ends)]
