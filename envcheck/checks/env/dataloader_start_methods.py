"""Workers that are started anew, instead of forked, and do not start, or deliver something else.

Seen in the wild: a training that has to spawn its workers (CUDA in a worker, Python 3.14, whose default is the fork
server) and hangs, because the main module starts everything again; shared memory that a resource tracker has removed; a
worker that imports another torch. Both start methods deliver two epochs through the same workers, and every element is
compared; at last a worker kills itself, and the loader has to say so.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.env.support.collectives import process_group
from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.process import worker_death
from envcheck.checks.env.support.training import plain_math
from envcheck.counting import counted

CHECK = Check(
    promise="DataLoader workers that are spawned, or come from a fork server, start and deliver every batch once",
    level="full",
    seconds=10.0,
    cpu_seconds=4.0,
    timeout=240.0,
)

METHODS = ("spawn", "forkserver")
WORKERS, EPOCHS = 2, 2
ITEMS, BATCH, ELEMENTS = 24, 4, 4099
FATAL = -1
# A worker imports torch before it can answer.
_PATIENCE = 100.0
LIMIT = Limit(0, "wrong batches", "what a worker made has to be what the model reads", "at most")
_FIX = "try a DataLoader(multiprocessing_context={!r}) of your own; look at the log, at /dev/shm and at its limits"
# Set in the process that makes the loader: one that was started anew does not have it.
_made_here: list[int] = []


class SeededItems:
    """A dataset whose items are seeded words, and say which process made them and whether that one was forked."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        import torch

        if index == FATAL:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(words(self.seed, index), dtype=torch.int32), os.getpid(), int(bool(_made_here))


class Order:
    """A sampler: every index once, in order; in the epoch after the last one, an index that kills its worker."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return ITEMS

    def __iter__(self) -> Iterator[int]:
        fatal = self.epoch == EPOCHS
        self.epoch += 1
        return iter([FATAL if fatal and index == ITEMS // 2 else index for index in range(ITEMS)])


def words(seed: int, index: int) -> list[int]:
    """Return what an item holds: numbers of plain Python, of this seed and this item."""
    bits = seeded_numbers.source(seed * ITEMS + index).getrandbits(31 * ELEMENTS)
    raw = bits.to_bytes(4 * ELEMENTS, "little")
    return [int.from_bytes(raw[4 * place : 4 * place + 4], "little") >> 1 for place in range(ELEMENTS)]


def measure(rank: Rank) -> Measured:
    """Read two epochs by each start method, and then from a worker that kills itself."""
    import torch

    device, seed = process_group.device_of(rank), plain_math.seed_of(rank)
    _made_here.append(seed)
    expected = [words(seed, index) for index in range(ITEMS)]
    methods = {method: _read(torch, rank, method, (seed, expected)) for method in METHODS}
    return {**process_group.standing(rank, torch.zeros(1, device=device)), "seed": seed, "methods": methods}


def _read(torch: Any, rank: Rank, method: str, data: tuple[int, list[list[int]]]) -> Measured:
    seed, expected = data
    order, began = Order(), time.monotonic()
    measured: Measured = {"epochs": [], "wrong": 0, "workers": [], "forked": 0, "died": None, "death": None}
    try:
        loader = torch.utils.data.DataLoader(
            SeededItems(seed),
            batch_size=BATCH,
            sampler=order,
            num_workers=WORKERS,
            persistent_workers=True,
            pin_memory=rank.device != "cpu",
            timeout=_PATIENCE,
            multiprocessing_context=method,
        )
        for _ in range(EPOCHS):
            measured["epochs"].append(_epoch(loader, expected, rank.device, measured))
    except Exception as error:  # noqa: BLE001 (whatever ends an epoch early is what is reported)
        return {**measured, "died": worker_death.quote(error)}
    measured["seconds"] = time.monotonic() - began

    def deadly() -> None:
        for _ in loader:
            pass

    return {**measured, "death": worker_death.raised_by(deadly)}


def _epoch(loader: Any, expected: list[list[int]], device: str, measured: Measured) -> int:
    """Compare every batch of an epoch, in order; return how many there were."""
    count = 0
    for batch, makers, forked in loader:
        due = expected[count * BATCH : (count + 1) * BATCH]
        actual = batch.to(device, non_blocking=True)
        rows = [seeded_numbers.read(row) for row in actual]
        measured["wrong"] += rows != due
        measured["workers"] = sorted({*measured["workers"], *seeded_numbers.read(makers)} - {os.getpid()})
        measured["forked"] += sum(seeded_numbers.read(forked))
        count += 1
    return count


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a start method whose workers do not start, lose, repeat or change a batch, or die unnoticed."""
    problem = process_group.problem(view, ranks, backend=False)
    if problem is not None:
        return problem
    methods = ranks[0].get("methods") or {}
    findings = [finding for method in METHODS for finding in _judged(method, methods.get(method) or {})]
    return worst(findings, otherwise=findings[0]) if findings else _delivered(methods, ranks[0])


def _judged(method: str, measured: Measured) -> list[Outcome]:
    common: dict[str, Any] = {"culprit": method, "fix": _FIX.format(method)}
    epochs, wrong, forked = measured.get("epochs"), measured.get("wrong"), measured.get("forked")
    if measured.get("died"):
        return [failed(f"{method}: the loader broke: {measured['died']}", code="dataloader.broke", **common)]
    complete = isinstance(epochs, list) and process_group.counts(wrong) and process_group.counts(forked)
    workers = measured.get("workers")
    if not complete or not isinstance(workers, list) or not all(map(process_group.counts, workers)):
        return [undecided(f"{method}: no batch was compared", code="dataloader.unmeasured", **common)]
    due, findings = [ITEMS // BATCH] * EPOCHS, []
    if epochs != due:
        summary = f"{method}: {epochs} batches arrived in the epochs, {due} were due"
        findings.append(failed(summary, code="dataloader.lost", **common))
    if wrong:
        summary = f"{method}: {counted(wrong, 'batch', 'batches')} differ from what the workers made"
        value = {"value": wrong, "unit": LIMIT.unit, "limit": LIMIT}
        findings.append(failed(summary, code="dataloader.data", **value, **common))
    if len(set(workers)) != WORKERS or forked:
        summary = (
            f"{method}: {counted(len(measured['workers']), 'other process', 'other processes')} "
            f"made the batches, {WORKERS} were due"
        )
        findings.append(failed(f"{summary}{'; they were forked' if forked else ''}", code="dataloader.start", **common))
    death = measured.get("death")
    if not isinstance(death, str) or not worker_death.is_reported(death):
        summary = f"{method}: a killed worker was not reported{f': {death}' if death else ''}"
        findings.append(failed(summary, code="dataloader.death-not-reported", **common))
    return findings


def _delivered(methods: Measured, entry: Measured) -> Outcome:
    return passed(
        f"{len(METHODS)} start methods: {EPOCHS} epochs of {ITEMS // BATCH} batches arrived as they were made, "
        "a killed worker was reported",
        value=0,
        unit=LIMIT.unit,
        limit=LIMIT,
        seed=entry.get("seed"),
        seconds={method: methods[method].get("seconds") for method in METHODS},
    )
