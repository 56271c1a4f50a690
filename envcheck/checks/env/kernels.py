"""A kernel that computes something else than its operator: a driver, a CPU, a GPU or a library in the way.

Native code makes torch's answers wrong while its files are as installed: kernels of a CPU or GPU generation, a BLAS, a
libm or a cuDNN from elsewhere, an interposed function, flushed subnormals, a defective core. Every family of operators
runs forward and backward in each dtype, with odd sizes and layouts, against the same call in float64 on the CPU, which
is another kernel. On a CPU a second process without vector units confirms float64; plain Python confirms products.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import mul
from pathlib import Path
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.support import exact_data, kernel_table, process_group
from envcheck.counting import counted
from envcheck.node import subprocesses

CHECK = Check(
    promise="each operator family and its gradients agree with float64, in every dtype the device has",
    level="quick",
    seconds=28.0,  # on a GPU most of it loads kernels, once from disk
    cpu_seconds=6.0,
    factor_at={"quick": 0.3, "full": 3.0},
    cpu_factor_at={"quick": 0.4, "full": 1.55},  # half of it starts two processes
    timeout=180.0,
    ranks=0,
    imports=("torch._dynamo",),  # by the first optimizer
)

# Units roundoff: IEEE 754-2019, table 3.5; bfloat16 keeps 8 bits (Intel, BFLOAT16 Numerics Definition, 2018).
UNIT = exact_data.UNIT_ROUNDOFF
# Errors of random roundings grow as sqrt(n) (Higham & Mary 2019, doi 10.1137/18M1226312); the largest sums have 2^16.
BOUND = {"float64": 256.0, "float32": 256.0, "float16": 16.0, "bfloat16": 16.0}
SOURCE = "times the row's factor; sound kernels stay below 100 in fp64 and fp32, and below 8 in 16 bits (ours)"
BFLOAT16_SINCE = (8, 0)
# How often a level runs the table, and one in how many of its rows.
EXTENT = {"quick": (1, 10), "standard": (1, 1), "full": (3, 1)}
TRUSTED = "mm"  # every rank runs it, and computes some of its sums in plain Python
# On a GPU, loading a kernel takes longer than running it: below level full a row takes turns at the dtypes, save these.
ALL_DTYPES = (TRUSTED, "linear", "conv2d", "attention default")
# These use every thread; the others one, for on a busy machine threads wait long for each other.
THREADED = (TRUSTED, "exp", "sum, long", "conv2d")
# What compares must see that elements are off by this share; fewer runs in a dtype say nothing.
MOVED, LEAST = 0.5, 10
# ATen's scalar kernels, and the least of oneDNN's and MKL's.
SCALAR = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
PATIENCE, MOST = 120.0, 20  # seconds of the witness; wrong runs that are reported
_FIX = (
    "run it on another machine with the same ENVCHECK_SEED: wrong here alone, take the GPU or machine out; wrong "
    "everywhere, look for libraries from elsewhere (LD_PRELOAD, LD_LIBRARY_PATH) and install torch again"
)
_FLUSHED = "find the library that was linked with -ffast-math and sets flush-to-zero when it is loaded; update it"


def dtypes(entry: Measured) -> list[str]:
    """Return what operators are run in: fp16 on GPUs, bf16 where it is native."""
    if not entry["is_cuda"]:
        return ["float64", "float32", "bfloat16"]
    native = tuple(entry.get("capability") or ()) >= BFLOAT16_SINCE
    return ["float64", "float32", "float16", *(["bfloat16"] if native else [])]


def measure(rank: Rank) -> Measured:
    """Run this rank's examples in each dtype; say how far off each was, and what was absent or raised."""
    import torch

    device, seed = process_group.device_of(rank), exact_data.seed()
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    entry: Measured = {**process_group.standing(rank, torch.zeros(1, device=device)), "capability": list(capability)}
    on_cpu = device.type == "cpu"
    ranks_here = max(rank.world // rank.nodes, 1) if on_cpu else 1
    share = (rank.level, seed, rank.local_rank % ranks_here, ranks_here)
    survey, threads = Survey(torch, device, dtypes(entry)), torch.get_num_threads()
    survey.turn = None if on_cpu or rank.level == "full" else seed
    torch.backends.cudnn.allow_tf32 = False  # device_of has done so for products; the process ends with this check
    with ThreadPoolExecutor(1) as beside, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = beside.submit(_witness, rank, share) if on_cpu else None
        for row in examples(*share):
            if on_cpu:
                torch.set_num_threads(threads if row.name in THREADED else 1)
            survey.run(row)
        witness = survey.confirmed(asked.result()) if asked else {}
    cudnn = bool(torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled)
    more = {"seed": seed, "witness": witness, "cudnn": cudnn, "subnormals": subnormals(torch, device)}
    return {**entry, **more, **survey.measured()}


def examples(level: str, seed: int, first: int, step: int) -> list[kernel_table.Row]:
    """Return the examples of a level that one of `step` ranks runs: from the second round on with other sizes."""
    rounds, one_in = EXTENT.get(level, EXTENT["full"])
    chance, made = exact_data.source(seed), list[kernel_table.Row]()
    for turn in range(rounds):
        for row in kernel_table.rows():
            sizes = (size + chance.randrange(3) if turn and size > 1 else size for size in row.sizes)
            made += [row._replace(size=size, number=seed + len(made) + at) for at, size in enumerate(sizes)]
    drawn = [row for row in made if row.name == TRUSTED or (row.number - seed) % one_in == seed % one_in]
    return [row for place, row in enumerate(drawn) if row.name == TRUSTED or place % step == first]


class Survey:
    """What the runs of one process gave."""

    def __init__(self, torch: Any, device: Any, names: Sequence[str]) -> None:
        self.torch, self.device, self.names = torch, device, names
        self.turn: int | None = None
        self.wrong: list[Measured] = []
        self.worst: dict[str, Measured] = {}
        self.ran: dict[str, int] = {}
        self.lost: dict[str, bool] = {}
        self.absent: dict[str, str] = {}
        self.references: list[tuple[kernel_table.Row, list[Any]]] = []

    def run(self, row: kernel_table.Row) -> None:
        """Compare an example in each of its dtypes with float64 of the same inputs."""
        references: dict[str, list[Any]] = {}
        if tuple(map(int, str(self.torch.__version__).split(".")[:2])) < row.since:
            self.absent[row.name] = f"since torch {row.since[0]}.{row.since[1]}"
            return
        self.lost.setdefault(row.name, "lack" not in row.flags)
        names = [name for name in self.names if name in row.dtypes]
        if self.turn is not None and row.name not in ALL_DTYPES:
            names = [names[(self.turn + len(self.lost)) % len(names)]]
        for name in names:
            grain = "float32" if name in ("float64", "float32") else "bfloat16"
            try:
                if grain not in references:
                    references[grain] = results(self.torch, row, grain)
                    self._keep(row, references[grain], grain)
                made = results(self.torch, row, grain, name, self.device)
                error = max(apart(self.torch, *pair, name) for pair in zip(made, references[grain]))
            except Exception as raised:  # noqa: BLE001 (whatever an operator raises is the finding, and is quoted)
                self._raised(row.name, name, raised)
            else:
                self._compared(row, row.name, name, error)

    def _keep(self, row: kernel_table.Row, reference: list[Any], grain: str) -> None:
        """Keep a reference for the witness; compare a product with sums in plain Python."""
        if grain == "float32" and self.device.type == "cpu":
            self.references.append((row, reference))
        if row.name == TRUSTED:
            left, right = (x.tolist() for x in inputs(self.torch, row, grain))
            self._compared(row, "mm in plain Python", "float64", plainly(left, right, reference[0]))

    def _raised(self, row: str, name: str, raised: Exception) -> None:
        text = f"{type(raised).__name__}: {(str(raised).strip().splitlines() or [''])[0][:200]}"
        if re.search(kernel_table.ABSENT, text):
            self.absent[f"{row} {name}"] = text
        else:
            self.lost[row] = False
            self.wrong.append({"operator": row, "dtype": name, "raised": text})

    def _compared(self, row: kernel_table.Row, called: str, name: str, error: float) -> None:
        self.ran[name] = self.ran.get(name, 0) + 1
        self.lost[row.name] = False
        error = min(error / UNIT[name] / row.wide, 1e300)  # JSON has no infinity
        found = {"operator": called, "dtype": name, "error": error, "size": row.size}
        if not error <= BOUND[name]:
            self.wrong.append(found)
        elif error > self.worst.get(name, {"error": -1.0})["error"]:
            self.worst[name] = found

    def confirmed(self, witness: Measured) -> Measured:
        """Compare the float64 results of this CPU with those of the witness, and say how many there were."""
        theirs = self.torch.load(witness.pop("file")) if "file" in witness else {}
        for row, mine in self.references:
            if row.number in theirs:
                error = max(apart(self.torch, *pair) for pair in zip(mine, theirs[row.number]))
                self._compared(row, f"{row.name}, vector units beside scalar code,", "float64", error)
        return {**witness, "compared": len(theirs)}

    def measured(self) -> Measured:
        """Return what `judge` reads."""
        lost = [name for name, wanted in self.lost.items() if wanted]
        found = {"ran": self.ran, "worst": self.worst, "absent": self.absent, "lost": lost, "wrong": self.wrong[:MOST]}
        right = self.torch.arange(1, 65, dtype=self.torch.float64) / 64
        off = {name: (right * (1 + MOVED)).to(getattr(self.torch, name)) for name in self.names}
        return {**found, "moved": {name: min(apart(self.torch, off[name], right, name), 1e300) for name in off}}


def inputs(torch: Any, row: kernel_table.Row, grain: str) -> list[Any]:
    """Return the inputs in float64, exact in the dtype `grain`. `rand` is the same on every path of a CPU."""
    source, made = torch.Generator().manual_seed(row.number), []
    for sides, below in row.inputs:
        shape = tuple(row.size if side == "n" else int(side) for side in sides)
        if below:
            made.append(torch.randint(0, below, shape, generator=source))
        else:
            drawn = row.low + (row.high - row.low) * torch.rand(shape, generator=source, dtype=torch.float64)
            made.append(drawn.to(getattr(torch, grain)).to(torch.float64))
    return made


def results(torch: Any, row: kernel_table.Row, grain: str, name: str = "float64", device: Any = None) -> list[Any]:
    """Return the outputs and gradients of an example in a dtype on a device; without one, the reference's."""
    layout = row.layouts[row.number % len(row.layouts)] if device else "dense"
    leaves = [
        laid((x.to(getattr(torch, name)) if x.is_floating_point() else x).to(device or "cpu"), layout)
        for x in inputs(torch, row, grain)
    ]
    floats = [x.requires_grad_() for x in leaves if "forward" not in row.flags and x.is_floating_point()]
    made = row.call(torch, leaves, plain=device is None)
    outputs = list(made) if isinstance(made, (tuple, list)) else [made]
    source = torch.Generator().manual_seed(row.number + 1)
    given = [(torch.rand(y.shape, generator=source) - 0.5).bfloat16().to(y.device, y.dtype) for y in outputs]
    pairs = [(y, up) for y, up in zip(outputs, given) if y.requires_grad]
    if pairs:
        torch.autograd.backward([y for y, _ in pairs], [up for _, up in pairs])
    return [y.detach() for y in outputs] + [x.grad for x in floats if x.grad is not None]


def laid(x: Any, layout: str) -> Any:
    """Return the tensor without gaps, with a dimension moved in memory, or with gaps that hold NaN."""
    dims = {"transposed": (0, -1), "heads": (1, 2), "channels": (1, -1)}.get(layout)
    if dims and x.dim() > max(dims):
        return x.movedim(*dims).contiguous().movedim(*dims[::-1])
    if layout == "gaps" and x.is_floating_point():
        room = x.new_full((*x.shape[:-1], x.shape[-1] * 2), math.nan)
        room[..., ::2] = x
        return room[..., ::2]
    return x.clone()


def apart(torch: Any, made: Any, right: Any, name: str = "float64") -> float:
    """Return the largest |made - right| / max(|right|, rms, least normal number); infinite where that says nothing."""
    made, right = made.detach().cpu(), right.detach().cpu()
    if made.shape != right.shape or not right.is_floating_point():
        return 0.0 if torch.equal(made, right) else math.inf
    made, right = made.to(torch.float64), right.to(torch.float64)
    least = max(float(right.square().mean().sqrt()), torch.finfo(getattr(torch, name)).tiny)
    off = (made - right).abs() / right.abs().clamp(min=least)
    off[(made == right) | (made.isnan() & right.isnan())] = 0.0
    largest = float(off.max()) if off.numel() else 0.0
    return largest if math.isfinite(largest) else math.inf


def plainly(left: list[list[float]], right: list[list[float]], product: Any) -> float:
    """Return how far a product is from sums in plain Python, in its first, middle and last row."""
    columns, made = list(zip(*right)), product.tolist()
    places = {0, len(left) // 2, len(left) - 1}
    sums = ((made[at], [math.fsum(map(mul, left[at], column)) for column in columns]) for at in places)
    return max(exact_data.apart(row, expected) for row, expected in sums)


def subnormals(torch: Any, device: Any) -> list[str]:
    """Return what does not keep numbers below the normal ones: a library linked with -ffast-math turns them to zero."""
    lost = []
    for name, least in {"float32": "1e-40", "float64": "1e-310"}.items():
        x = torch.tensor([float(least)] * 33, dtype=getattr(torch, name))
        if not float(least) * 1.0 or (x.to(device) * 1).cpu().tolist() != x.tolist() or not x.tolist()[0]:
            lost.append(f"{least} * 1 in {name}")
    return lost


def _witness(rank: Rank, share: tuple[Any, ...]) -> Measured:
    """Run a second process without vector units; return its file, or why there is none."""
    target, root = str(Path(rank.scratch, f"scalar{rank.rank}.pt")), str(Path(__file__).resolve().parents[3])
    code = "import sys; sys.path.insert(0, sys.argv[1]); from envcheck.checks.env import kernels; kernels.be_witness()"
    command = [sys.executable, "-c", code, root, target, *map(str, share)]
    try:
        done = subprocesses.run(command, PATIENCE, environment={**os.environ, **SCALAR, "OMP_NUM_THREADS": "1"})
    except OSError as error:
        return {"error": str(error)}
    last = (done.errors.strip().splitlines() or [f"it ended with {done.code}"])[-1]
    return {"error": last[:300]} if done.code != 0 else {"file": target}


def be_witness() -> None:
    """Write the float64 results of each example to a file, as the second process."""
    import torch

    target, level, *numbers = sys.argv[2:]
    seed, first, step = map(int, numbers)
    made: dict[int, list[Any]] = {}
    warnings.simplefilter("ignore")
    for row in examples(level, seed, first, step):
        with contextlib.suppress(Exception):
            made[row.number] = results(torch, row, "float32")
    torch.save(made, target)


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail naming every operator that is off or raised, on each rank; what a rank did not run is an error."""
    findings = [finding for entry in ranks for finding in _findings(entry)]
    if findings:
        return worst(findings, otherwise=findings[0])
    rows = (row for entry in ranks for row in entry["worst"].values())
    closest = max(rows, key=lambda row: row["error"] / BOUND[row["dtype"]])
    runs = sum(sum(entry["ran"].values()) for entry in ranks)
    return passed(
        f"{runs} runs of operators agree with float64 on {counted(len(ranks), 'rank')}; closest to its bound: "
        f"{closest['operator']} {closest['dtype']}",
        value=closest["error"],
        limit=Limit(BOUND[closest["dtype"]], "units roundoff", SOURCE, "at most"),
        seed=ranks[0].get("seed"),
        absent=ranks[0].get("absent"),
    )


def _findings(entry: Measured) -> Iterator[Outcome]:
    where = process_group.name(entry)
    for row in entry.get("wrong") or ():
        yield _wrong(entry, where, row)
    for text in entry.get("subnormals") or ():
        yield failed(f"{where}: {text} is not what it was", fix=_FLUSHED, code="kernels.subnormals", culprit=text)
    if entry["is_cuda"] and entry.get("cudnn") is False:
        fix = "install a torch wheel with cuDNN, or enable it"
        yield failed(f"{where} has no cuDNN", fix=fix, code="kernels.no-cudnn", culprit=where)
    for text in _unmeasured(entry):
        yield undecided(f"{where} {text}", code="kernels.unmeasured", culprit=where)


def _unmeasured(entry: Measured) -> Iterator[str]:
    rows, ran, moved = (entry.get(name) or {} for name in ("worst", "ran", "moved"))
    for name in dtypes(entry):
        error: Any = (rows.get(name) or {}).get("error")
        count: Any = ran.get(name)
        within = process_group.finite(error) and 0 <= error <= BOUND[name]
        if not process_group.counts(count) or count < LEAST or not (within or entry.get("wrong")):
            yield f"ran {count or 'no'} operators in {name}"
        if not process_group.finite(moved.get(name)) or not 0.9 * MOVED < moved[name] < 1.1 * MOVED:
            yield f"sees an error of {MOVED} in {name} as {moved.get(name)}: its comparison cannot be believed"
    if entry.get("lost"):
        yield f"has no variant of {', '.join(entry['lost'][:MOST])}"
    witness = entry.get("witness") or {}
    if not entry["is_cuda"] and not witness.get("compared"):
        yield f"has no second process that confirms float64: {witness.get('error', 'it compared nothing')}"
    if not isinstance(entry.get("subnormals"), list) or not isinstance(entry.get("wrong"), list):
        yield "did not say what was wrong"


def _wrong(entry: Measured, where: str, row: Measured) -> Outcome:
    dtype, error = str(row.get("dtype")), row.get("error")
    about: dict[str, Any] = {"fix": _FIX, "culprit": f"{row.get('operator')} {dtype}", "seed": entry.get("seed")}
    if "raised" in row:
        return failed(f"{where}: {about['culprit']}: {row['raised']}", code="kernels.raised", **about)
    shown = f"{error:.3g}" if process_group.finite(error) else error
    text = f"{where}: {about['culprit']} of size {row.get('size')} is off by {shown} units roundoff"
    limit = Limit(BOUND[dtype], "units roundoff", SOURCE, "at most")
    return failed(text, code="kernels.wrong", value=error, limit=limit, **about)
