"""The operator families that `kernels` runs, one a line: names | inputs | sizes | options | call.

Families that differ in a word share a line: their names stand between ";", and "$" is each of them. `inputs` are the
shapes of a, b, c …, where n is a size; "<9:" before one makes it whole numbers below 9. Floats lie between `low` and
`high`. `wide` multiplies the bound, for the reason above it. `32` leaves 16 bits out, `forward` gradients; `lack` marks
what a sound torch may not offer, `since` the first torch that has it; `heads` and `channels` are layouts.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import CodeType
from typing import Any, NamedTuple

FLOATS = ("float64", "float32", "float16", "bfloat16")
LAYOUTS = {"heads": ("dense", "heads"), "channels": ("dense", "channels", "gaps")}
# What says that a torch, a build or a device has no such variant: ATen/Dispatch.h, the dispatcher, sdp_utils.cpp,
# cuDNN's frontend, torch/optim, and the signatures of older releases.
ABSENT = (
    r"not implemented for|(not|only) (yet )?(support|implement)|No available kernel|No viable backend|has no attribute|"
    r"No execution plans support|Could not run 'aten|requires all the params to be|unexpected keyword argument|"
    r"do(es)?(n't| not) support|[Uu]nsupported"
)

TABLE = """
# Products: one row, odd sizes, long sums, a bias, batches, whole numbers.
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
# Attention rounds scores to 16 bits before their exponential; each backend follows below.
attention boolean mask    | 2,3,n,32 2,3,7,32 2,3,7,32 2,3,n,7 | 18 | wide=2 heads | sdpa(a, b, c, "", attn_mask=d > -1)
attention odd width       | 3,n,19 3,12,19 3,12,23  | 1 15 | wide=2 heads           | sdpa(a, b, c)
attention grouped queries | 1,4,n,16 1,2,n,16 1,2,n,16 | 13 | wide=2 heads since=2.5 | sdpa(a, b, c, enable_gqa=True)
# Norms: backward, sums over all rows cancel.
layer_norm        | n,65,3 65,3 65,3    | 2 15 401    | wide=4 | F.layer_norm(a, (65, 3), b, c)
rms_norm          | n,65,3 3            | 2 15 401    | wide=4 since=2.4 | F.rms_norm(a, (3,), b, 1e-3)
group_norm        | n,65,3 65 65        | 2 15 401    | wide=4 | F.group_norm(a, 5, b, c)
instance_norm     | n,13,15             | 2 15 401    | wide=4 | F.instance_norm(a)
batch_norm        | n,65,3 65 65        | 2 15 401    | wide=4 | F.batch_norm(a, None, None, b, c, True)
batch_norm eval | n,65,3 65 65 | 2 15 401 | wide=4 | F.batch_norm(a, c.detach() / 4, b.detach() ** 2 + 0.5, b, c)
softmax;log_softmax;logsumexp | n,65,3  | 2 15 401    | wide=4 | t.$(a * 8, 1)
softmax, long     | n                   | 70001       | wide=4 | t.softmax(a, 0)
# Losses with targets that are ignored, weights and smoothing; a mean over all rows. Each step of CTC rounds.
cross_entropy | n,37 37 <38:n | 7 1801 | wide=2 low=.1 | F.cross_entropy(a, c - 1, b.detach(), ignore_index=-1)
nll_loss          | n,37 <37:n          | 7 1801      | wide=2 | F.nll_loss(a, b, reduction="sum", ignore_index=3) / 64
ctc_loss | 31,n,11 <10:n,9 | 3 | wide=16 32 | F.ctc_loss(a.log_softmax(-1), b + 1, (31,) * n, (9,) * n)
# Reductions of positive numbers, so that nothing cancels; running sums and products round at every step.
sum;mean          | n,65                | 2 15 1031   | wide=2 low=.1 | a.$(0), a.$(-1, keepdim=True), (a / 64).$()
sum, long         | n                   | 100003      | wide=8 low=.1 | (a / 64).sum(), a.mean(), a.norm()
var and std       | n,65                | 2 15 1031   | wide=2 low=.1 | a.var(1), a.std(1, unbiased=False)
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
# What moves elements, and what makes other dtypes of them.
cat and stack     | n,65                | 1 15 1031   | | t.cat((a, a[:1]), 0), t.stack((a, a), 1), a.repeat(1, 3)
casts | n,65 | 1 15 1031 | forward | a.half(), a.bfloat16().float(), (a * 32).int(), a.long().to(a.dtype), a.bool()
# Images: where a sample lies is computed in the input's own precision, or in fp32. avg_pool is not run with channels
# last: its gradient is wrong on GPUs before torch 2.14 (pytorch/pytorch#188344). In 16 bits two may be largest.
max_pool | 2,3,n,11 | 6 17 1021 | 32 channels | \
    F.max_pool2d(a, 3, 2, 1), F.max_pool1d(a[0], 3, 2), F.max_pool3d(a[:, :, None], (1, 3, 2)), \
    F.adaptive_max_pool2d(a, (3, 2))
avg_pool | 2,3,n,11 | 6 17 1021 | wide=4 | F.avg_pool2d(a, 3, 2, 1, ceil_mode=True, count_include_pad=False)
adaptive_pool | 2,3,n,11 | 6 17 1021 | wide=4 channels | F.adaptive_avg_pool2d(a, (3, 2))
nearest           | 2,3,n,11            | 6 17 403    | wide=4 channels | F.interpolate(a, scale_factor=2.0)
bilinear;bicubic | 2,3,n,11 | 6 17 403 | wide=64 channels | F.interpolate(a, size=(9, 14), mode="$")
grid_sample | 2,3,7,9 2,n,5,2 | 4 33 | wide=64 32 high=.9 low=-.9 | \
    F.grid_sample(a, b, padding_mode="border", align_corners=False)
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
# Losses of two probabilities, functions of one number, and optimizers, which step tensor by tensor for the reference.
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
# sdp_utils.cpp chooses among these; all but the formula itself may be absent, as for a dtype, a width or a mask.
BACKENDS = {"math": "MATH", "flash": "FLASH_ATTENTION", "memory-efficient": "EFFICIENT_ATTENTION"}
BACKENDS |= {"default": "", "cudnn": "CUDNN_ATTENTION"}
ATTENTION = """
attention {1}        | 2,3,n,32 2,3,39,32 2,3,39,32 | 1 17 130 | wide=2 heads {2} | sdpa(a, b, c, "{0}")
attention {1} causal | 1,2,n,64 1,2,n,64 1,2,n,64 | 9 131    | wide=2 heads {2} | sdpa(a, b, c, "{0}", is_causal=True)
attention {1} masked | 2,3,n,32 2,3,9,32 2,3,9,32 2,1,n,9 | 1 21 | wide=2 heads {2} | sdpa(a, b, c, "{0}", attn_mask=d)
"""


class Row(NamedTuple):
    """One family of operators; with a size, and the number that makes its inputs, an example of it."""

    name: str
    inputs: list[tuple[list[str], int]]  # each shape, and what whole numbers are below; 0 for floats
    sizes: tuple[int, ...]
    code: CodeType
    flags: frozenset[str]
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    since: tuple[int, ...]
    wide: float
    low: float
    high: float
    size: int = 0
    number: int = 0

    def call(self, torch: Any, inputs: Sequence[Any], *, plain: bool) -> Any:
        """Return what the operator gives; `plain` is whether it is the reference, which steps tensor by tensor."""
        names: dict[str, Any] = {**dict(zip("abcd", inputs)), "n": self.size, "t": torch, "F": torch.nn.functional}
        rooms = (torch, torch.nn.functional, torch.special)
        names["of"] = lambda name: next(getattr(room, name) for room in rooms if hasattr(room, name))
        names |= {"more": [x.contiguous() for x in inputs[2:]], "sdpa": functools.partial(_sdpa, torch)}
        names["steps"] = functools.partial(_steps, torch, inputs, plain)
        names["near"] = lambda x: x / x.shape[-1] + 2 * x.new_ones(x.shape[-1]).diag()
        names["definite"] = lambda x: x @ x.mT / x.shape[-1] + x.new_ones(x.shape[-1]).diag()
        return eval(self.code, names)  # noqa: S307 (the table above)


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return every row of the table."""
    lines = TABLE.splitlines()
    for name, member in BACKENDS.items():
        options = "since=2.3 lack" if name not in ("default", "math") else "since=2.3" if member else ""
        lines += ATTENTION.format(member, name, options).splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    return tuple(_row(name, line) for line in lines for name in line.partition("|")[0].strip().split(";"))


def _row(name: str, line: str) -> Row:
    inputs, sizes, options, call = (part.strip() for part in line.replace("$", name).split("|", 4)[1:])
    flags = frozenset([*options.split(), *(["lack"] if name.endswith("fused") else [])])
    given: dict[str, str] = dict(flag.split("=") for flag in flags if "=" in flag)
    shapes = (side.rpartition(":") for side in inputs.split())
    return Row(
        name,
        [(shape.split(","), int(below[1:] or 0)) for below, _, shape in shapes],
        tuple(map(int, sizes.split())),
        compile(f"({call})", name, "eval"),
        flags,
        FLOATS[:2] if "32" in flags else FLOATS,
        next((LAYOUTS[flag] for flag in flags if flag in LAYOUTS), ("dense", "transposed", "gaps")),
        tuple(map(int, given.get("since", "2.0").split("."))),
        *(float(given.get(key, default)) for key, default in (("wide", 1), ("low", -2), ("high", 2))),  # type: ignore[arg-type]
    )


def _sdpa(torch: Any, q: Any, k: Any, v: Any, backend: str = "", **more: Any) -> Any:
    run = functools.partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, **more)
    if not backend:
        return run()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(getattr(SDPBackend, backend)):
        return run()


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
