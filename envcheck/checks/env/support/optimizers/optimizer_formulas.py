"""One step of each optimizer, for one number, by the documented formula. Plain floats; no torch.

Each function takes the parameter, its gradient, its state (a dict it may change), the step's number from 1 on and the
options, and returns the new parameter. Sources: the algorithm boxes of pytorch.org/docs/stable/generated/torch.optim.*
and the papers: Adam arXiv 1412.6980, AdamW 1711.05101, AMSGrad 1904.09237, Adadelta 1212.5701, RAdam 1908.03265, NAdam
(Dozat 2016), Adagrad (Duchi et al. 2011), RMSprop (Hinton 2012; centred 1308.0850), Rprop (Riedmiller 1993),
ASGD (Polyak and Juditsky 1992; its moving point alone, not the average), SparseAdam (Adam for the elements that have a
gradient; the others and their moments stay). Adafactor (1804.04235) and Muon (Jordan 2024) step a whole tensor at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envcheck.checks.training import plain_math

State = dict[str, float]
Options = Mapping[str, Any]
Step = Callable[[float, float, State, int, Options], float]

_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
# The documented defaults: an optimizer made without options has to behave as made with these.
DEFAULTS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False},
    "Adam": {**_ADAM, "amsgrad": False},
    "AdamW": {**_ADAM, "weight_decay": 1e-2, "amsgrad": False},
    "Adagrad": {"lr": 1e-2, "lr_decay": 0.0, "weight_decay": 0.0, "initial_accumulator_value": 0.0, "eps": 1e-10},
    "RMSprop": {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": False},
    "Adadelta": {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.0},
    "Adamax": {**_ADAM, "lr": 2e-3},
    "NAdam": {**_ADAM, "lr": 2e-3, "momentum_decay": 4e-3},
    "RAdam": dict(_ADAM),
    "ASGD": {"lr": 1e-2, "lambd": 1e-4, "alpha": 0.75, "t0": 1e6, "weight_decay": 0.0},
    "Rprop": {"lr": 1e-2, "etas": (0.5, 1.2), "step_sizes": (1e-6, 50.0)},
    "SparseAdam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8},
    "Adafactor": {"lr": 1e-2, "beta2_decay": -0.8, "eps": (None, 1e-3), "d": 1.0, "weight_decay": 0.0},
}
# What Adafactor takes for no first epsilon: that of the parameter's dtype (IEEE 754-2019: 2 to the minus digits).
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23}
_RECTIFIED_FROM = 5.0


def trajectory(name: str, start: list[float], gradients: list[list[float]], options: Options) -> list[float]:
    """Return where `start` ends after one step for each list of gradients."""
    chosen = {**DEFAULTS[name], **options}
    states: list[State] = [{} for _ in start]
    now = list(start)
    for t, gradient in enumerate(gradients, 1):
        sign = -1.0 if chosen.get("maximize") else 1.0
        now = [STEPS[name](x, sign * g, state, t, chosen) for x, g, state in zip(now, gradient, states)]
    return now


def adafactor(
    shapes: Sequence[tuple[int, ...]],
    start: list[float],
    gradients: list[list[float]],
    options: Options,
    dtype: str = "float64",
) -> list[float]:
    """Return where `start` ends by Adafactor: flat, for tensors of these shapes one after the other."""
    ends: list[float] = []
    for shape in shapes:
        share = slice(len(ends), len(ends) + math.prod(shape))
        now, state = start[share], dict[str, list[float]]()
        for t, gradient in enumerate(gradients, 1):
            chosen = {**DEFAULTS["Adafactor"], **options}
            sign = -1.0 if chosen.get("maximize") else 1.0
            first, second = chosen["eps"]
            chosen["eps"] = (EPSILON[dtype] if first is None else first, second)
            now = _adafactor(shape, now, [sign * g for g in gradient[share]], (state, t, chosen))
        ends += now
    return ends


def _adafactor(
    shape: tuple[int, ...], now: list[float], gradient: list[float], memory: tuple[dict[str, list[float]], int, Options]
) -> list[float]:
    state, t, o = memory
    least, small = o["eps"]
    alpha = max(small, _rms(now)) * min(o["lr"], 1 / math.sqrt(t))
    squares = [g * g for g in gradient]
    if len(shape) == 1:
        second = _decayed(state, "all", squares, t ** o["beta2_decay"])
    else:
        second = _factored(state, shape[-2:], squares, (t ** o["beta2_decay"], least))
    update = [g / max(math.sqrt(v), least) for g, v in zip(gradient, second)]
    shrink = max(1.0, _rms(update) / o["d"])
    return [x * (1 - o["lr"] * o["weight_decay"]) - alpha * u / shrink for x, u in zip(now, update)]


def _factored(
    state: dict[str, list[float]], matrix: tuple[int, ...], squares: list[float], terms: tuple[float, float]
) -> list[float]:
    """Return the second moments that means by row and by column make, matrix after matrix."""
    (rows, columns), (fresh, least), factored = matrix, terms, list[float]()
    for start in range(0, len(squares), rows * columns):
        part = squares[start : start + rows * columns]
        by_row = [sum(part[row * columns : (row + 1) * columns]) / columns for row in range(rows)]
        by_column = [sum(part[column::columns]) / rows for column in range(columns)]
        r, c = (_decayed(state, f"{n} {start}", v, fresh) for n, v in (("row", by_row), ("column", by_column)))
        factored += [one * other / max(sum(r) / rows, least) for one in r for other in c]
    return factored


def _decayed(state: dict[str, list[float]], name: str, fresh: list[float], share: float) -> list[float]:
    state[name] = [old + share * (new - old) for old, new in zip(state.get(name, [0.0] * len(fresh)), fresh)]
    return state[name]


def _rms(numbers: list[float]) -> float:
    return math.sqrt(math.fsum(x * x for x in numbers) / len(numbers))


def muon(
    start: list[float], gradients: list[list[float]], shape: tuple[int, int], *, lr: float, weight_decay: float
) -> list[float]:
    """Return where Muon ends by its documentation: momentum 0.95 by Nesterov, five Newton-Schulz steps."""
    rows, width = shape
    now, moved = plain_math.rows(start[: rows * width], width), [[0.0] * width for _ in range(rows)]
    for gradient in gradients:
        given = plain_math.rows(gradient[: rows * width], width)
        moved = [[m + 0.05 * (g - m) for m, g in zip(*pair)] for pair in zip(moved, given)]
        ahead = [[g + 0.95 * (m - g) for m, g in zip(*pair)] for pair in zip(moved, given)]
        step = _orthogonal(ahead)
        share = lr * math.sqrt(max(1.0, rows / width))
        now = [[x * (1 - lr * weight_decay) - share * s for x, s in zip(*pair)] for pair in zip(now, step)]
    return plain_math.flat(now)


def _orthogonal(matrix: plain_math.Matrix) -> plain_math.Matrix:
    """Return the nearest orthogonal matrix of one with fewer rows than columns, as nearly as Muon's five steps do."""
    a, b, c = 3.4445, -4.775, 2.0315
    size = math.sqrt(sum(plain_math.dot(row, row) for row in matrix))
    x = [[value / size for value in row] for row in matrix]
    for _ in range(5):
        gram = [[plain_math.dot(one, other) for other in x] for one in x]
        square = [[plain_math.dot(one, other) for other in gram] for one in gram]
        mixed = [[b * g + c * s for g, s in zip(*pair)] for pair in zip(gram, square)]
        columns = plain_math.transposed(x)
        x = [[a * x[i][j] + plain_math.dot(mixed[i], columns[j]) for j in range(len(columns))] for i in range(len(x))]
    return x


def _sgd(x: float, g: float, s: State, t: int, o: Options) -> float:
    g += float(o["weight_decay"]) * x
    if o["momentum"]:
        s["b"] = g if t == 1 else o["momentum"] * s["b"] + (1 - o["dampening"]) * g
        g = g + float(o["momentum"]) * s["b"] if o["nesterov"] else s["b"]
    return float(x - o["lr"] * g)


def _moments(g: float, s: State, o: Options) -> tuple[float, float]:
    first, second = o["betas"]
    s["m"] = first * s.get("m", 0.0) + (1 - first) * g
    s["v"] = second * s.get("v", 0.0) + (1 - second) * g * g
    return s["m"], s["v"]


def _adam(x: float, g: float, s: State, t: int, o: Options) -> float:
    m, v = _moments(g + o["weight_decay"] * x, s, o)
    if o["amsgrad"]:
        v = s["top"] = max(s.get("top", 0.0), v)
    first, second = o["betas"]
    return float(x - o["lr"] * (m / (1 - first**t)) / (math.sqrt(v / (1 - second**t)) + o["eps"]))


def _adamw(x: float, g: float, s: State, t: int, o: Options) -> float:
    return _adam(x - o["lr"] * o["weight_decay"] * x, g, s, t, {**o, "weight_decay": 0.0})


def _adagrad(x: float, g: float, s: State, t: int, o: Options) -> float:
    g += o["weight_decay"] * x
    s["sum"] = s.get("sum", float(o["initial_accumulator_value"])) + g * g
    return float(x - o["lr"] / (1 + (t - 1) * o["lr_decay"]) * g / (math.sqrt(s["sum"]) + o["eps"]))


def _rmsprop(x: float, g: float, s: State, _t: int, o: Options) -> float:
    g += o["weight_decay"] * x
    v = s["v"] = o["alpha"] * s.get("v", 0.0) + (1 - o["alpha"]) * g * g
    if o["centered"]:
        s["mean"] = o["alpha"] * s.get("mean", 0.0) + (1 - o["alpha"]) * g
        v -= s["mean"] ** 2
    s["b"] = o["momentum"] * s.get("b", 0.0) + g / (math.sqrt(v) + o["eps"])
    return float(x - o["lr"] * s["b"])


def _adadelta(x: float, g: float, s: State, _t: int, o: Options) -> float:
    g += o["weight_decay"] * x
    rho, eps = o["rho"], o["eps"]
    s["v"] = rho * s.get("v", 0.0) + (1 - rho) * g * g
    change = math.sqrt(s.get("u", 0.0) + eps) / math.sqrt(s["v"] + eps) * g
    s["u"] = rho * s.get("u", 0.0) + (1 - rho) * change * change
    return float(x - o["lr"] * change)


def _adamax(x: float, g: float, s: State, t: int, o: Options) -> float:
    g += o["weight_decay"] * x
    first, second = o["betas"]
    s["m"] = first * s.get("m", 0.0) + (1 - first) * g
    s["u"] = max(second * s.get("u", 0.0), abs(g) + o["eps"])
    return float(x - o["lr"] / (1 - first**t) * s["m"] / s["u"])


def _nadam(x: float, g: float, s: State, t: int, o: Options) -> float:
    g += o["weight_decay"] * x
    m, v = _moments(g, s, o)
    now, later = (o["betas"][0] * (1 - 0.5 * 0.96 ** (k * o["momentum_decay"])) for k in (t, t + 1))
    s["product"] = s.get("product", 1.0) * now
    mean = later * m / (1 - s["product"] * later) + (1 - now) * g / (1 - s["product"])
    return float(x - o["lr"] * mean / (math.sqrt(v / (1 - o["betas"][1] ** t)) + o["eps"]))


def _radam(x: float, g: float, s: State, t: int, o: Options) -> float:
    m, v = _moments(g + o["weight_decay"] * x, s, o)
    first, second = o["betas"]
    mean, end = m / (1 - first**t), 2 / (1 - second) - 1
    length = end - 2 * t * second**t / (1 - second**t)
    if length <= _RECTIFIED_FROM:
        return float(x - o["lr"] * mean)
    scale = math.sqrt(1 - second**t) / (math.sqrt(v) + o["eps"])
    rectified = math.sqrt((length - 4) * (length - 2) * end / ((end - 4) * (end - 2) * length))
    return float(x - o["lr"] * mean * rectified * scale)


def _rprop(x: float, g: float, s: State, _t: int, o: Options) -> float:
    (less, more), (least, most) = o["etas"], o["step_sizes"]
    step, before = s.get("step", float(o["lr"])), s.get("before", 0.0)
    if g * before > 0:
        step = min(step * more, most)
    elif g * before < 0:
        step, g = max(step * less, least), 0.0
    s["step"], s["before"] = step, g
    return float(x - math.copysign(step, g) if g else x)


def _asgd(x: float, g: float, s: State, t: int, o: Options) -> float:
    g += o["weight_decay"] * x
    rate = s.get("rate", float(o["lr"]))
    s["rate"] = o["lr"] / (1 + o["lambd"] * o["lr"] * t) ** o["alpha"]
    return float(x * (1 - o["lambd"] * rate) - rate * g)


def _sparse_adam(x: float, g: float, s: State, t: int, o: Options) -> float:
    if g == 0:
        return x
    m, v = _moments(g, s, o)
    first, second = o["betas"]
    return float(x - o["lr"] * math.sqrt(1 - second**t) / (1 - first**t) * m / (math.sqrt(v) + o["eps"]))


STEPS: dict[str, Step] = {
    "SparseAdam": _sparse_adam,
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adamw,
    "Adagrad": _adagrad,
    "RMSprop": _rmsprop,
    "Adadelta": _adadelta,
    "Adamax": _adamax,
    "NAdam": _nadam,
    "RAdam": _radam,
    "ASGD": _asgd,
    "Rprop": _rprop,
}
