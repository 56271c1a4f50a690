"""Attention has several kernels, and which one runs is chosen silently.

Seen in the wild: flash attention that is not in the wheel, so that long contexts run out of memory; a kernel that is
wrong for causal masks on a new GPU only, or in one gradient. Each backend, and the one that torch chooses by itself, is
compared with softmax(Q K^T / sqrt d) V and its three gradients in plain Python: masks, a scale, grouped queries, odd
lengths, tensors that are not contiguous. What runs everywhere is asked for rarer forms too: masks of keys and of heads,
learned masks, wide and odd heads, dropout. A backend is absent where torch says so; any other exception is a failure.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from envcheck.checks import (
    Check,
    Limit,
    Measured,
    Outcome,
    Rank,
    Ranks,
    View,
    failed,
    passed,
    skipped,
    undecided,
    worst,
)
from envcheck.checks.env.support.operators import attention_dropout, attention_reference, operator_trial, seeded_numbers
from envcheck.checks.support import process_group
from envcheck.checks.training import plain_math
from envcheck.counting import counted

CHECK = Check(
    promise="each attention kernel that is there, and its gradients, equal a formula in plain Python",
    level="standard",
    seconds=3.0,
    cpu_seconds=1.3,
    timeout=90.0,
    ranks=0,
)

BACKENDS = {
    "default": "",
    "math": "MATH",
    "flash": "FLASH_ATTENTION",
    "memory-efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
# These have to run everywhere, with every option.
OWED = ("default", "math")
NAMED_SINCE = (2, 3)
ACCUMULATED = 2e-5
# What torch says when no kernel of the backends that are allowed takes these inputs (ATen, sdp_utils).
ABSENT = re.compile(r"No available kernel|No viable backend for scaled_dot_product_attention")
_FIX = "take another backend (torch.nn.attention.sdpa_kernel) and update torch; run the matmul check on this GPU"


def limit(dtype: str) -> Limit:
    """Return the largest relative Frobenius error a correct kernel of this dtype has."""
    source = (
        "0.00002 for fp32, wide of its 0.000001 and below TF32's 0.0003; plus 6 unit roundoffs where scores, weights "
        "and results are rounded to 16 bits (ours)"
    )
    return Limit(ACCUMULATED + 6 * plain_math.UNIT_ROUNDOFF[dtype], "relative error", source, "at most")


def measure(rank: Rank) -> Measured:
    """Run each backend in each dtype with each option; say how far from the formula it is, or why it does not run."""
    import torch

    device = process_group.device_of(rank)
    probe = torch.zeros(1, device=device)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    seed = seeded_numbers.seed(rank.rank)
    entry: Measured = {**process_group.standing(rank, probe), "capability": list(capability), "seed": seed}
    torch_version = operator_trial.version(torch)
    if not hasattr(torch.nn.functional, "scaled_dot_product_attention") and torch_version < (2, 0):
        return {**entry, "unsupported": f"torch {torch.__version__} has no scaled_dot_product_attention (2.0 has)"}
    source = seeded_numbers.source(seed)
    examples = [
        attention_reference.example(setting, source)
        for setting in attention_reference.settings(source)
        if setting.since <= torch_version
    ]
    measured: dict[str, dict[str, Any]] = {"errors": {}, "parts": {}, "lacking": {}, "raised": {}}
    for name in BACKENDS:
        only = _only(torch, name)
        for dtype in plain_math.dtypes(entry):
            if isinstance(only, str):
                measured["lacking"][f"{name} {dtype}"] = only
                continue
            for example in examples:
                s = example.setting
                if dtype not in s.dtypes or (s.rare and name not in OWED) or (s.blind and device.type != "cpu"):
                    continue
                call = functools.partial(attention_reference.run, torch, example, dtype, device)
                _one(measured, (name, dtype), s.name, only, call)
            if name in OWED:
                call = functools.partial(attention_dropout.run, torch, dtype, device, source)
                _one(measured, (name, dtype), "dropout", only, call)
    return {**entry, **measured}


def _only(torch: Any, name: str) -> Callable[[], AbstractContextManager[Any]] | str:
    """Return what allows one backend alone, or why this torch has no way to."""
    if name == "default":
        return nullcontext
    if operator_trial.version(torch) < NAMED_SINCE:
        return f"torch {torch.__version__} cannot be asked for a backend (2.3 can)"
    from torch.nn.attention import SDPBackend, sdpa_kernel

    member = getattr(SDPBackend, BACKENDS[name], None)
    return (
        f"torch {torch.__version__} has no such backend" if member is None else functools.partial(sdpa_kernel, member)
    )


def _one(
    measured: dict[str, dict[str, Any]],
    kernel: tuple[str, str],
    option: str,
    only: Callable[[], AbstractContextManager[Any]],
    call: Callable[[], dict[str, float]],
) -> None:
    """Run one example with one backend, and enter its error, its absence or its exception."""
    name = " ".join(kernel)
    try:
        with warnings.catch_warnings(), only():
            # Why a backend does not run is warned of, then raised.
            warnings.simplefilter("ignore")
            errors = call()
    except Exception as error:  # noqa: BLE001 (whatever it raises is the finding, and is quoted)
        summary = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
        absent = kernel[0] not in OWED and isinstance(error, RuntimeError) and ABSENT.search(summary)
        measured["lacking" if absent else "raised"][f"{name}, {option}"] = summary
        return
    part = max(errors, key=lambda key: errors[key])
    if name not in measured["errors"] or errors[part] > measured["errors"][name]:
        measured["errors"][name], measured["parts"][name] = errors[part], f"{part}, {option}"


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on every kernel that raised, whose error is above its bound or is not a number; name what is not there."""
    problem = process_group.problem(view, ranks, backend=False)
    if problem is not None:
        return problem
    reasons = {entry.get("unsupported") for entry in ranks}
    if None not in reasons:
        return skipped(min(map(str, reasons)), code="attention.unsupported")
    findings = [finding for entry in ranks for finding in _findings(entry)]
    return (
        worst(findings, otherwise=skipped("nothing was measured", code="attention.none"))
        if findings
        else _passed(ranks)
    )


def _findings(entry: Measured) -> Iterator[Outcome]:
    where, errors, lacking = (
        f"rank {entry['rank']} on {entry['device']}",
        entry.get("errors") or {},
        entry.get("lacking"),
    )
    for name, text in (entry.get("raised") or {}).items():
        yield failed(
            f"{where}: {name} attention: {text}",
            fix=_FIX,
            code="attention.raised",
            culprit=f"rank {entry['rank']}, {name}",
        )
    for dtype in plain_math.dtypes(entry):
        for name in OWED:
            kernel = f"{name} {dtype}"
            why = (lacking or {}).get(kernel, "see the check's log")
            if kernel not in errors and "cannot be asked" not in why:
                yield undecided(
                    f"rank {entry['rank']}: the {name} backend did not run in {dtype}",
                    fix=why,
                    code="attention.unmeasured",
                    culprit=f"rank {entry['rank']}, {kernel}",
                )
    for kernel, error in errors.items():
        bound = limit(kernel.split()[-1])
        if not process_group.finite(error) or not 0 <= error <= bound.value:
            part = (entry.get("parts") or {}).get(kernel)
            yield failed(
                f"{where}: {kernel} attention is off by {error}{f' ({part})' if part else ''}",
                fix=_FIX,
                value=error if process_group.finite(error) else None,
                unit="relative error",
                limit=bound,
                code="attention.wrong",
                culprit=f"rank {entry['rank']}, {kernel}",
                rank=entry["rank"],
                seed=entry.get("seed"),
            )


def _passed(ranks: Ranks) -> Outcome:
    every = [
        (error / limit(kernel.split()[-1]).value, kernel, error) for e in ranks for kernel, error in e["errors"].items()
    ]
    _, kernel, error = max(every)
    kernels = sorted({kernel.split()[0] for entry in ranks for kernel in entry["errors"]}, key=list(BACKENDS).index)
    absent = [name for name in BACKENDS if name not in kernels]
    also = f"; not here: {', '.join(absent)}" if absent else ""
    return passed(
        f"{', '.join(kernels)} agree with plain Python on {counted(len(ranks), 'rank')}{also}",
        value=error,
        unit="relative error",
        limit=limit(kernel.split()[-1]),
        errors=ranks[0]["errors"],
        lacking=ranks[0].get("lacking"),
        seed=ranks[0].get("seed"),
    )
