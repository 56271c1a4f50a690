"""What people train with, one operator after the other: layers, losses, indexing, sorting, random numbers, files.

Seen in the wild: a layer_norm whose eps is another one, an embedding that is off by one row, a cross entropy that
ignores its weights, a kernel that is wrong for odd sizes or for tensors with gaps only, "Numpy is not available".
Every operator runs forward and backward, as function and as module, with sizes, strides and options that are drawn
from a seed, and is compared with a formula of float64 numbers in plain Python: no other part of torch is believed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned, worst
from envcheck.checks.env.support.operators import operator_trial, seeded_numbers
from envcheck.checks.support import process_group
from envcheck.counting import counted

CHECK = Check(
    promise="each operator that people train with, and its gradient, equals a formula in plain Python",
    level="standard",
    seconds=8.0,
    cpu_seconds=3.0,
    timeout=180.0,
    ranks=0,
)

# Fewer rows than this mean that the table was not run.
LEAST = 200
LIMIT = Limit(
    1.0,
    "of the tolerance",
    "|result - formula| <= f u max(|formula|, rms, terms), u the unit roundoff (IEEE 754), f = 128 in fp32, 256 in "
    "fp64 and 2 in 16 bits, times 1 to 32 by how often an operator rounds; the factors are ours (torch 2.13 on a CPU, "
    "seed 100: 0.38 of the tolerance)",
    "at most",
)
_FIX = (
    "run it on another GPU or machine with the same seed (ENVCHECK_SEED); wrong everywhere means: install torch again"
)
_FLAW_FIX = "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 where these run in bf16 on CPUs; GPUs are not affected"
SHOWN = 20


def families() -> tuple[Any, ...]:
    """Return the operators in their families, which only `measure` needs: whoever judges does without their modules."""
    from envcheck.checks.env.support.operators.cases import (
        dense_layers,
        edges,
        losses,
        norms,
        options,
        pointwise,
        recurrent_and_attention,
        reductions,
        selections,
    )

    return (pointwise, dense_layers, norms, losses, reductions, selections, recurrent_and_attention, edges, options)


def measure(rank: Rank) -> Measured:
    """Run every operator once, small."""
    return survey(rank, rounds=1, size=1)


def survey(rank: Rank, rounds: int, size: int, more: Sequence[Any] = ()) -> Measured:
    """Run every operator `rounds` times with sizes that grow with `size`; return what is wrong, and counts.

    `more` are families that are run beside the usual ones, in every other round.
    """
    import torch

    device = process_group.device_of(rank)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    seed, begun = seeded_numbers.seed(rank.rank), time.monotonic()
    entry: Measured = {**process_group.standing(rank, torch.zeros(1, device=device)), "capability": list(capability)}
    if device.type == "cpu":
        torch.set_num_threads(min(2, torch.get_num_threads()))
    torch.backends.cudnn.allow_tf32 = False
    count, worst_row, wrong, absent, excused = 0, {"error": 0.0}, list[Measured](), dict[str, str](), dict[str, str]()
    ran: dict[str, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row in _rows(torch, device, seed, (rounds, size), operator_trial.dtypes(entry), more):
            count += 1
            if "absent" in row:
                absent[f"{row['operator']} {row['dtype']}"] = row["absent"]
                continue
            ran[row["dtype"]] = ran.get(row["dtype"], 0) + 1
            if "known" in row:
                excused[f"{row['operator']} {row['dtype']}"] = row["known"]
            elif "raised" in row or not row["error"] <= LIMIT.value:
                wrong.append(row)
            elif row["error"] > worst_row["error"]:
                worst_row = row
    seen = {"seed": seed, "rows": count, "ran": ran, "wrong": wrong[:200], "wrong_rows": len(wrong), "worst": worst_row}
    return {**entry, **seen, "absent": absent, "known": excused, "seconds": round(time.monotonic() - begun, 2)}


def _rows(
    torch: Any, device: Any, seed: int, extent: tuple[int, int], names: list[str], more: Sequence[Any]
) -> Iterator[Measured]:
    from envcheck.checks.env.support.operators.promises import trial

    rounds, size = extent
    usual = families()
    for number in range(rounds):
        source = seeded_numbers.source(seed + number)
        for family in (*usual, *(more if number % 2 == 0 else ())):
            for make in family.EVERY:
                yield from operator_trial.measure(torch, make(source, size), names, device, source)
        yield from trial.measure(torch, device, source)


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail naming every operator that is off or raised, on each rank; an operator that its torch lacks is named."""
    problem = process_group.problem(view, ranks, backend=False)
    if problem is not None:
        return problem
    findings = [finding for entry in ranks for finding in _findings(entry)]
    closest = max((entry.get("worst") or {} for entry in ranks), key=lambda row: row.get("error") or 0.0)
    named = f"{closest.get('operator', '')} {closest.get('dtype', '')}".strip()
    error, runs = closest.get("error", 0.0), sum(sum((entry.get("ran") or {}).values()) for entry in ranks)
    return worst(
        findings,
        otherwise=passed(
            f"{runs} runs of operators agree with their formulas on {counted(len(ranks), 'rank')}, "
            f"seed {ranks[0].get('seed')}; "
            f"closest to its bound: {named or 'none'}",
            value=error,
            unit=LIMIT.unit,
            limit=LIMIT,
            seed=ranks[0].get("seed"),
            absent=ranks[0].get("absent"),
        ),
    )


def _findings(entry: Measured) -> Iterator[Outcome]:
    where, rows, wrong = f"rank {entry['rank']} on {entry['device']}", entry.get("rows"), entry.get("wrong")
    if not process_group.counts(rows) or not isinstance(wrong, list) or not isinstance(rows, int) or rows < LEAST:
        yield undecided(
            f"{where} ran {rows or 'no'} operators, not {LEAST}",
            fix="see the check's log",
            code="operators.unmeasured",
            culprit=where,
        )
        return
    error: Any = (entry.get("worst") or {}).get("error")
    within_limit = process_group.finite(error) and 0 <= error <= LIMIT.value
    if not within_limit or (len(wrong) != entry.get("wrong_rows") and not wrong):
        yield undecided(
            f"{where} does not say how far off its operators were",
            fix="see the check's log",
            code="operators.unmeasured",
            culprit=where,
        )
    for dtype in operator_trial.dtypes(entry):
        if not process_group.counts((entry.get("ran") or {}).get(dtype)) or not entry["ran"][dtype]:
            yield undecided(
                f"{where} ran no operator in {dtype}",
                fix="see the absent operators in the report; reinstall torch",
                code="operators.unmeasured",
                culprit=f"{where}, {dtype}",
            )
    known_errors: dict[str, str] = entry.get("known") or {}
    for flaw in sorted(set(known_errors.values())):
        named = ", ".join(name for name in known_errors if known_errors[name] == flaw)
        yield warned(f"{where}: {named}: {flaw}", fix=_FLAW_FIX, code="operators.known", culprit=named)
    for row in wrong[:SHOWN]:
        yield _finding(entry, where, row)
    if len(wrong) > SHOWN:
        yield failed(
            f"{where}: {entry.get('wrong_rows')} runs are wrong in all",
            fix=_FIX,
            code="operators.many-wrong",
            culprit=where,
        )


def _finding(entry: Measured, where: str, row: Measured) -> Outcome:
    named = f"{row.get('operator')} {row.get('dtype')}".strip()
    if "raised" in row:
        return failed(f"{where}: {named}: {row['raised']}", fix=_FIX, code="operators.raised", culprit=named)
    error: Any = row.get("error")
    shown = f"{error:.3g}" if process_group.finite(error) else error
    return failed(
        f"{where}: the {row.get('part')} of {named} is off by {shown} tolerances",
        fix=_FIX,
        value=error if process_group.finite(error) else None,
        unit=LIMIT.unit,
        limit=LIMIT,
        code="operators.wrong",
        culprit=named,
        seed=entry.get("seed"),
        rank=entry["rank"],
    )
