"""Data that reaches the model through shared memory as something else, late, or never.

Two forked workers send more than Docker's 64 MB; one worker of each other start method sends a few batches. Every
element is compared where the model would read it. Then a worker kills itself: the loader has to say so.
"""

from __future__ import annotations

import array
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.support import process_group, training
from envcheck.counting import counted

CHECK = Check(
    promise="DataLoader workers, however started, deliver every element through shared memory, or say that they died",
    level="standard",
    seconds=5.0,
    cpu_seconds=4.0,
    timeout=240.0,
)

# How many workers each start method gets; one that is started anew has to import torch.
WORKERS = {"fork": 2, "spawn": 1, "forkserver": 1}
# 96 MiB are held at a time with fork, where Docker gives 64 for all.
ELEMENTS = {"fork": 1 << 20, "spawn": 4099, "forkserver": 4099}
ITEMS, BATCH, PREFETCH, PERIOD = 24, 4, 2, 997
FATAL_ITEM = 9
_PATIENCE = 100.0
# A connection to a dead worker may break first; the signal of its death comes after.
_SETTLE = 0.3
# What torch/utils/data/dataloader.py raises for a dead worker, or what its connection raises before that.
_REPORTS = (
    "DataLoader worker (pid",
    "ConnectionResetError:",
    "ConnectionRefusedError:",
    "BrokenPipeError:",
    "EOFError:",
)
LIMIT = Limit(0, "wrong elements", "what a worker made has to be what the model reads", "at most")
_SHM_FIX = "give the container more shared memory (--shm-size=8g, --ipc=host; in Kubernetes an emptyDir in Memory)"
_LIMIT_FIX = "raise that limit for this user, or for the container (docker run --ulimit)"
_START_FIX = (
    "try a DataLoader(multiprocessing_context={!r}) of your own; look at the log, at /dev/shm and at its limits"
)


class Items:
    """A dataset whose items say which they are (element j of item i is 1000 i + j mod 997), and who made them."""

    def __init__(self, elements: int, fatal: int = -1) -> None:
        self.elements, self.fatal = elements, fatal

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        import torch

        if index == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        values = torch.arange(self.elements, dtype=torch.int32) % PERIOD + 1000 * index
        return values, os.getpid(), torch.initial_seed() % (1 << 62)


def measure(rank: Rank) -> Measured:
    """Read every batch by each start method and compare it; then read from a worker that kills itself."""
    import torch

    device = process_group.device_of(rank)
    where = process_group.standing(rank, torch.zeros(1, device=device))
    read = {"fork": _read("fork", device, iter(_loader(torch, rank, "fork")))}
    # Those that start anew take seconds: they start together, and after the fork of a process without their threads.
    anew = {name: iter(_loader(torch, rank, name)) for name in WORKERS if name != "fork"}
    read |= {name: _read(name, device, batches) for name, batches in anew.items()}

    def deadly() -> None:
        for _ in _loader(torch, rank, "fork", FATAL_ITEM):
            pass

    death = None if read["fork"]["died"] else _raised_by(deadly)
    return {**where, "seed": training.seed_of(rank), "methods": read, "death": death}


def _loader(torch: Any, rank: Rank, method: str, fatal: int = -1) -> Any:
    return torch.utils.data.DataLoader(
        Items(ELEMENTS[method], fatal),
        batch_size=BATCH,
        num_workers=WORKERS[method],
        prefetch_factor=PREFETCH,
        pin_memory=rank.device != "cpu",
        timeout=_PATIENCE,
        generator=torch.Generator().manual_seed(training.seed_of(rank)),
        multiprocessing_context=method,
    )


def _read(method: str, device: Any, batches: Iterator[Any]) -> Measured:
    read: Measured = {"batches": 0, "wrong": 0, "shared": True, "workers": {}}
    held = []

    def honest() -> None:
        for values, makers, seeds in batches:
            held.append(values)
            read["shared"] = read["shared"] and bool(values.is_shared() or values.is_pinned())
            read["workers"] |= dict(zip(map(str, makers.tolist()), seeds.tolist()))
            _compare(values.to(device, non_blocking=True), ELEMENTS[method], read)

    died = _raised_by(honest)  # it fills `read`
    return {**read, "died": died}


def expected(index: int, elements: int) -> bytes:
    """Return the bytes of an item, made without torch."""
    period = array.array("i", [1000 * index + number for number in range(PERIOD)]).tobytes()
    return (period * (elements // PERIOD + 1))[: elements * 4]


def _compare(batch: Any, elements: int, read: Measured) -> None:
    first = read["batches"] * BATCH
    read["batches"] += 1
    for index, item in enumerate(batch, first):
        values = item.detach().cpu().contiguous()
        actual = ctypes.string_at(values.data_ptr(), values.numel() * values.element_size())
        due = expected(index, elements)
        if actual == due:
            continue
        pairs = zip(array.array("i", actual[: elements * 4]), array.array("i", due))
        wrong: list[tuple[int, Any]] = [(place, one) for place, (one, other) in enumerate(pairs) if one != other]
        wrong = wrong or [(len(actual) // 4, None)]
        if not read["wrong"]:
            read |= {"item": index, "index": wrong[0][0], "got": wrong[0][1]}
        read["wrong"] += len(wrong)


def _raised_by(reading: Callable[[], None]) -> str | None:
    """Return the last exception that ends the reading, or None. A death arrives as a signal, wherever that is."""
    quoted = []
    try:
        try:
            reading()
        except Exception as error:  # noqa: BLE001 (whatever ends an epoch early is what is reported)
            quoted.append(_quote(error))
            time.sleep(_SETTLE)
    except RuntimeError as error:
        quoted.append(_quote(error))
    return quoted[-1] if quoted else None


def _quote(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]} {lines[-1].strip() if len(lines) > 1 else ''}".strip()[:400]


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail on workers that do not start, lose, repeat or change a batch, share a seed, or die unnoticed."""
    methods = ranks[0].get("methods") or {}
    findings = [finding for method in WORKERS for finding in _judged(method, methods.get(method) or {})]
    if not (methods.get("fork") or {}).get("died"):
        findings += _kept_quiet(ranks[0].get("death"))
    return worst(findings, _delivered(ranks[0]))


def _judged(method: str, read: Measured) -> list[Outcome]:
    about: dict[str, Any] = {"culprit": method}
    if read.get("died"):
        fix = _LIMIT_FIX if "ulimit" in str(read["died"]) else _SHM_FIX
        fix = fix if method == "fork" else _START_FIX.format(method)
        summary = f"{method}: the loader broke: {read['died']}"
        return [failed(summary, fix=fix, code="dataloader.broke", batches=read.get("batches"), **about)]
    batches, wrong, workers = read.get("batches"), read.get("wrong"), read.get("workers")
    seeds = list(workers.values()) if isinstance(workers, dict) else [None]
    if not all(map(process_group.counts, (wrong, batches, *seeds))):
        return [undecided(f"{method}: no batch was compared", code="dataloader.unmeasured", **about)]
    findings = [_wrong_data(method, read)] if wrong else []
    due = ITEMS // BATCH
    if batches != due:
        summary = f"{method}: {batches} of {due} batches arrived, and the loader did not say so"
        more: dict[str, Any] = {"value": batches, "unit": "batches", **about}
        findings.append(failed(summary, fix="reinstall torch", code="dataloader.lost", **more))
    if len(seeds) != WORKERS[method]:
        summary = f"{method}: {counted(len(seeds), 'process', 'processes')} made the batches, not {WORKERS[method]}"
        findings.append(failed(summary, fix=_START_FIX.format(method), code="dataloader.start", **about))
    if len(set(seeds)) != len(seeds):
        summary = f"{method}: workers were started with the same seed, so they draw the same augmentations"
        findings.append(failed(summary, fix="reinstall torch", code="dataloader.seeds", **about))
    if read.get("shared") is not True:
        summary = f"{method}: the batches did not come through shared memory"
        findings.append(undecided(summary, code="dataloader.not-shared", **about))
    return findings


def _wrong_data(method: str, read: Measured) -> Outcome:
    return failed(
        f"{method}: item {read.get('item')}, element {read.get('index')} arrived as {read.get('got')}",
        fix="test this machine's memory; look for what else writes to /dev/shm",
        value=read["wrong"],
        limit=LIMIT,
        code="dataloader.data",
        culprit=method,
    )


def _kept_quiet(death: Any) -> list[Outcome]:
    if isinstance(death, str) and any(report in death for report in _REPORTS) and "timed out" not in death:
        return []
    summary = f"a killed worker was not reported{f'; the loader raised: {death}' if death else ''}"
    fix = "update torch; set a timeout on your DataLoaders until then"
    return [failed(summary, fix=fix, code="dataloader.death-not-reported", culprit="a killed worker")]


def _delivered(entry: Measured) -> Outcome:
    return passed(
        f"{ITEMS * ELEMENTS['fork'] * 4 >> 20} MiB through {WORKERS['fork']} workers arrived as they were made, "
        "spawned workers and a fork server's started, a killed worker was reported",
        value=0,
        limit=LIMIT,
        death=entry.get("death"),
    )
