"""Random numbers and dropout: seeds, distributions, and what of them a gradient sees.

Statistical bounds are six standard deviations: one false alarm in half a billion.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers

Promise = Callable[[Any, Any, random.Random], str]
DRAWN = 20000
# More than 2^16, and odd.
MANY = 70_001
SIGMAS = 6.0
_MT_WORDS = 624
EXACT = 16777216


def _bad_moments(values: list[float], mean: float, deviation: float) -> str:
    """Return what of mean and spread is further off than chance explains."""
    count = len(values)
    if not count or not all(map(math.isfinite, values)):
        return f"{count} values, not all of them finite"
    actual = math.fsum(values) / count
    if abs(actual - mean) > SIGMAS * deviation / math.sqrt(count):
        return f"the mean of {count} is {actual:.4g}, not {mean:.4g}"
    spread = math.sqrt(math.fsum((v - actual) ** 2 for v in values) / count)
    # The variance of a sample's variance is at most (kurtosis - 1) / n of its square; the normal's kurtosis is 3.
    if abs(spread / deviation - 1) > SIGMAS / math.sqrt(count):
        return f"the standard deviation of {count} is {spread:.4g}, not {deviation:.4g}"
    return ""


def _uneven(values: list[float], low: float, high: float) -> str:
    """Return whether 20 equal bins are filled as chance explains, no value lies outside, and few are repeated."""
    bins = 20
    if any(not low <= v < high for v in values):
        return f"a value outside [{low}, {high})"
    counts = [0] * bins
    for value in values:
        counts[min(int((value - low) / (high - low) * bins), bins - 1)] += 1
    share = len(values) / bins
    worst = max(abs(count - share) for count in counts)
    return f"one of {bins} bins is off by {worst:.0f} of {share:.0f}" if worst > SIGMAS * math.sqrt(share) else ""


def uniform_numbers(torch: Any, device: Any, source: random.Random) -> str:
    """Judge torch.rand: mean, spread, even bins, no value twice in a row, and no correlation of neighbours."""
    torch.manual_seed(source.randrange(1 << 31))
    values = seeded_numbers.read(torch.rand(DRAWN, device=device))
    if len(set(values)) < DRAWN * 0.99:
        return f"{DRAWN} uniform numbers are {len(set(values))} different ones"
    pairs = [(a - 0.5) * (b - 0.5) for a, b in zip(values, values[1:])]
    return _bad_moments(values, 0.5, math.sqrt(1 / 12)) or _uneven(values, 0, 1) or _bad_moments(pairs, 0.0, 1 / 12)


def normal_numbers(torch: Any, device: Any, source: random.Random) -> str:
    """Judge torch.randn: mean, spread, and the shape by its distribution function."""
    torch.manual_seed(source.randrange(1 << 31))
    values = seeded_numbers.read(torch.randn(DRAWN, device=device))
    evened = [0.5 * (1 + math.erf(v / math.sqrt(2))) for v in values]
    return _bad_moments(values, 0.0, 1.0) or _uneven([min(v, 1 - 1e-12) for v in evened], 0, 1)


def whole_numbers(torch: Any, device: Any, source: random.Random) -> str:
    """Judge torch.randint, torch.randperm and torch.bernoulli."""
    torch.manual_seed(source.randrange(1 << 31))
    high, share = source.randint(5, 60), source.uniform(0.2, 0.8)
    drawn = seeded_numbers.read(torch.randint(0, high, (DRAWN,), device=device))
    if any(not isinstance(v, int) or not 0 <= v < high for v in drawn) or len(set(drawn)) != high:
        return f"randint(0, {high}) gave other numbers than 0 to {high - 1}"
    wrong = _bad_moments([float(v) for v in drawn], (high - 1) / 2, math.sqrt((high**2 - 1) / 12))
    order = seeded_numbers.read(torch.randperm(1001, device=device))
    if sorted(order) != list(range(1001)) or order == sorted(order):
        return "randperm gave no permutation, or left the order as it was"
    coins = seeded_numbers.read(torch.bernoulli(torch.full((DRAWN,), share, device=device)))
    if set(coins) - {0.0, 1.0}:
        return "bernoulli gave something else than 0 and 1"
    return wrong or _bad_moments(coins, share, math.sqrt(share * (1 - share)))


def seeds(torch: Any, device: Any, source: random.Random) -> str:
    """Judge that a seed repeats its numbers, that another gives others, and that a state can be put back."""
    first, second = source.randrange(1 << 30), source.randrange(1 << 30, 1 << 31)

    def drawn(seed: int) -> list[float]:
        torch.manual_seed(seed)
        return seeded_numbers.read(torch.rand(50, device=device)) + seeded_numbers.read(torch.randn(50, device=device))

    one, other = drawn(first), drawn(second)
    if one != drawn(first):
        return "one seed gave two sequences"
    if one == other:
        return "two seeds gave one sequence"
    library = torch.cuda if device.type == "cuda" else torch
    state = library.get_rng_state()
    ahead = seeded_numbers.read(torch.rand(9, device=device))
    library.set_rng_state(state)
    return (
        ""
        if ahead == seeded_numbers.read(torch.rand(9, device=device))
        else "a state that is put back gives other numbers"
    )


def twister(torch: Any, _: Any, source: random.Random) -> str:
    """Judge the CPU's numbers by the Mersenne Twister of Matsumoto & Nishimura 1998, as Python has it too.

    torch.rand keeps the lowest 24 bits of each word (ATen's uniform_real_distribution).
    """
    seed = source.randrange(1 << 31)
    words = [seed]
    for i in range(1, _MT_WORDS):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + i) & 0xFFFFFFFF)
    reference = random.Random()  # noqa: S311 (the generator that is compared with)
    reference.setstate((3, (*words, _MT_WORDS), None))
    expected = [(reference.getrandbits(32) & (EXACT - 1)) / EXACT for _ in range(700)]
    torch.manual_seed(seed)
    return "" if seeded_numbers.read(torch.rand(700)) == expected else "torch.rand on the CPU is no Mersenne Twister's"


def _dropped(torch: Any, device: Any, source: random.Random, call: Callable[..., Any]) -> str:
    """Judge one form of dropout: rate, scale of what stays, mask of the gradient, and nothing in evaluation."""
    share, count = source.uniform(0.1, 0.7), 8000
    numbers = seeded_numbers.rounded(seeded_numbers.away_from_zero(source, count, 0.5), "float32")
    given = torch.nn.Parameter(seeded_numbers.tensor(torch, numbers, (count,), "float32", device))
    made = call(given, share, training=True)
    made.sum().backward()
    kept, slopes = seeded_numbers.read(made), seeded_numbers.read(given.grad)
    scale = 1 / (1 - share)
    for value, before, slope in zip(kept, numbers, slopes):
        right = (0.0, 0.0) if value == 0 else (before * scale, scale)
        if not all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip((value, slope), right)):
            return f"{before} became {value} with gradient {slope}, at rate {share:.3f}"
    zeros = [float(value == 0) for value in kept]
    if [float(value == 0) for value in seeded_numbers.read(call(given, share, training=True))] == zeros:
        return "dropout twice left out the same elements"
    still = seeded_numbers.read(call(given, share, training=False))
    if still != numbers:
        return "dropout in evaluation changed its input"
    return _bad_moments(zeros, share, math.sqrt(share * (1 - share)))


def dropout(torch: Any, device: Any, source: random.Random) -> str:
    """Judge dropout as a function."""
    return _dropped(torch, device, source, torch.nn.functional.dropout)


def dropout_module(torch: Any, device: Any, source: random.Random) -> str:
    """Judge dropout as a module, switched by train() and eval()."""

    def call(x: Any, share: float, *, training: bool) -> Any:
        return torch.nn.Dropout(share).train(training)(x)

    return _dropped(torch, device, source, call)


def shares(torch: Any, device: Any, source: random.Random) -> str:
    """Judge torch.multinomial by its weights, and the in-place generators by their moments."""
    torch.manual_seed(source.randrange(1 << 31))
    weights = [1.0, 2.0, 5.0]
    drawn = seeded_numbers.read(torch.multinomial(torch.tensor(weights, device=device), DRAWN, replacement=True))
    for number, weight in enumerate(weights):
        share = weight / sum(weights)
        wrong = _bad_moments([float(v == number) for v in drawn], share, math.sqrt(share * (1 - share)))
        if wrong:
            return f"multinomial: {wrong}"
    mean, deviation = source.uniform(-3, 3), source.uniform(2, 4)
    low, high = -source.uniform(1, 3), source.uniform(1, 3)
    normal = seeded_numbers.read(torch.empty(DRAWN, device=device).normal_(mean=mean, std=deviation))
    flat = seeded_numbers.read(torch.empty(DRAWN, device=device).uniform_(low, high))
    wrong = _bad_moments(normal, mean, deviation)
    if wrong:
        return f"normal_: {wrong}"
    wrong = _bad_moments(flat, (low + high) / 2, (high - low) / math.sqrt(12))
    return f"uniform_: {wrong}" if wrong else ""


def many_numbers(torch: Any, device: Any, source: random.Random) -> str:
    """Judge long draws: no part comes again, a long permutation is one, and dropout leaves out its share to the end."""
    torch.manual_seed(source.randrange(1 << 31))
    for name in ("rand", "randn"):
        drawn = seeded_numbers.read(getattr(torch, name)(MANY, device=device))
        # Of 2^24 numbers some hundred of these come twice.
        if len(set(drawn)) < MANY * 0.97:
            return f"{MANY} numbers of {name} are {len(set(drawn))} different ones"
    order = seeded_numbers.read(torch.randperm(MANY, device=device))
    stay = sum(place == number for place, number in enumerate(order))
    if sorted(order) != list(range(MANY)) or stay > MANY // 1000:
        return f"randperm({MANY}) is no permutation, or leaves {stay} numbers in their places"
    ones, share = torch.ones(MANY, device=device), source.uniform(0.2, 0.5)
    filled = {
        "dropout": (torch.nn.functional.dropout(ones, share), share),
        "bernoulli_": (torch.empty(MANY, device=device).bernoulli_(1 - share), share),
    }
    for name, (made, left_out) in filled.items():
        zeros = [float(value == 0) for value in seeded_numbers.read(made)]
        for part in (zeros[:DRAWN], zeros[-DRAWN:]):
            wrong = _bad_moments(part, left_out, math.sqrt(left_out * (1 - left_out)))
            if wrong:
                return f"{name} of {MANY}: {wrong}"
    return ""


def generators(torch: Any, device: Any, source: random.Random) -> str:
    """Judge that a generator of one's own decides what is drawn and spares the default one, and that fork_rng does."""
    seed = source.randrange(1 << 31)
    draws: dict[str, Callable[[Any], Any]] = {
        "rand": lambda g: torch.rand(20, generator=g, device=device),
        "randn": lambda g: torch.randn(20, generator=g, device=device),
        "randint": lambda g: torch.randint(0, 1 << 30, (20,), generator=g, device=device),
        "randperm": lambda g: torch.randperm(20, generator=g, device=device),
        "normal_": lambda g: torch.empty(20, device=device).normal_(generator=g),
        "uniform_": lambda g: torch.empty(20, device=device).uniform_(generator=g),
        "multinomial": lambda g: torch.multinomial(torch.ones(99, device=device), 20, generator=g),
    }
    wrong = []
    for name, draw in draws.items():
        torch.manual_seed(seed + 1)
        expected = seeded_numbers.read(torch.rand(9, device=device))
        one, again = (seeded_numbers.read(draw(torch.Generator(device).manual_seed(seed))) for _ in range(2))
        torch.manual_seed(seed + 1)
        draw(torch.Generator(device).manual_seed(seed))
        untouched = seeded_numbers.read(torch.rand(9, device=device)) == expected
        if one != again or not untouched:
            wrong.append(f"{name} with a generator of one's own")
    torch.manual_seed(seed)
    expected = seeded_numbers.read(torch.rand(9, device=device))
    torch.manual_seed(seed)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.rand(5, device=device)
        torch.manual_seed(1)
    if seeded_numbers.read(torch.rand(9, device=device)) != expected:
        wrong.append("fork_rng")
    return ", ".join(wrong)


def channel_dropout(torch: Any, device: Any, source: random.Random) -> str:
    """Judge dropout of whole channels, and of SELU's (Klambauer et al. 2017), which keeps mean and spread."""
    torch.manual_seed(source.randrange(1 << 31))
    f, share, count, size = torch.nn.functional, source.uniform(0.2, 0.5), 2000, 6
    scale = 1 / (1 - share)
    for name, shape in (("dropout1d", (size,)), ("dropout2d", (2, 3)), ("dropout3d", (1, 2, 3))):
        if not hasattr(f, name):
            continue
        made = seeded_numbers.read(getattr(f, name)(torch.ones(2, count // 2, *shape, device=device), share))
        channels = [made[i : i + size] for i in range(0, len(made), size)]
        mixed = [c for c in channels if len(set(c)) > 1 or not (c[0] == 0 or math.isclose(c[0], scale, rel_tol=1e-5))]
        wrong = _bad_moments([float(c[0] == 0) for c in channels], share, math.sqrt(share * (1 - share)))
        if mixed or wrong:
            return f"{name}: {wrong or f'{len(mixed)} channels are neither left out nor scaled whole'}"
    normal = torch.randn(DRAWN, device=device)
    wrong = _bad_moments(seeded_numbers.read(f.alpha_dropout(normal, share, training=True)), 0.0, 1.0)
    return f"alpha_dropout: {wrong}" if wrong else ""


def initial_weights(torch: Any, device: Any, source: random.Random) -> str:
    """Judge the first weights of layers: torch.nn.init's documentation (He et al. 2015; Glorot & Bengio 2010)."""
    torch.manual_seed(source.randrange(1 << 31))
    init, rows, width = torch.nn.init, 120, 150

    def made(fill: Callable[..., Any]) -> list[float]:
        weight = torch.empty(rows, width, device=device)
        fill(weight)
        return seeded_numbers.read(weight)

    flat, normal = math.sqrt(1 / 3), 1.0
    table: dict[str, tuple[list[float], float]] = {
        "Linear": (seeded_numbers.read(torch.nn.Linear(width, rows, device=device).weight), flat / math.sqrt(width)),
        "kaiming_uniform_": (made(init.kaiming_uniform_), math.sqrt(2 / width)),
        "kaiming_normal_": (made(init.kaiming_normal_), math.sqrt(2 / width)),
        "xavier_uniform_": (made(init.xavier_uniform_), math.sqrt(2 / (rows + width))),
        "xavier_normal_": (made(init.xavier_normal_), math.sqrt(2 / (rows + width))),
        "normal_": (made(lambda w: init.normal_(w, std=0.3)), 0.3 * normal),
        "Embedding": (seeded_numbers.read(torch.nn.Embedding(rows, width, device=device).weight), normal),
    }
    moments = ((name, _bad_moments(values, 0.0, deviation)) for name, (values, deviation) in table.items())
    return "; ".join(f"{name}: {wrong}" for name, wrong in moments if wrong)


PROMISES: dict[str, Promise] = {
    "rand": uniform_numbers,
    "randn": normal_numbers,
    "randint, randperm, bernoulli": whole_numbers,
    "manual_seed": seeds,
    "rand on the CPU": twister,
    "dropout": dropout,
    "Dropout module": dropout_module,
    "multinomial, normal_, uniform_": shares,
    "first weights": initial_weights,
    "many random numbers": many_numbers,
    "generators": generators,
    "dropout of channels": channel_dropout,
}
