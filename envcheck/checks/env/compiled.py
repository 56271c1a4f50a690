"""`torch.compile` that fails on its first call, or that quietly compiles nothing.

A small model is compiled afresh, into a cache of its own, as one graph: the code has to be there afterwards, and to
compute what plain Python computes, forward and backward.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, worst
from envcheck.checks.env import compile_prerequisites
from envcheck.checks.support import process_group, training
from envcheck.counting import counted

CHECK = checks.Check(
    promise="torch.compile compiles a small model as one graph; its results and gradients are right",
    level="standard",
    seconds=12.0,
    cpu_seconds=9.0,
    timeout=240.0,
)

# The smallest graph that needs the whole chain: one fused kernel forward and one backward.
BATCH, WIDTH = 32, 23
LIMIT = checks.Limit(
    1e-4,
    "relative error",
    "fp32 against the chain rule in plain Python's float64, seen at 6e-7 on a CPU (ours; TF32 is off)",
    "at most",
)


# What a compiler says itself, before a headline: "CppCompileError: C++ compile error" is torch's, and Triton's
# "PTXAS error: Internal Triton PTX codegen error" (triton-lang/triton#8539).
_TELLING = (r"\bfatal\s*: ", r"\berror: ", "(?i)error", "")


def measure(rank: Rank) -> Measured:
    """Compile a model and its backward pass; say how far from eager mode they are, and what code was written."""
    import torch

    device = process_group.device_of(rank)
    where = process_group.standing(rank, torch.zeros(1, device=device))
    missing = _missing(torch, rank, device.type)
    if missing:
        return {**where, "missing": missing}
    cache = Path(rank.scratch) / "inductor"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    seed = training.seed_of(rank)
    try:
        _settings()
        errors = dict(_errors(torch, device, seed))
    except Exception as error:  # noqa: BLE001 (a backend raises anything; what it raised is the finding)
        return {**where, "seed": seed, "missing": [], "broke": f"{type(error).__name__}: {_telling(error)}"}
    code = sorted(path.suffix for path in cache.rglob("*") if path.suffix in (".py", ".so", ".cubin"))
    counted = {kind: code.count(kind) for kind in set(code)}
    from torch._dynamo.utils import counters

    breaks = [str(reason)[:200] for reason in counters.get("graph_break", {})]
    return {**where, "seed": seed, "missing": [], "errors": errors, "code": counted, "breaks": breaks}


def _settings() -> None:
    """Compile in this process, without what only takes long, and let no error be swallowed.

    The variables of the environment are read when torch's own settings are imported, which another check may have done.
    """
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor

    dynamo.suppress_errors = False
    # A pool of compilers takes longer to start than one takes to compile.
    inductor.compile_threads = 1
    # To find out a CPU's vector instructions it compiles and starts torch once for each: ten times the rest.
    if hasattr(inductor.cpp, "vec_isa_ok"):
        inductor.cpp.vec_isa_ok = False
    # Precompiled headers pay from the third kernel on.
    if hasattr(inductor, "cpp_cache_precompile_headers"):
        inductor.cpp_cache_precompile_headers = False


def _missing(torch: Any, rank: Rank, kind: str) -> list[str]:
    if not hasattr(torch, "compile"):
        return [f"torch.compile (torch {torch.__version__} predates it)"]
    compiler, variable = ("C++ compiler", "CXX") if kind == "cpu" else ("C compiler", "CC")
    # One that a variable names and that does not work is a failure of the compilation.
    needed = ["Python.h", "setuptools" if kind == "cpu" else "triton"]
    needed += [] if os.environ.get(variable) else [compiler]
    found = compile_prerequisites.measure(rank)["found"]
    missing = [name for name in needed if not found[name]]
    if sys.version_info >= (3, 12) and tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
        missing.append(f"a torch that compiles on Python 3.{sys.version_info[1]} (2.4)")
    return missing


def _errors(torch: Any, device: Any, seed: int) -> Iterator[tuple[str, float]]:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
    weight, bias = training.weights(training.start(torch, model, seed).to(device))
    rows = training.rows(training.values(f"{seed} batch", BATCH * WIDTH), WIDTH)
    output = torch.compile(model, fullgraph=True)(torch.tensor(rows, device=device))
    (output * output).sum().backward()
    actual = [training.numbers(output), *(training.numbers(p.grad) for p in model.parameters())]
    names = ("output", "gradient of the weight", "gradient of the bias")
    for name, one, other in zip(names, actual, reference(training.rows(weight, WIDTH), bias, rows)):
        yield name, training.off(one, other)


def reference(weight: training.Matrix, bias: list[float], rows: training.Matrix) -> list[list[float]]:
    """Return the output y of linear and tanh, and the gradients of the sum of y squared, by the chain rule."""
    outputs = [[math.tanh(z) for z in row] for row in training.affine(rows, weight, bias)]
    back = [[2 * y * (1 - y * y) for y in row] for row in outputs]
    return [[y for row in outputs for y in row], training.outer(back, rows), [sum(column) for column in zip(*back)]]


def _telling(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line[:300] for telling in _TELLING for line in lines if re.search(telling, line)), "")


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail on a compilation that broke, wrote no code, or computes something else; skip naming what is missing."""
    entry = ranks[0]
    if entry.get("missing"):
        summary = f"torch.compile needs {' and '.join(entry['missing'])}, not here"
        return skipped(summary, missing=entry["missing"], code="compiled.prerequisites")
    if entry.get("broke"):
        fix = "see TORCH_LOGS=inductor; a devel image compiles"
        if "for option 'gpu-name'" in entry["broke"]:  # triton-lang/triton#8539
            fix = "set TRITON_PTXAS_PATH (newer: TRITON_PTXAS_BLACKWELL_PATH) to a ptxas that knows this GPU"
        return failed(f"torch.compile broke: {entry['broke']}", fix=fix, code="compiled.broke")
    errors = entry.get("errors") or {}
    if not errors or entry.get("missing") != []:
        return undecided("nothing was compiled or compared", code="compiled.unmeasured")
    count = sum((entry.get("code") or {}).values())
    wrong = [] if count else [_nothing("torch.compile wrote no code: the model ran in eager mode", "compiled.eager")]
    wrong += [_nothing(f"the graph was broken: {why}", "compiled.broken-graph") for why in entry.get("breaks") or []]
    wrong += _wrong(errors)
    if wrong:
        return worst(wrong, otherwise=wrong[0])
    told: dict[str, Any] = {"code": entry.get("code"), "seed": entry.get("seed")}
    summary = (
        f"a model and its backward pass were compiled and are right ({counted(count, 'file')}, seed {told['seed']})"
    )
    return passed(summary, value=max(errors.values()), limit=LIMIT, **told)


def _nothing(reason: str, code: str) -> Outcome:
    fix = "look for TORCHDYNAMO_DISABLE=1, TORCH_COMPILE_DISABLE=1; see TORCH_LOGS=dynamo"
    return failed(reason, fix=fix, code=code)


def _wrong(errors: Measured) -> list[Outcome]:
    return [
        failed(
            f"compiled, the {name} is off by {error}",
            fix="update torch and triton together; run the kernels check: right there, leave torch.compile out",
            value=error,
            limit=LIMIT,
            code="compiled.wrong",
            culprit=name,
            errors=errors,
        )
        for name, error in errors.items()
        if not process_group.finite(error) or not 0 <= error <= LIMIT.value
    ]
