"""Data that reaches the model through shared memory as something else, late, or never.

Seen in the wild: workers that die of "bus error" in a /dev/shm of 64 MB, a worker killed for memory whose loader waits
for ever, batches whose shared pages were reused before they were read. Two workers send more than Docker's 64 MB; every
element is compared where the model would read it. Then a worker kills itself: the loader has to say so. Without workers
each sample has to come once, in its order and its type.
"""

from __future__ import annotations

import array
import ctypes
import os
import signal
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.env.support.collectives import process_group
from envcheck.checks.env.support.process import worker_death
from envcheck.checks.env.support.training import plain_math
from envcheck.checks.env.support.training.data_loading import loading_in_process

CHECK = Check(
    promise="DataLoaders deliver every element, from workers through shared memory, and report a worker that dies",
    level="standard",
    seconds=2.0,
    cpu_seconds=0.9,
    timeout=120.0,
)

WORKERS, PREFETCH = 2, 2
ITEMS, BATCH = 24, 4
ELEMENTS, PERIOD = 1 << 20, 997
FATAL_ITEM = 9
_PATIENCE = 30.0
LIMIT = Limit(0, "wrong elements", "what a worker made has to be what the model reads", "at most")
_SHM_FIX = "give the container more shared memory (--shm-size=8g, --ipc=host; in Kubernetes an emptyDir in Memory)"
_LIMIT_FIX = "raise that limit for this user, or for the container (docker run --ulimit)"


class Items:
    """A dataset whose items say which they are: element j of item i is 1000 i + j mod 997."""

    def __init__(self, fatal: int = -1) -> None:
        self.fatal = fatal

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        import torch

        if index == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.arange(ELEMENTS, dtype=torch.int32) % PERIOD + 1000 * index


def measure(rank: Rank) -> Measured:
    """Read every batch through workers and compare it; then read from a worker that kills itself."""
    import torch

    device = process_group.device_of(rank)
    where = process_group.standing(rank, torch.zeros(1, device=device))
    read: Measured = {"batches": 0, "wrong": 0, "shared": True}

    # 96 MiB that are held at a time: Docker gives 64 for all.
    batches = []

    def honest() -> None:
        for number, batch in enumerate(_loader(torch, rank, Items())):
            batches.append(batch)
            read["shared"] = read["shared"] and bool(batch.is_shared() or batch.is_pinned())
            _compare(batch.to(device, non_blocking=True), number, read)

    def deadly() -> None:
        for _ in _loader(torch, rank, Items(FATAL_ITEM)):
            pass

    died = worker_death.raised_by(honest)
    alone = loading_in_process.run(torch, plain_math.seed_of(rank))
    return {**where, **read, "died": died, "death": None if died else worker_death.raised_by(deadly), "alone": alone}


def _loader(torch: Any, rank: Rank, items: Items) -> Any:
    return torch.utils.data.DataLoader(
        items,
        batch_size=BATCH,
        num_workers=WORKERS,
        prefetch_factor=PREFETCH,
        pin_memory=rank.device != "cpu",
        timeout=_PATIENCE,
        # What Linux does up to Python 3.13, and what a training script there gets.
        multiprocessing_context="fork",
    )


def expected(index: int) -> bytes:
    """Return the bytes of an item, made without torch."""
    period = array.array("i", [1000 * index + number for number in range(PERIOD)]).tobytes()
    return (period * (ELEMENTS // PERIOD + 1))[: ELEMENTS * 4]


def _compare(batch: Any, number: int, read: Measured) -> None:
    """Compare a batch with what its items have to be, byte for byte, and count what is wrong."""
    read["batches"] += 1
    for row, item in enumerate(batch):
        index = number * BATCH + row
        values = item.detach().cpu().contiguous()
        actual = ctypes.string_at(values.data_ptr(), values.numel() * values.element_size())
        if actual == expected(index):
            continue
        pairs = zip(array.array("i", actual[: ELEMENTS * 4]), array.array("i", expected(index)))
        wrong: list[tuple[int, Any]] = [(place, one) for place, (one, other) in enumerate(pairs) if one != other]
        wrong = wrong or [(len(actual) // 4, None)]
        if not read["wrong"]:
            read |= {"item": index, "index": wrong[0][0], "got": wrong[0][1]}
        read["wrong"] += len(wrong)


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a worker that died by itself, an element that is wrong, or a death that was kept quiet."""
    problem = process_group.problem(view, ranks, backend=False)
    if problem is not None:
        return problem
    entry = ranks[0]
    if entry.get("died"):
        fix = _LIMIT_FIX if "ulimit" in str(entry["died"]) else _SHM_FIX
        return failed(
            f"the loader broke: {entry['died']}", fix=fix, batches=entry.get("batches"), code="dataloader.broke"
        )
    if not process_group.finite(entry.get("wrong")) or not process_group.counts(entry.get("batches")):
        return undecided("no batch was compared", fix="see the check's log", code="dataloader.unmeasured")
    findings = [_wrong_data(entry)] if entry["wrong"] else []
    findings += [_lost(entry)] if entry["batches"] != ITEMS // BATCH else []
    quiet = _kept_quiet(entry)
    findings += _alone(entry)
    return worst([*findings, *([quiet] if quiet else [])], _delivered(entry))


def _alone(entry: Measured) -> list[Outcome]:
    """Return what is wrong with a loader that has no workers."""
    alone = entry.get("alone") or {}
    wrong = alone.get("wrong")
    if not isinstance(wrong, list) or not process_group.counts(alone.get("tried")) or not alone["tried"]:
        summary = "no loader without workers was tried"
        return [undecided(summary, fix="see the check's log", code="dataloader.unmeasured", culprit="without workers")]
    fix = "reinstall torch: compare torch/utils/data with the wheel's own files"
    return [
        failed(f"a loader without workers, {difference}", fix=fix, code="dataloader.in-process", culprit=difference)
        for difference in wrong
    ]


def _wrong_data(entry: Measured) -> Outcome:
    return failed(
        f"item {entry.get('item')}, element {entry.get('index')} arrived as {entry.get('got')}",
        fix="test this machine's memory; look for what else writes to /dev/shm",
        value=entry["wrong"],
        unit=LIMIT.unit,
        limit=LIMIT,
        code="dataloader.data",
    )


def _lost(entry: Measured) -> Outcome:
    summary = f"{entry['batches']} of {ITEMS // BATCH} batches arrived: the loader {{}} batches without saying so"
    fix = "reinstall torch; run the samplers check, which says which indices are lost"
    verb = "lost" if entry["batches"] < ITEMS // BATCH else "repeated"
    return failed(summary.format(verb), fix=fix, value=entry["batches"], unit="batches", code="dataloader.lost")


def _delivered(entry: Measured) -> Outcome:
    return passed(
        f"{ITEMS * ELEMENTS * 4 >> 20} MiB through {WORKERS} workers arrived as they were made; a killed worker was "
        "reported",
        value=0,
        unit=LIMIT.unit,
        limit=LIMIT,
        death=entry.get("death"),
    )


def _kept_quiet(entry: Measured) -> process_group.Problem:
    death = entry.get("death") or ""
    if not isinstance(death, str):
        return undecided(
            "the report of the killed worker's death is not text",
            fix="see the check's log",
            code="dataloader.unexpected-value",
        )
    if not worker_death.is_reported(death):
        summary = f"a killed worker was not reported{f'; the loader raised: {death}' if death else ''}"
        return failed(
            summary,
            fix="update torch; set a timeout on your DataLoaders until then",
            death=death,
            code="dataloader.death-not-reported",
        )
    if entry.get("shared") is not True:
        return undecided(
            "the batches did not come through shared memory", fix="see the check's log", code="dataloader.not-shared"
        )
    return None
