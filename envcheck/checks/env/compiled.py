"""`torch.compile` that fails on its first call, or that quietly compiles nothing.

Seen in the wild: a runtime image without a C compiler or Python.h (pytorch/pytorch#116696, #170235), no ptxas beside
triton, a home directory that cannot be written to, fallbacks that leave the model in eager mode. A small model is
compiled afresh, into a cache of its own: the code has to be there afterwards, and to compute what eager mode does.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided
from envcheck.checks.env import _group

CHECK = Check(
    promise="torch.compile compiles a small model, and what it compiled trains as eager mode does",
    level="standard",
    seconds=10.0,
    timeout=240.0,
)

BATCH, WIDTH = 64, 96
LIMIT = Limit(
    1e-4,
    "relative error",
    "fp32 against eager mode: fused operations round elsewhere, seen at 4e-7 on a CPU (ours; TF32 is off)",
    "at most",
)


def measure(rank: Rank) -> Measured:
    """Compile a model and its backward pass; say how far from eager mode they are, and what code was written."""
    import torch

    device = _group.device_of(rank)
    probe = torch.zeros(1, device=device)
    where = _group.standing(rank, probe)
    missing = _missing(torch, device.type)
    if missing:
        return {**where, "missing": missing}
    cache = Path(rank.scratch) / "inductor"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    # A pool of compilers takes longer to start than one takes to compile.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    # To find out a CPU's vector instructions it compiles and starts torch once for each: ten times the rest.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
    try:
        errors = _errors(torch, device)
    except Exception as error:  # noqa: BLE001 (a backend raises anything; what it raised is the finding)
        return {**where, "missing": [], "broke": f"{type(error).__name__}: {_telling(error)}"}
    code = sorted(path.suffix for path in cache.rglob("*") if path.suffix in (".py", ".so", ".cubin"))
    return {**where, "missing": [], "errors": errors, "code": {kind: code.count(kind) for kind in set(code)}}


def _missing(torch: Any, kind: str) -> list[str]:
    """Return what torch.compile needs and does not find, one by one."""
    if not hasattr(torch, "compile"):
        return [f"torch.compile (torch {torch.__version__} predates it)"]
    found = []
    if sys.version_info >= (3, 12) and tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
        found.append(f"a torch that compiles on Python 3.{sys.version_info[1]} (2.4)")
    names = [os.environ.get("CXX"), "g++", "clang++"] if kind == "cpu" else [os.environ.get("CC"), "gcc", "clang", "cc"]
    if not any(name and shutil.which(name) for name in names):
        found.append("a C++ compiler" if kind == "cpu" else "a C compiler")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        found.append("Python.h")
    if kind == "cuda":
        found += _no_triton()
    return found


def _no_triton() -> list[str]:
    import importlib.util

    return [] if importlib.util.find_spec("triton") else ["triton"]


def _errors(torch: Any, device: Any) -> dict[str, float]:
    """Return the relative errors of output and gradients of the compiled model against the same model in eager mode."""
    torch.manual_seed(21)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.LayerNorm(WIDTH)).to(device)
    inputs = torch.randn(BATCH, WIDTH, device=device)
    eager = _run(model, model, inputs)
    compiled = _run(torch.compile(model), model, inputs)
    return {
        name: float((compiled[name] - eager[name]).norm() / eager[name].norm()) for name in ("output", *_names(model))
    }


def _names(model: Any) -> list[str]:
    return [name for name, _ in model.named_parameters()]


def _run(call: Any, model: Any, inputs: Any) -> dict[str, Any]:
    model.zero_grad()
    output = call(inputs)
    (output * output.cos()).sum().backward()
    return {"output": output.detach(), **{name: p.grad.clone() for name, p in model.named_parameters()}}


def _telling(error: Exception) -> str:
    """Return the line of a compiler's many that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")[:300]


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a compilation that broke, wrote no code, or computes something else; skip naming what is missing."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    entry = ranks[0]
    if entry.get("missing"):
        return skipped(f"torch.compile needs {' and '.join(entry['missing'])}, not here", missing=entry["missing"])
    if entry.get("broke"):
        return failed(f"torch.compile broke: {entry['broke']}", fix="see TORCH_LOGS=inductor; a devel image compiles")
    errors = entry.get("errors") or {}
    if not errors or entry.get("missing") != []:
        return undecided("nothing was compiled or compared", fix="see the check's log")
    if not sum((entry.get("code") or {}).values()):
        return failed("torch.compile wrote no code: the model ran in eager mode", fix="look for TORCHDYNAMO_DISABLE=1")
    return _wrong(errors) or passed(
        f"a model and its backward pass were compiled and agree with eager mode ({sum(entry['code'].values())} files)",
        value=max(errors.values()),
        unit=LIMIT.unit,
        limit=LIMIT,
        code=entry["code"],
    )


def _wrong(errors: Measured) -> _group.Problem:
    for name, error in errors.items():
        if not _group.finite(error) or not 0 <= error <= LIMIT.value:
            return failed(
                f"compiled, the {name if name == 'output' else f'gradient of {name}'} is off by {error}",
                fix="update torch and triton together; run the matmul check: right there, leave torch.compile out",
                value=error if _group.finite(error) else None,
                unit=LIMIT.unit,
                limit=LIMIT,
                errors=errors,
            )
    return None
