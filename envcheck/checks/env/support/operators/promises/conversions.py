"""Conversions between dtypes and to Python, and the comparisons that other programs' tests believe."""

from __future__ import annotations

import math
import random
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.promises.random_numbers import Promise


def conversions(torch: Any, device: Any, source: random.Random) -> str:
    """Judge conversions between dtypes: floats round to nearest even, integers are cut towards zero."""
    values = [*seeded_numbers.rounded(seeded_numbers.uniform(source, 301, -100, 100), "float32"), 0.0, -0.0, 1.0, -1.0]
    floats = seeded_numbers.tensor(torch, values, (len(values),), "float32", device)
    expected: dict[str, list[Any]] = {
        **{name: seeded_numbers.rounded(values, name) for name in ("float64", "float16", "bfloat16")},
        **{name: [math.trunc(v) for v in values] for name in ("int64", "int32", "int16", "int8")},
        "bool": [v != 0 for v in values],
    }
    for name, right in expected.items():
        if seeded_numbers.read(floats.to(getattr(torch, name))) != right:
            return f"float32 to {name} is wrong"
        if name in ("int64", "int32", "int16", "int8", "float16", "bfloat16", "float64"):
            back = seeded_numbers.read(floats.to(getattr(torch, name)).float())
            if back != seeded_numbers.rounded([float(v) for v in right], "float32"):
                return f"{name} to float32 is wrong"
    for name in ("double", "half", "bfloat16", "long", "int"):
        wide = {"double": "float64", "half": "float16", "long": "int64", "int": "int32"}.get(name, name)
        if seeded_numbers.read(getattr(floats, name)()) != expected[wide]:
            return f"Tensor.{name}() is wrong"
    return (
        "" if floats.tolist() == values and [floats[i].item() for i in (0, 7)] == [values[0], values[7]] else "tolist()"
    )


def comparisons(torch: Any, device: Any, source: random.Random) -> str:
    """Judge the functions that other programs' tests believe: equal, allclose, isclose, norm, isnan."""
    values = seeded_numbers.rounded(seeded_numbers.uniform(source, 40, 1, 2), "float32")
    other = [*values[:-1], values[-1] + 0.5]
    other = seeded_numbers.rounded(other, "float32")
    a, b, same = (seeded_numbers.tensor(torch, v, (40,), "float32", device) for v in (values, other, values))
    nan = a * math.nan
    measured = {
        "equal": (torch.equal(a, same), torch.equal(a, b)),
        "allclose": (torch.allclose(a, same), torch.allclose(a, b)),
        "isclose": (all(seeded_numbers.read(torch.isclose(a, same))), all(seeded_numbers.read(torch.isclose(a, b)))),
        "isinf": (
            all(seeded_numbers.read(torch.isinf(a * math.inf))),
            any(seeded_numbers.read(torch.isinf(a))) or any(seeded_numbers.read(torch.isinf(nan))),
        ),
        "testing.assert_close": (_close(torch, a, same), _close(torch, a, b)),
        "Tensor.equal": (a.equal(same), a.equal(b)),
        "Tensor.allclose": (a.allclose(same), a.allclose(b)),
        "isnan": (all(seeded_numbers.read(torch.isnan(nan))), any(seeded_numbers.read(torch.isnan(a)))),
    }
    return "; ".join(f"torch.{name} answered {answer}" for name, answer in measured.items() if answer != (True, False))


def _close(torch: Any, one: Any, other: Any) -> bool:
    try:
        torch.testing.assert_close(one, other)
    except AssertionError:
        return False
    return True


def python_values(torch: Any, device: Any, source: random.Random) -> str:
    """Judge tolist, item, int, float and bool of tensors, whole numbers among them, against their memory."""
    integers = [source.randint(-1000, 1000) for _ in range(12)]
    wrong = []
    for dtype in ("int64", "int32", "float32", "float64", "bool"):
        kind: Any = {"bool": bool}.get(dtype, float if dtype.startswith("float") else int)
        values = [kind(v) for v in integers]
        x = seeded_numbers.tensor(torch, values, (3, 4), dtype, device, source.choice(seeded_numbers.LAYOUTS))
        if x.tolist() != [values[i : i + 4] for i in (0, 4, 8)]:
            wrong.append(f"tolist() of {dtype}")
        if [x[1, 2].item(), x[0, 0].item()] != [values[6], values[0]]:
            wrong.append(f"item() of {dtype}")
        if (int(x[2, 1]), float(x[2, 1]), bool(x[2, 1])) != (int(values[9]), float(values[9]), bool(values[9])):
            wrong.append(f"int, float or bool of {dtype}")
    return ", ".join(wrong)


PROMISES: dict[str, Promise] = {
    "conversion of dtypes": conversions,
    "equal, allclose": comparisons,
    "tolist, item": python_values,
}
