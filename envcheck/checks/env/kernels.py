"""A kernel that computes something else than its operator: a driver, a CPU, a GPU or a library in the way.

Native code makes torch's answers wrong while its files are as installed: kernels of a CPU or GPU generation, a BLAS, a
libm or a cuDNN from elsewhere, an interposed function, flushed subnormals, a defective core. Every family of operators
runs forward and backward in each dtype, with odd sizes and layouts, against the same call in float64 on the CPU, which
is another kernel. On a CPU a second process without vector units confirms float64; plain Python confirms products.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.support import exact_data, process_group, training
from envcheck.counting import counted
from envcheck.node import subprocesses

CHECK = Check(
    promise="each operator family and its gradients agree with float64, in every dtype the device has",
    level="quick",
    seconds=32.0,  # on a GPU most of it loads kernels, once from disk
    cpu_seconds=6.0,
    factor_at={"quick": 0.4, "full": 3.0},
    cpu_factor_at={"quick": 0.4, "full": 1.55},  # half of it starts two processes
    timeout=180.0,
    ranks=0,
    imports=("torch._dynamo",),  # by the first optimizer
)

# Errors of random roundings grow as sqrt(n) (Higham & Mary 2019, doi 10.1137/18M1226312); the largest sums have 2^16.
BOUND = {"float64": 256.0, "float32": 256.0, "float16": 16.0, "bfloat16": 16.0}
SOURCE = "times the row's factor; sound kernels stay below 100 in fp64 and fp32, and below 8 in 16 bits (ours)"
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
LAYOUTS = {"heads": ("dense", "heads"), "channels": ("dense", "channels", "gaps")}
WIDE = ("float64", "float32")
# What says that a torch, a build or a device has no such variant: ATen/Dispatch.h, the dispatcher, sdp_utils.cpp,
# cuDNN's frontend, torch/optim, and the signatures of older releases.
ABSENT = (
    r"not implemented for|(not|only) (yet )?(support|implement)|No available kernel|No viable backend|has no attribute|"
    r"No execution plans support|Could not run 'aten|requires all the params to be|unexpected keyword argument|"
    r"do(es)?(n't| not) support|[Uu]nsupported|No module named .torch.nn.attention"
)
LACKING = rf"MemoryError|an('t|not) allocate memory|{process_group.OUT_OF_GPU_MEMORY}"
# cuBLAS, "Status Types": an error of the CUDA runtime or the hardware, too. It is a lack where less than this is free.
UNSURE, ROOM = "_STATUS_NOT_INITIALIZED", 1 << 30
# The operator families, one a line: names | inputs | sizes | options | call. Families that differ in a word share a
# line: their names stand between ";", or are BACKENDS, and "$" is each of them. `inputs` are the shapes of a, b, c …,
# where n is a size; "<9:" before one makes it whole numbers below 9. Floats lie between `low` and `high`. `wide`
# multiplies the bound, for the reason above it. `32` leaves 16 bits out, `forward` gradients; `lack` marks what a sound
# torch may not offer; `heads` and `channels` are layouts.
TABLE = """
mm                | n,97 97,71          | 1 33 1025   |       | a @ b
mm, long sums     | n,2047 2047,33      | 1 66        |       | a @ b
addmm             | n,71 n,97 97,71     | 1 67        |       | t.addmm(a, b, c, beta=0.5, alpha=2)
linear            | 2,n,67 45,67 45     | 1 35 751    |       | F.linear(a, b, c)
baddbmm           | 3,n,29 3,n,41 3,41,29 | 1 19 769  |       | t.baddbmm(a, b, c)
einsum            | n,5,9 7,9,n         | 1 21        |       | t.einsum("bij,kjb->ik", a, b)
integer products  | n,33 n,33           | 1 57        | forward | ((a * 64).long()[:, None] * (b * 64).long()).sum(-1)
# Convolutions: sums over an image, and Winograd's transforms, lose more (Lavin & Gray, arXiv 1509.09308).
conv1d            | 2,5,n 7,5,5 7       | 12 4001     | wide=4 | F.conv1d(a, b, c, 2, 3, 2)
conv2d            | 2,9,n,n 12,9,3,3 12 | 8 21 63     | wide=4 channels | F.conv2d(a, b, c, padding=1)
conv2d strided    | 1,3,n,19 16,3,5,3 16 | 10 21      | wide=4 channels | F.conv2d(a, b, c, 2, (2, 1))
conv2d grouped    | 2,6,n,11 9,2,3,3 9  | 10 21       | wide=4 channels | F.conv2d(a, b, c, (1, 2), 0, (2, 1), 3)
conv2d depthwise  | 1,12,n,13 12,1,3,3 12 | 10 21     | wide=4 32 channels | F.conv2d(a, b, c, padding=1, groups=12)
conv3d            | 1,3,5,n,6 4,3,3,2,3 4 | 10 21     | wide=4 channels | F.conv3d(a, b, c, (1, 2, 1), (1, 0, 1))
conv_transpose1d  | 2,6,n 6,3,3 3       | 10 21       | wide=4 | F.conv_transpose1d(a, b, c, 2, 0, 1)
conv_transpose2d  | 2,6,n,7 6,4,3,3 8   | 10 21       | wide=4 channels | F.conv_transpose2d(a, b, c, 2, 1, groups=2)
conv_transpose3d  | 1,3,4,n,5 3,4,2,3,2 4 | 10 21     | wide=4 channels | F.conv_transpose3d(a, b, c, padding=1)
# Attention rounds scores to 16 bits before their exponential; "$" is each backend.
attention boolean mask    | 2,3,n,32 2,3,7,32 2,3,7,32 2,3,n,7 | 18 | wide=2 heads | sdpa(a, b, c, "", attn_mask=d > -1)
attention odd width       | 3,n,19 3,12,19 3,12,23  | 1 15 | wide=2 heads           | sdpa(a, b, c)
attention grouped queries | 1,4,n,16 1,2,n,16 1,2,n,16 | 13 | wide=2 heads lack | sdpa(a, b, c, enable_gqa=True)
attention $        | 2,3,n,32 2,3,39,32 2,3,39,32 | 1 17 130 | wide=2 heads | sdpa(a, b, c, "$")
attention $ causal | 1,2,n,64 1,2,n,64 1,2,n,64 | 9 131    | wide=2 heads | sdpa(a, b, c, "$", is_causal=True)
attention $ masked | 2,3,n,32 2,3,9,32 2,3,9,32 2,1,n,9 | 1 21 | wide=2 heads | sdpa(a, b, c, "$", attn_mask=d)
# Norms: backward, sums over all rows cancel. A CPU adds layer_norm's in 16 bits: 401 rows came to 0.69 of the bound.
layer_norm        | n,65,3 65,3 65,3    | 2 15 131    | wide=4 | F.layer_norm(a, (65, 3), b, c)
rms_norm          | n,65,3 3            | 2 15 401    | wide=4 lack | F.rms_norm(a, (3,), b, 1e-3)
group_norm        | n,65,3 65 65        | 2 15 401    | wide=4 | F.group_norm(a, 5, b, c)
instance_norm     | n,13,15             | 2 15 401    | wide=4 | F.instance_norm(a)
batch_norm        | n,65,3 65 65        | 7 15 401    | wide=4 | F.batch_norm(a, None, None, b, c, True)
batch_norm eval | n,65,3 65 65 | 2 15 401 | wide=4 | F.batch_norm(a, c.detach() / 4, b.detach() ** 2 + 0.5, b, c)
softmax;log_softmax;logsumexp | n,65,3  | 2 15 401    | wide=4 | t.$(a * 8, 1)
softmax, long     | n                   | 70001       | wide=4 | t.softmax(a, 0)
# Losses with targets that are ignored, weights and smoothing; a mean over all rows. Each step of CTC rounds.
cross_entropy | n,37 37 <38:n | 7 1801 | wide=2 low=.1 | F.cross_entropy(a, c - 1, b.detach(), ignore_index=-1)
nll_loss | n,37 <37:n | 7 1801 | wide=2 low=.1 | F.nll_loss(a, b, reduction="sum", ignore_index=3) / 64
ctc_loss | 31,n,11 <10:n,9 | 3 | wide=16 32 | F.ctc_loss(a.log_softmax(-1), b + 1, (31,) * n, (9,) * n)
# Sums, above too, are of positive numbers, for what cancels is off by any factor; running ones round at every step.
sum;mean          | n,65                | 2 15 1031   | wide=2 low=.1 | a.$(0), a.$(-1, keepdim=True), (a / 64).$()
sum, long         | n                   | 100003      | wide=8 low=.1 | (a / 64).sum(), a.mean(), a.norm()
var and std       | n,65                | 7 15 1031   | wide=2 low=.1 | a.var(1), a.std(1, unbiased=False)
extremes | n,65 | 2 15 1031 | low=.1 forward | a.amax(1), a.amin(0), a.max(), a.median(1)[0], a.kthvalue(2, 1)[0]
cumsum            | n,65                | 2 15 1031   | wide=32 low=.1 | a.cumsum(1), a.cumsum(0)
cumprod           | n,65                | 2 15 1031   | wide=8 low=.1 | (1 + a / 64).cumprod(1)
# Sorting: equal numbers may change places, so what is compared is what lies there, and no gradient.
sort | n,137 | 1 15 521 | forward | a.sort(1)[0], a.gather(1, a.argsort(1, descending=True)), a.sort(0)[0]
sort, long        | n                   | 70001       | forward | a.sort()[0]
topk | n,137 | 1 15 521 | forward | a.topk(7, 1)[0], a.gather(1, a.topk(5, 1, largest=False)[1])
unique | <41:n | 77 70001 | forward 32 | *t.unique(a, return_inverse=True, return_counts=True), t.bincount(a)
# Places that occur twice are sums, which 16 bits round at every step: their terms are positive.
index_select      | n,33 <5:n           | 5 30 2053   | wide=32 low=.1 | a.index_select(0, b)
gather | n,33 <5:n,33 | 5 30 403 | wide=32 low=.1 | a.gather(0, b), t.take_along_dim(a, b.flip(1), 0)
scatter_add       | n,33 <5:n,33        | 5 30 403    | wide=32 low=.1 | t.zeros_like(a).scatter_add(0, b, a)
index_add         | n,33 <5:n           | 5 30 403    | wide=32 low=.1 | a.index_add(0, b, a, alpha=0.5)
embedding         | 41,33 <41:n,3       | 5 30 703    | wide=32 low=.1 | F.embedding(b, a, padding_idx=0)
embedding_bag     | 41,33 <41:n,3       | 5 30 703    | wide=32 low=.1 | F.embedding_bag(b, a, mode="sum")
cat and stack     | n,65                | 1 15 1031   | | t.cat((a, a[:1]), 0), t.stack((a, a), 1), a.repeat(1, 3)
casts | n,65 | 1 15 1031 | forward | a.half(), a.bfloat16().float(), (a * 32).int(), a.long().to(a.dtype), a.bool()
# Images: where a sample lies is computed in the input's own precision, or in fp32. avg_pool is not run with channels
# last: its gradient is wrong on GPUs before torch 2.14 (pytorch/pytorch#188344). In 16 bits two may be largest.
max_pool | 2,3,n,11 | 6 17 1021 | 32 channels | F.max_pool2d(a, 3, 2, 1), F.max_pool1d(a[0], 3, 2), \
    F.max_pool3d(a[:, :, None], (1, 3, 2)), F.adaptive_max_pool2d(a, (3, 2))
avg_pool | 2,3,n,11 | 6 17 1021 | wide=4 | F.avg_pool2d(a, 3, 2, 1, ceil_mode=True, count_include_pad=False)
adaptive_pool | 2,3,n,11 | 6 17 1021 | wide=4 channels | F.adaptive_avg_pool2d(a, (3, 2))
nearest           | 2,3,n,11            | 6 17 403    | wide=4 channels | F.interpolate(a, scale_factor=2.0)
bilinear;bicubic | 2,3,n,11 | 6 17 403 | wide=64 channels | F.interpolate(a, size=(9, 14), mode="$")
grid_sample | 2,3,7,9 2,n,5,2 | 4 33 | wide=64 32 high=.9 low=-.9 | F.grid_sample(a, b, "bilinear", "border", False)
# Fourier transforms of a power of two, of odd and of prime lengths; a long one with large prime factors loses more.
fft | 5,n | 64 105 251 | wide=4 32 | t.view_as_real(t.fft.fft(a)), t.view_as_real(t.fft.rfft(a, norm="ortho"))
fft, long         | n                   | 70000       | wide=32 32 | t.view_as_real(t.fft.fft(a))
stft | 1,n 64 | 700 | wide=4 32 | t.view_as_real(t.stft(a, 64, 16, window=b, return_complex=True))
# Matrices, well-conditioned. Vectors of near singular values turn far (Davis & Kahan 1970): they are multiplied again.
cholesky          | 3,n,n               | 5 37        | wide=8 32 | t.linalg.cholesky(definite(a))
solve             | 3,n,n               | 5 37        | wide=8 32 | t.linalg.solve(near(a), a[..., :3])
inv               | 3,n,n               | 5 37        | wide=8 32 | t.linalg.inv(near(a))
solve_triangular | 3,n,n | 5 37 | wide=8 32 | t.linalg.solve_triangular(near(a).triu(), a[..., :3], upper=True)
qr | 3,n,n | 5 37 | wide=8 32 | (lambda q, r: (q @ r, r.abs()))(*t.linalg.qr(near(a)))
svd | 3,n,n | 5 37 | wide=8 32 forward | (lambda u, s, v: (s, u * s[:, None] @ v))(*t.linalg.svd(a))
eigh | 3,n,n | 5 37 | wide=8 32 forward | (lambda s, u: (s, u * s[:, None] @ u.mT))(*t.linalg.eigh(definite(a)))
cdist             | n,7 9,7             | 5 37        | wide=8 32 low=.1 | t.cdist(a, b + 3)
# Functions of two numbers. Two equal ones have no one gradient (torch 2.14 changed it); a broadcast one is a long sum.
add sub mul div   | n,33 n,33           | 1 13 2053   | wide=4 low=.3 | a + b, a - 2 * b, a * b, a / b, a * 3.7, 2.5 / b
pow               | n,33 n,33           | 1 13 2053   | wide=4 low=.3 | a**b, a**3, a**0.5
atan2 and hypot   | n,33 n,33           | 1 13 2053   | wide=4 low=.3 | t.atan2(a, b), t.hypot(a, b)
maximum | n,33 n,33 | 1 13 2053 | low=.3 forward | t.maximum(a, b), t.fmin(a, b), a.clamp(0.3, 1.5)
broadcast         | n,33 n,33           | 1 13 2053   | wide=16 low=.3 | a[:, :1] * b[:1], a[:1] + b[:, :1]
complex           | n,33 n,33           | 1 13 2053   | wide=4 32 | t.view_as_real(t.complex(a, b) * t.complex(b, a))
# Recurrent layers of two directions, whose gates round in each step; cuDNN takes dense weights alone.
lstm | 3,n,5 2,3,7 28,5 28,7 28 28 28,5 28,7 28 28 | 9 | wide=32 32 | \
    t.lstm(a, (b.contiguous(),) * 2, more, True, 1, 0.0, True, True, True)[0]
gru | 3,n,5 2,3,7 21,5 21,7 21 21 21,5 21,7 21 21 | 9 | wide=32 32 | \
    t.gru(a, b.contiguous(), more, True, 1, 0.0, True, True, True)[0]
mse_loss;l1_loss;smooth_l1_loss;huber_loss;soft_margin_loss;poisson_nll_loss;binary_cross_entropy;\
binary_cross_entropy_with_logits | n,33 n,33 | 1 15 2053 | wide=4 low=.05 high=.95 | F.$(a, b.detach())
# hardsigmoid and hardswish are not here: on GPUs they keep the constants of fp32 in fp64.
sin;cos;tanh;sigmoid;exp;expm1;erf;abs;neg;square;atan;asinh;sinh;cosh;relu;ceil;floor;round;trunc;sign;exp2;elu;selu;\
leaky_relu;hardtanh;softsign | n,33 | 1 13 2053 | | of("$")(a)
gelu;silu;softplus;mish;logsigmoid;celu;tanhshrink | n,33 | 1 13 2053 | wide=4 | of("$")(a)
log;log2;log10;log1p;sqrt;rsqrt;reciprocal;lgamma;digamma;i0 | n,33 | 1 13 2053 | wide=4 low=2.1 high=6 | of("$")(a)
asin;acos;atanh;logit;sinc | n,33 | 1 13 2053 | wide=4 low=.2 high=.8 | of("$")(a)
erfinv            | n,33                | 1 13 2053   | wide=4 low=.2 high=.8 32 | of("$")(a)
SGD foreach;SGD fused | n,7 33 n,7 33 | 3 9377 | wide=4 low=.2 32 forward | steps("$", momentum=0.9, nesterov=True)
Adam foreach;Adam fused | n,7 33 n,7 33 | 3 9377 | wide=4 low=.2 32 forward | steps("$", amsgrad=True)
RMSprop foreach;RMSprop fused|n,7 33 n,7 33|3 9377| wide=4 low=.2 32 forward | steps("$", momentum=0.5, centered=True)
AdamW foreach;AdamW fused;Adagrad foreach;Adagrad fused;NAdam foreach;NAdam fused | n,7 33 n,7 33 | 3 9377 | \
    wide=4 low=.2 32 forward | steps("$")
"""
# What chooses among attention's ways (sdp_utils.cpp); a torch, a dtype, a width or a mask may have no such way.
BACKENDS = ("default", "MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
OPTIONAL = (*BACKENDS[1:], "fused")


class Row(NamedTuple):
    """One family of operators; with a size, and the number that makes its inputs, an example of it."""

    name: str
    inputs: list[tuple[list[str], int]]  # each shape, and what whole numbers are below; 0 for floats
    sizes: tuple[int, ...]
    code: CodeType
    options: dict[str, float]
    size: int = 0
    number: int = 0

    def call(self, torch: Any, inputs: Sequence[Any], *, plain: bool) -> Any:
        """Return what the operator gives; `plain` is whether it is the reference, which steps tensor by tensor."""
        names: dict[str, Any] = {**dict(zip("abcd", inputs)), "n": self.size, "t": torch, "F": torch.nn.functional}
        names["of"] = lambda one: next(getattr(r, one) for r in (torch, names["F"], torch.special) if hasattr(r, one))
        names |= {"more": [x.contiguous() for x in inputs[2:]], "sdpa": functools.partial(_sdpa, torch)}
        names["steps"] = functools.partial(_steps, torch, inputs, plain)
        names["near"] = lambda x: x / x.shape[-1] + 2 * x.new_ones(x.shape[-1]).diag()
        names["definite"] = lambda x: x @ x.mT / x.shape[-1] + x.new_ones(x.shape[-1]).diag()
        return eval(self.code, names)  # noqa: S307 (the table above)


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return every row of the table."""
    lines = [line.partition("|")[::2] for line in TABLE.splitlines() if line and not line.startswith("#")]
    split = [(head.strip(), rest, BACKENDS if "$" in head else head.strip().split(";")) for head, rest in lines]
    return tuple(_row(head, word, rest) for head, rest, words in split for word in words)


def _row(head: str, word: str, rest: str) -> Row:
    name = head.replace("$", word) if "$" in head else word
    inputs, sizes, options, call = (part.strip() for part in rest.replace("$", word).split("|", 3))
    given = {"wide": 1.0, "low": -2.0, "high": 2.0, **({"lack": 1.0} if word.endswith(OPTIONAL) else {})}
    given |= {option: float(value or 1) for option, _, value in (part.partition("=") for part in options.split())}
    shapes = (side.rpartition(":") for side in inputs.split())
    made = [(shape.split(","), int(below[1:] or 0)) for below, _, shape in shapes]
    return Row(name, made, tuple(map(int, sizes.split())), compile(f"({call})", name, "eval"), given)


def _sdpa(torch: Any, q: Any, k: Any, v: Any, backend: str = "", **more: Any) -> Any:
    room = importlib.import_module("torch.nn.attention") if backend in BACKENDS[1:] else None
    with room.sdpa_kernel(getattr(room.SDPBackend, backend)) if room else contextlib.nullcontext():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **more)


def _steps(torch: Any, inputs: Sequence[Any], plain: bool, name: str, **options: Any) -> Any:  # noqa: FBT001
    """Return two parameters after three steps, fused or foreach; for the reference, one tensor after the other."""
    held, (kind, how) = [torch.nn.Parameter(x.detach().clone()) for x in inputs[:2]], name.split()
    options |= {"lr": 0.1, "weight_decay": 0.1, **({"foreach": False} if plain else {how: True})}
    optimizer = getattr(torch.optim, kind)(held, **options)
    for number in range(3):
        for parameter, gradient in zip(held, inputs[2:]):
            parameter.grad = gradient.detach() * (number + 1)
        optimizer.step()
    return [parameter.detach() for parameter in held]


def dtypes(entry: Measured) -> list[str]:
    """Return what operators are run in: fp16 on GPUs, bf16 where it is native."""
    native = not entry["is_cuda"] or tuple(entry.get("capability") or ()) >= training.BFLOAT16_SINCE
    return [*WIDE, *(["float16"] if entry["is_cuda"] else []), *(["bfloat16"] if native else [])]


def measure(rank: Rank) -> Measured:
    """Run this rank's examples in each dtype; say how far off each was, and what was absent or raised."""
    import torch

    device, seed = process_group.device_of(rank), exact_data.seed()
    on_cpu, threads = device.type == "cpu", torch.get_num_threads()
    entry: Measured = {**process_group.standing(rank, torch.zeros(1, device=device)), "seed": seed}
    entry["capability"] = [] if on_cpu else list(torch.cuda.get_device_capability(device))
    ranks_here = max(rank.world // rank.nodes, 1) if on_cpu else 1
    share = (rank.level, seed, rank.local_rank % ranks_here, ranks_here)
    survey = Survey(torch, device, dtypes(entry), None if on_cpu or rank.level == "full" else seed)
    torch.backends.cudnn.allow_tf32 = False  # device_of has done so for products; the process ends with this check
    with ThreadPoolExecutor(1) as beside, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = beside.submit(_witness, rank, share) if on_cpu else None
        for row in examples(*share):
            if on_cpu:
                torch.set_num_threads(threads if row.name in THREADED else 1)
            survey.run(row)
        entry["witness"] = survey.confirmed(asked.result()) if asked else {}
    entry["cudnn"] = bool(torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled)
    return {**entry, "subnormals": subnormals(torch, device), **survey.measured()}


def examples(level: str, seed: int, first: int, step: int) -> list[Row]:
    """Return the examples of a level that one of `step` ranks runs: from the second round on with other sizes."""
    rounds, one_in = EXTENT.get(level, EXTENT["full"])
    chance, made = exact_data.source(seed), list[Row]()
    for turn in range(rounds):
        for row in rows():
            sizes = (size + chance.randrange(3) if turn and size > 1 else size for size in row.sizes)
            made += [row._replace(size=size, number=seed + len(made) + at) for at, size in enumerate(sizes)]
    drawn = [row for row in made if row.name == TRUSTED or (row.number - seed) % one_in == seed % one_in]
    return [row for place, row in enumerate(drawn) if row.name == TRUSTED or place % step == first]


class Survey:
    """What the runs of one process gave; on a GPU below level full a row takes its `turn` at the dtypes."""

    def __init__(self, torch: Any, device: Any, names: Sequence[str], turn: int | None) -> None:
        self.torch, self.device, self.names, self.turn = torch, device, names, turn
        self.found: Measured = {"ran": {}, "worst": {}, "absent": {}, "wrong": []}
        self.lost: dict[str, bool] = {}
        self.references: list[tuple[Row, list[Any]]] = []

    def run(self, row: Row) -> None:
        """Compare an example in each of its dtypes with float64 of the same inputs."""
        references: dict[str, list[Any]] = {}
        self.lost.setdefault(row.name, "lack" not in row.options)
        names = [name for name in self.names if name in WIDE or "32" not in row.options]
        if self.turn is not None and row.name not in ALL_DTYPES:
            names = [names[(self.turn + len(self.lost)) % len(names)]]
        for name in names:
            grain = "float32" if name in WIDE else "bfloat16"
            try:
                if grain not in references:
                    references[grain] = results(self.torch, row, grain)
                made = results(self.torch, row, grain, name, self.device)
                error = max(apart(self.torch, *pair, name) for pair in zip(made, references[grain]))
            except Exception as raised:  # what an operator raises is the finding
                text = process_group.quoted(raised)
                if re.search(LACKING, text) and not (UNSURE in text and self.torch.cuda.mem_get_info()[0] >= ROOM):
                    raise  # others hold the memory, which is no fault of an operator
                if re.search(ABSENT, text):
                    self.found["absent"][f"{row.name} {name}"] = text
                else:
                    self.lost[row.name] = False
                    self.found["wrong"].append({"operator": row.name, "dtype": name, "raised": text})
            else:
                self._compared(row, row.name, name, error)
        if self.device.type == "cpu" and "float32" in references:
            self.references.append((row, references["float32"]))
        for grain in references if row.name == TRUSTED else ():
            left, right = inputs(self.torch, row, grain)
            error = exact_data.error(self.torch, left, right.t(), references[grain][0])
            self._compared(row, "mm in plain Python", "float64", error)

    def _compared(self, row: Row, called: str, name: str, error: float) -> None:
        ran, furthest = self.found["ran"], self.found["worst"]
        ran[name], self.lost[row.name] = ran.get(name, 0) + 1, False
        error = min(error / exact_data.UNIT_ROUNDOFF[name] / row.options["wide"], 1e300)  # JSON has no infinity
        compared = {"operator": called, "dtype": name, "error": error, "size": row.size}
        if not error <= BOUND[name]:
            self.found["wrong"].append(compared)
        elif error > furthest.get(name, {"error": -1.0})["error"]:
            furthest[name] = compared

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
        right = self.torch.arange(1, 65, dtype=self.torch.float64) / 64
        off = {name: (right * (1 + MOVED)).to(getattr(self.torch, name)) for name in self.names}
        moved = {name: min(apart(self.torch, off[name], right, name), 1e300) for name in off}
        return {**self.found, "wrong": self.found["wrong"][:MOST], "lost": lost, "moved": moved}


def inputs(torch: Any, row: Row, grain: str) -> list[Any]:
    """Return the inputs in float64, exact in the dtype `grain`. `rand` is the same on every path of a CPU."""
    source, made, low, high = torch.Generator().manual_seed(row.number), [], row.options["low"], row.options["high"]
    for sides, below in row.inputs:
        shape = tuple(row.size if side == "n" else int(side) for side in sides)
        if below:
            made.append(torch.randint(0, below, shape, generator=source))
        else:
            drawn = low + (high - low) * torch.rand(shape, generator=source, dtype=torch.float64)
            made.append(drawn.to(getattr(torch, grain)).to(torch.float64))
    return made


def results(torch: Any, row: Row, grain: str, name: str = "float64", device: Any = None) -> list[Any]:
    """Return the outputs and gradients of an example in a dtype on a device; without one, the reference's."""
    layouts = next((LAYOUTS[option] for option in LAYOUTS if option in row.options), ("dense", "transposed", "gaps"))
    layout = layouts[row.number % len(layouts)] if device else "dense"
    leaves = [
        laid((x.to(getattr(torch, name)) if x.is_floating_point() else x).to(device or "cpu"), layout)
        for x in inputs(torch, row, grain)
    ]
    floats = [x.requires_grad_() for x in leaves if "forward" not in row.options and x.is_floating_point()]
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
    return exact_data.worst([float(off.max())]) if off.numel() else 0.0


def subnormals(torch: Any, device: Any) -> list[str]:
    """Return what does not keep numbers below the normal ones: a library linked with -ffast-math turns them to zero."""
    lost = []
    for name, least in (("float32", "1e-40"), ("float64", "1e-310")):
        x = torch.tensor([float(least)] * 33, dtype=getattr(torch, name))
        if not float(least) * 1.0 or (x.to(device) * 1).cpu().tolist() != x.tolist() or not x.tolist()[0]:
            lost.append(f"{least} * 1 in {name}")
    return lost


def _witness(rank: Rank, share: tuple[Any, ...]) -> Measured:
    """Run a second process without vector units. Return the file of its results, or its error."""
    target = str(Path(rank.scratch, f"scalar{rank.rank}.pt"))
    command, environment = subprocesses.of_envcheck(__name__, f"be_witness({target!r}, {share!r})")
    done = subprocesses.run(command, PATIENCE, environment={**environment, **SCALAR, "OMP_NUM_THREADS": "1"})
    last = (done.errors.strip().splitlines() or [f"it ended with {done.code}"])[-1]
    return {"error": last[:300]} if done.code != 0 else {"file": target}


def be_witness(target: str, share: tuple[Any, ...]) -> None:
    """Write the float64 results of each example to a file, as the second process."""
    import torch

    made: dict[int, list[Any]] = {}
    warnings.simplefilter("ignore")
    for row in examples(*share):
        with contextlib.suppress(Exception):
            made[row.number] = results(torch, row, "float32")
    torch.save(made, target)


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail naming every operator that is off or raised, on each rank; what a rank did not run is an error."""
    findings = [finding for entry in ranks for finding in _findings(entry)]
    if findings:
        return worst(findings, otherwise=findings[0])
    furthest = (row for entry in ranks for row in entry["worst"].values())
    closest = max(furthest, key=lambda row: row["error"] / BOUND[row["dtype"]])
    runs = sum(sum(entry["ran"].values()) for entry in ranks)
    limit = Limit(BOUND[closest["dtype"]], "units roundoff", SOURCE, "at most")
    summary = f"{runs} runs of operators agree with float64 on {counted(len(ranks), 'rank')}"
    nearest = f"closest to its bound: {closest['operator']} {closest['dtype']}"
    about: Any = {"seed": ranks[0].get("seed"), "absent": ranks[0].get("absent")}
    return passed(f"{summary}; {nearest}", value=closest["error"], limit=limit, **about)


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
    furthest, ran, moved = (entry.get(name) or {} for name in ("worst", "ran", "moved"))
    for name in dtypes(entry):
        error: Any = (furthest.get(name) or {}).get("error")
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
