"""Who waits for whom: a barrier, and a collective that was started and not waited for, while one rank comes late.

The late rank comes only after all others have left word in a file, or in a store, that they are there. Times are those
of the machine's one monotonic clock (clock_gettime(2), CLOCK_MONOTONIC), which processes of a machine can compare.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envcheck.checks import Measured, Outcome, Ranks, failed, undecided
from envcheck.checks.collectives import collective_cases
from envcheck.checks.collectives.collective_cases import Bench, CollectiveCase, Part, Setting
from envcheck.checks.support import process_group

LATE_AT_MOST = 3
BARRIERS = ("barrier", "barrier of a group", "barrier that is waited for later")
STARTED = ("async all-reduce", "async broadcast", "async all-gather")
WAITS = (*BARRIERS, *STARTED)
PATIENCE, PAUSE = 10.0, 0.03
_STORES: list[Any] = []
_COUNT = 1021
_FIX = "run it without NCCL_*, TORCH_NCCL_* and GLOO_* settings; another torch or NCCL release may be at fault"


def late_ranks(setting: Setting) -> list[int]:
    """Return which ranks come late, one after the other."""
    world = setting.rank.world
    chance = random.Random(setting.seed)  # noqa: S311 (test data, no secret)
    return sorted(chance.sample(range(world), min(world, LATE_AT_MOST)))


def barrier(setting: Setting, late: int, operation: str) -> Measured:
    """Meet at a barrier to which `late` comes last; return when it came, and when this rank got out."""
    times: Measured = {"what": operation, "late": late, "met": True}
    group = collective_cases.group(setting, range(setting.rank.world)) if operation == BARRIERS[1] else None
    if setting.rank.rank == late:
        times["met"] = _others(setting, f"{operation}{late}")
        times["came"] = time.monotonic()
    else:
        _leave_word(setting, f"{operation}{late}")
    if operation == BARRIERS[1]:
        setting.dist.barrier(group=group)
    elif operation == BARRIERS[2]:
        setting.dist.barrier(async_op=True).wait()
    else:
        setting.dist.barrier()
    _finish(setting)
    return {**times, "out": time.monotonic()}


def started(setting: Setting, late: int, operation: str) -> tuple[Measured, list[Part]]:
    """Start a collective that `late` joins last; return whether it was complete before, and after the wait.

    A broadcast comes from the late rank; that rank itself need not wait for anybody.
    """
    bench = Bench(setting, CollectiveCase(f"{operation} with a late rank", "sum", "float32", _COUNT, late))
    sent, world = bench.tensor(bench.given(bench.mine)), setting.rank.world
    gathered = [bench.empty() for _ in range(world)]
    forms: dict[str, tuple[Callable[[], Any], list[Any], list[list[int]]]] = {
        STARTED[0]: (lambda: setting.dist.all_reduce(sent, async_op=True), [sent], [bench.reduced()]),
        STARTED[1]: (lambda: setting.dist.broadcast(sent, late, async_op=True), [sent], [bench.given(late)]),
        STARTED[2]: (
            lambda: setting.dist.all_gather(gathered, sent, async_op=True),
            gathered,
            [bench.given(rank) for rank in range(world)],
        ),
    }
    start, made, due = forms[operation]
    times: Measured = {"what": operation, "late": late, "met": True}
    if setting.rank.rank == late:
        times["met"] = _others(setting, f"{operation}{late}")
        times["came"] = time.monotonic()
    work = start()
    if setting.rank.rank != late:
        times["early"] = bool(work.is_completed())
        _leave_word(setting, f"{operation}{late}")
    work.wait()
    arrived = [tensor.tolist() for tensor in made]
    _finish(setting)
    times |= {"out": time.monotonic(), "complete": bool(work.is_completed())}
    return times, [("after the wait", received, right) for received, right in zip(arrived, due)]


def _finish(setting: Setting) -> None:
    if setting.device.type == "cuda":
        setting.torch.cuda.synchronize()


def _leave_word(setting: Setting, operation: str) -> None:
    if setting.rank.nodes > 1:
        _store(setting).set(f"{operation}.rank{setting.rank.rank}", "there")
        return
    Path(setting.rank.scratch, f"{operation}.rank{setting.rank.rank}").touch()


def _others(setting: Setting, operation: str) -> bool:
    """Wait until all other ranks have left word, and a moment longer; return whether they did."""
    own_rank, until = setting.rank, time.monotonic() + PATIENCE
    words = [f"{operation}.rank{rank}" for rank in range(own_rank.world) if rank != own_rank.rank]

    def there() -> bool:
        if own_rank.nodes > 1:
            return bool(_store(setting).check(words))
        return all(Path(own_rank.scratch, word).exists() for word in words)

    while not there() and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(PAUSE)
    return there()


def _store(setting: Setting) -> Any:
    """Return the store in which ranks of several nodes leave word: they share no directory."""
    if not _STORES:
        _STORES.append(process_group.tcp_store(setting.dist))
    return _STORES[0]


def judge(ranks: Ranks) -> list[Outcome]:
    """Return a finding for each rank that did not wait for a late one, and for each wait that showed nothing."""
    unshown = [finding for entry in ranks if (finding := _unshown(entry, ranks))]
    if unshown and not any(entry.get("raised") for entry in ranks):
        return unshown
    findings = []
    arrivals = {
        (times["what"], times["late"], entry.get("host")): times["came"]
        for entry in ranks
        for times in entry.get("waits") or []
        if "came" in times
    }
    for entry in ranks:
        for times in entry.get("waits") or []:
            where = {"culprit": f"rank {entry['rank']}", "rank": entry["rank"]}
            operation, late = times["what"], times["late"]
            if times.get("met") is not True:
                summary = f"{operation}: the other ranks never came to where rank {late} waited for them"
                findings.append(undecided(summary, fix="see the check's log", code="collective.unshown", **where))
            since = arrivals.get((operation, late, entry.get("host")))
            why = _early(times, since)
            if why:
                summary = f"rank {entry['rank']}: {operation} {why}: rank {late} had not come"
                findings.append(failed(summary, fix=_FIX, code="collective.no-wait", late=late, **where))
            if times.get("complete", True) is not True:
                summary = f"rank {entry['rank']}: {operation} is not complete after wait()"
                findings.append(failed(summary, fix=_FIX, code="collective.incomplete", late=late, **where))
    return findings


def _unshown(entry: Measured, ranks: Ranks) -> process_group.Problem:
    """Return the error that a rank does not say when it waited, or names other waits than rank 0; else None."""
    waits, where = entry.get("waits"), f"rank {entry['rank']}"
    right = isinstance(waits, list) and all(_measured(times, entry) for times in waits)
    if right and _waited(entry) == _waited(ranks[0]) and {operation for operation, _ in _waited(entry)} == set(WAITS):
        return None
    summary = f"{where} does not say when it waited for late ranks"
    return undecided(summary, fix="see the check's log", code="collective.unshown", culprit=where)


def _waited(entry: Measured) -> list[tuple[Any, Any]]:
    waits = entry.get("waits")
    return [(times.get("what"), times.get("late")) for times in waits if isinstance(times, dict)] if waits else []


def _measured(times: Any, entry: Measured) -> bool:
    """Return whether one wait of a rank holds all that a judge needs."""
    if not isinstance(times, dict) or times.get("what") not in WAITS or not process_group.counts(times.get("late")):
        return False
    late = times["late"] == entry["rank"]
    arrival: Any = times.get("came", 0)
    arrival_fits = late == ("came" in times) and process_group.finite(arrival) and arrival >= 0
    asynchronous = times["what"] in STARTED
    answers = (["complete"] if asynchronous else []) + (["early"] if asynchronous and not late else [])
    return arrival_fits and "out" in times and all(answer in times for answer in answers)


def _early(times: Measured, arrival: Any) -> str:
    """Return what happened before the late rank came; "" where nothing did."""
    if times.get("early", False) is not False:
        return "said that it was complete too early"
    out: Any = times.get("out")
    if not process_group.finite(out):
        return "did not say when it ended"
    return "ended too early" if arrival is not None and out < arrival else ""
