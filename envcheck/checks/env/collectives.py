"""An all-reduce can be right while a message of another collective lands in the wrong place.

The operations and types are those of NVIDIA/nccl-tests. Integers from a seed fill what each dtype holds exactly, and
what has to arrive is computed in plain Python, so nothing may differ (`ENVCHECK_SEED` repeats a run).
"""

from __future__ import annotations

import random
import re
import time
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.collectives import collective_cases
from envcheck.checks.collectives.collective_cases import Bench, CollectiveCase, Part, Setting
from envcheck.checks.support import process_group, training
from envcheck.counting import numbered

CHECK = Check(
    promise="every collective, in every operation and dtype, delivers every element where it belongs, and waits",
    level="standard",
    seconds=3.0,
    cpu_seconds=0.7,
    timeout=180.0,
    ranks=0,
    least_ranks=2,
)

LIMIT = Limit(
    0, "wrong elements", "integers that are exact in the dtype are moved or combined: none may differ", "at most"
)
# What came to gloo in later releases of PyTorch (documentation of torch.distributed, table of backends).
LATER_IN_GLOO = ("reduce-scatter", "all-to-all")
# Who waits for a rank that comes late: those at a barrier, and a collective that was started and not waited for.
WAITS = BARRIER, STARTED = "barrier", "async all-reduce"
LATE_AT_MOST, PAUSE, _COUNT = 3, 0.05, 1021
_SHOWN = 12
_LOST = ("connection closed", "connection reset", "broken pipe", "aborted", "timed out")
# What a part of a case says of where it came from, and of the group that it was moved in.
_FROM = re.compile(r"\bfrom (?:rank|root) ([0-9]+)")
_TEAM = re.compile(r"\bgroup of ranks \[([0-9, ]*)\]")
_SEVERAL = 2
_P2P = "try NCCL_P2P_DISABLE=1: right then, peer-to-peer is broken between these ranks (ACS, bridge, link)"
_APART = "run it with fewer ranks or nodes, or `envcheck fleet pairs`: what is right without a rank names that rank"
_WAIT_FIX = "run it without NCCL_*, TORCH_NCCL_* and GLOO_* settings; another torch or NCCL release may be at fault"


class Record:
    """What a rank has done so far, so that an exception takes nothing of it away."""

    def __init__(self) -> None:
        self.now = ""
        self.done: dict[str, Measured] = {}
        self.wrong: list[Measured] = []
        self.unsupported: dict[str, str] = {}
        self.waits: list[Measured] = []

    def add(self, collective: str, name: str, slack: float, parts: list[Part]) -> None:
        """Compare a case's parts in plain Python, and keep what is wrong."""
        done = self.done.setdefault(collective, {"cases": 0, "elements": 0, "wrong": 0})
        differences = [wrong_part for part in parts if (wrong_part := difference(part, slack))]
        done["cases"] += 1
        done["elements"] += sum(len(expected) for _, _, expected in parts)
        done["wrong"] += sum(wrong_part["count"] for wrong_part in differences)
        if differences and sum(row["collective"] == collective for row in self.wrong) < _SHOWN:
            self.wrong.append({"collective": collective, "case": name, **differences[0]})

    def measured(self) -> Measured:
        """Return it as plain data."""
        return {"done": self.done, "wrong": self.wrong, "unsupported": self.unsupported, "waits": self.waits}


def difference(part: Part, slack: float = 0.0) -> Measured:
    """Return where what arrived first differs by more than `slack`, and how often; nothing where it never does."""
    which, actual, expected = part
    if actual == expected:
        return {}
    far = [
        index for index, (g, e) in enumerate(zip(actual, expected)) if not (g == e or (slack and abs(g - e) <= slack))
    ]
    far += range(min(len(actual), len(expected)), max(len(actual), len(expected)))
    if not far:
        return {}
    got_value, expected_value = (repr(side[far[0]]) if far[0] < len(side) else "nothing" for side in (actual, expected))
    return {"which": which, "index": far[0], "got": got_value[:60], "expected": expected_value[:60], "count": len(far)}


def measure(rank: Rank) -> Measured:
    """Run every case on all ranks and compare every element; an exception ends it and is reported with its case."""
    import torch

    device, record, seed = process_group.device_of(rank), Record(), training.seed_of(rank)
    entry: Measured = {**process_group.standing(rank, torch.zeros(1, device=device)), "seed": seed}
    try:
        with process_group.group(rank) as dist:
            entry["backend"] = dist.get_backend()
            if rank.world > 1:
                _run(Setting(torch, dist, rank, device, seed), record)
    except Exception as error:
        if not record.now:
            raise
        entry["raised"] = {"case": record.now, "says": process_group.quoted(error), "at": time.time()}
    return {**entry, **record.measured()}


def _run(setting: Setting, record: Record) -> None:
    for case in collective_cases.cases(setting):
        record.now, bench = case.name(), Bench(setting, case)
        try:
            parts = collective_cases.CALLS[case.collective](bench)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            # PyTorch's releases since 1.13 have not all had these for gloo.
            later = "average" in case or "bfloat16" in case or case.collective.startswith(LATER_IN_GLOO)
            if not (later and process_group.gloo_lacks(setting.rank.backend, error)):
                raise
            record.unsupported[record.now] = process_group.quoted(error)
            continue
        record.add(case.collective, record.now, collective_cases.slack(bench.kind) if case.operation else 0.0, parts)
    world, chance = setting.rank.world, random.Random(setting.seed)  # noqa: S311 (test data, no secret)
    for late in sorted(chance.sample(range(world), min(world, LATE_AT_MOST))):
        for operation in WAITS:
            record.now = f"{operation} with rank {late} late"
            record.waits.append(_waited(setting, late, operation, record))
    record.now = "leaving the group"


def _waited(setting: Setting, late: int, operation: str, record: Record) -> Measured:
    """Have all ranks wait for `late`; return when it came and this one got out (clock_gettime(2)), and if early."""
    times: Measured = {"what": operation, "late": late}
    bench = Bench(setting, CollectiveCase(f"{operation} with a late rank", "sum", "float32", _COUNT, late))
    tensor, mine = bench.own(), setting.rank.rank
    setting.dist.barrier()
    if mine == late:
        time.sleep(PAUSE)
        times["came"] = time.monotonic()
    if operation == BARRIER:
        setting.dist.barrier()
    else:
        work = setting.dist.all_reduce(tensor, async_op=True)
        if mine != late:
            times |= {"early": bool(work.is_completed()), "asked": time.monotonic()}
        work.wait()
        arrived = tensor.tolist()
        times["complete"] = bool(work.is_completed())
        record.add(operation, record.now, 0.0, [("after the wait", arrived, bench.reduced())])
    if setting.device.type == "cuda":
        setting.torch.cuda.synchronize()
    return {**times, "out": time.monotonic()}


@process_group.sound(alone="one rank sends to nobody")
def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail on each wrong element, exception and rank that did not wait; what did not run is no pass."""
    findings = [*_wrong(ranks), *_raised(ranks), *_not_waited(ranks)]
    if not any(entry.get("raised") for entry in ranks):
        findings += _missing(ranks)
    return worst(findings, otherwise=findings[0]) if findings else _exact(ranks)


def _sender(ranks: Ranks) -> int | None:
    """Return the rank that everything wrong came from, at two others or more; None where nothing shows one.

    What arrived in a sub-group without it has to be right.
    """
    rows = [(entry["rank"], str(row["which"])) for entry in ranks for row in entry.get("wrong") or []]
    named = [(receiver, int(found[1])) for receiver, which in rows if (found := _FROM.search(which))]
    senders = {sender for _, sender in named}
    if len(senders) != 1 or len({receiver for receiver, _ in named} - senders) < _SEVERAL:
        return None
    [sender] = senders
    groups = [_TEAM.findall(which)[-1] for _, which in rows if _TEAM.search(which)]
    return sender if all(str(sender) in group.split(", ") for group in groups) else None


def _wrong(ranks: Ranks) -> list[Outcome]:
    findings, sender = [], _sender(ranks)
    local = len({entry.get("host") for entry in ranks}) == 1 and ranks[0].get("backend") == "nccl"
    for name in dict.fromkeys(row["collective"] for entry in ranks for row in entry.get("wrong") or []):
        rows = [(e["rank"], row) for e in ranks for row in e.get("wrong") or [] if row["collective"] == name]
        culprits, (rank, first) = sorted({number for number, _ in rows}), rows[0]
        came = "" if sender is None else f"; all that is wrong came from rank {sender}"
        everywhere = "on every rank" if len(culprits) == len(ranks) else f"on {numbered('rank', culprits)} alone"
        which = f", {first['which']}" if first["which"] else ""
        summary = f"{name} is wrong {everywhere}: rank {rank}, {first['case']}{which}, index {first['index']}: "
        finding = failed(
            f"{summary}{first['got']}, not {first['expected']}{came}",
            fix=_P2P if local else _APART,
            value=sum(entry["done"][name]["wrong"] for entry in ranks if name in (entry.get("done") or {})),
            limit=LIMIT,
            code="data.wrong",
            culprit=f"{name}, rank {', '.join(map(str, culprits if sender is None else [sender]))}",
            ranks=culprits if sender is None else [sender],
            first={"collective": name, "rank": rank, **first},
            seed=ranks[0].get("seed"),
        )
        findings.append(finding)
    return findings


def _raised(ranks: Ranks) -> list[Outcome]:
    """Return a failure for each rank that raised; those that only lost their connection to one are named beside it."""
    raised = sorted((entry["raised"]["at"], entry["rank"], entry["raised"]) for entry in ranks if entry.get("raised"))
    lost = [rank for _, rank, error in raised if any(word in error["says"].lower() for word in _LOST)]
    causes = [raising for raising in raised if raising[1] not in lost] or raised[:1]
    also = [rank for _, rank, _ in raised if rank not in [cause[1] for cause in causes]]
    beside = f"; {numbered('rank', also)} then lost the connection" if also else ""
    return [
        failed(
            f"rank {rank} raised in {error['case']}: {error['says']}{beside}",
            fix="see the check's log; the message names NCCL's, CUDA's or gloo's own reason",
            code="collective.raised",
            culprit=f"rank {rank}",
            ranks=[rank],
        )
        for _, rank, error in causes
    ]


def _not_waited(ranks: Ranks) -> list[Outcome]:
    unshown = [f"rank {entry['rank']}" for entry in ranks if not _shown(entry, ranks[0])]
    if unshown and not any(entry.get("raised") for entry in ranks):
        summary = "does not say when it waited for late ranks"
        return [undecided(f"{who} {summary}", code="collective.unshown", culprit=who) for who in unshown]
    waits = [(entry, times) for entry in ranks for times in entry.get("waits") or []]
    came = {(t["what"], t["late"], entry.get("host")): t["came"] for entry, t in waits if "came" in t}
    findings = []
    for entry, times in waits:
        operation, late, out, who = times["what"], times["late"], times.get("out"), f"rank {entry['rank']}"
        since = came.get((operation, late, entry.get("host")))
        why = "" if process_group.finite(out) else "did not say when it ended"
        if since is not None and not why:
            why = "ended too early" if out < since else ""
            if times.get("early", False) is not False and times.get("asked", 0.0) < since:
                why = "said that it was complete too early"
        about: dict[str, Any] = {"culprit": who, "rank": entry["rank"], "late": late}
        if why:
            summary = f"{who}: {operation} {why}: rank {late} had not come"
            findings.append(failed(summary, fix=_WAIT_FIX, code="collective.no-wait", **about))
        if times.get("complete", True) is not True:
            summary = f"{who}: {operation} is not complete after wait()"
            findings.append(failed(summary, fix=_WAIT_FIX, code="collective.incomplete", **about))
    return findings


def _shown(entry: Measured, first: Measured) -> bool:
    waits = entry.get("waits") or []
    for times in waits:
        if not process_group.counts(times.get("late")) or "out" not in times:
            return False
        late, started = times["late"] == entry["rank"], times.get("what") == STARTED
        owed = {"came": late, "complete": started, "early": started and not late}
        if any(due and name not in times for name, due in owed.items()) or ("came" in times and not late):
            return False
        if late and not process_group.positive(times["came"]):
            return False
    named = [(times["what"], times["late"]) for times in waits]
    others = [(times.get("what"), times.get("late")) for times in first.get("waits") or []]
    return named == others and set(WAITS) <= {what for what, _ in named}


def _missing(ranks: Ranks) -> list[Outcome]:
    findings = []
    for entry in ranks:
        lacking, done = entry.get("unsupported") or {}, entry.get("done") or {}
        gloo = entry["backend"] == "gloo"
        every = [name for name in collective_cases.CALLS if not (gloo and name.startswith(LATER_IN_GLOO))]
        unrun = [name for name in dict.fromkeys([*every, STARTED, *done]) if not _ran(done.get(name))]
        alike = _counts(entry) == _counts(ranks[0])
        if entry["backend"] != "gloo" and lacking:
            unrun += [*lacking]
        if unrun or not alike or not entry.get("waits"):
            summary = ", ".join(unrun[:5]) or "the same as the other ranks"
            who = f"rank {entry['rank']}"
            findings.append(undecided(f"{who} did not run {summary}", code="collective.missing", culprit=who))
    return findings


def _ran(done: Any) -> bool:
    return (
        isinstance(done, dict)
        and all(process_group.counts(done.get(name)) for name in ("cases", "wrong", "elements"))
        and min(done["cases"], done["elements"]) > 0
    )


def _counts(entry: Measured) -> list[Any]:
    done = entry.get("done") or {}
    left_out = [*(entry.get("unsupported") or {}), entry.get("seed")]
    return [*((name, row.get("cases")) for name, row in done.items() if isinstance(row, dict)), *left_out]


def _exact(ranks: Ranks) -> Outcome:
    done, lacking = ranks[0]["done"], ranks[0].get("unsupported") or {}
    cases, elements = (sum(row[name] for row in done.values()) for name in ("cases", "elements"))
    where = f"{len(ranks)} ranks over {ranks[0]['backend']}"
    also = f"; this gloo lacks {len(lacking)} of the cases" if lacking else ""
    message = f"{len(done)} kinds of collectives, {cases} cases, {elements} elements: each in its place on {where}"
    details = {"seed": ranks[0].get("seed"), "results": done, "unsupported": lacking}
    return passed(f"{message}, seed {details['seed']}{also}", value=0, limit=LIMIT, **details)
