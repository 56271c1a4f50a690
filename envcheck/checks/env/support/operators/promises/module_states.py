"""Modules, their states and files: what is kept, what is refused, and what recomputes or transforms a function."""

from __future__ import annotations

import copy
import ctypes
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.operator_trial import version
from envcheck.checks.env.support.operators.promises.random_numbers import Promise

# More than a file's or a mapping's page.
MANY = 300_007
# torch.func came with 2.0; mmap, assign and the form of checkpoint_sequential with 2.1.
FUNC_SINCE, MAPPED_SINCE = (2, 0), (2, 1)
_DTYPES = ("int8", "int16", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2")


def _file() -> Path:
    return Path(tempfile.mkdtemp(dir=".")) / "saved.pt"  # ranks share their directory


def _bytes(made: Any) -> bytes:
    """Return a tensor's bytes, of any dtype."""
    host = made.detach().cpu().contiguous()
    return ctypes.string_at(host.data_ptr(), host.numel() * host.element_size())


def more_files(torch: Any, device: Any, source: random.Random) -> str:
    """Judge files of other dtypes, of plain values, of many elements, of shared memory, mapped, and in the old form."""
    path, wrong = _file(), list[str]()
    tensors = [name for name in _DTYPES if hasattr(torch, name)]
    words = torch.tensor([source.randrange(256) for _ in range(64)], dtype=torch.uint8).to(device)
    state: dict[str, Any] = {name: words.clone().view(getattr(torch, name)) for name in tensors}
    many = seeded_numbers.tensor(torch, [source.randrange(1 << 31) for _ in range(MANY)], (MANY,), "int32")
    plain = {"step": source.randrange(1 << 40), "rate": source.random(), "name": "a", "none": None, "list": [1, (2.5,)]}
    base = torch.arange(10)
    state |= {"many": many, "plain": plain, "head": base[:4], "tail": base[2:]}
    forms: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {"": ({}, {})}
    forms["in the old form"] = ({"_use_new_zipfile_serialization": False}, {})
    if version(torch) >= MAPPED_SINCE:
        forms["mapped"] = ({}, {"mmap": True})
    for how, (saving, loading) in forms.items():
        # The old form has no name for the 8-bit floats.
        held = [name for name in (*tensors, "many") if not (saving and name.startswith("float8"))]
        torch.save({name: state[name] for name in (*held, "plain", "head", "tail")}, path, **saving)
        # The safe loader of 1.13 does not read Python floats; the file is this function's own.
        came = torch.load(path, map_location="cpu", weights_only=version(torch) >= FUNC_SINCE, **loading)
        for name in held:
            if came[name].dtype != state[name].dtype or _bytes(came[name]) != _bytes(state[name]):
                wrong.append(f"{name} {how}")
        if came["plain"] != plain:
            wrong.append(f"plain values {how}")
        if not loading:
            came["head"][3] = 77
            if came["tail"].tolist() != [2, 77, 4, 5, 6, 7, 8, 9]:
                wrong.append(f"memory that two tensors share {how}")
    return f"{', '.join(wrong)}: loaded otherwise than saved" if wrong else ""


def _module(torch: Any, device: Any, source: random.Random) -> Any:
    """Return two layers, a buffer that a state keeps, and one that it does not."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(device)
    module.register_buffer("kept", torch.full((2,), source.random(), device=device))
    module.register_buffer("left", torch.full((2,), source.random(), device=device), persistent=False)
    return module


def _alike(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(_bytes(a) == _bytes(b) for a, b in zip(one, other))


def states(torch: Any, device: Any, source: random.Random) -> str:
    """Judge that a state holds parameters and kept buffers alone, and that loading refuses what does not fit."""
    one, other = (_module(torch, device, source) for _ in range(2))
    wrong, state = list[str](), one.state_dict()
    names = {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    if set(state) != {*names, "kept"}:
        wrong.append(f"a state holds {', '.join(sorted(state))}")
    other.load_state_dict(state)
    if not _alike([*state.values()], [*other.state_dict().values()]):
        wrong.append("a state that is loaded is another one")
    lacking = {name: value for name, value in state.items() if name != "0.bias"}
    more = {**lacking, "more": state["kept"]}
    odd = {"lacks one": lacking, "has one more": {**state, **more}, "is longer": {**state, "0.bias": state["0.weight"]}}
    for kind, given in odd.items():
        try:
            other.load_state_dict(given)
        except RuntimeError:
            continue
        wrong.append(f"a state that {kind} is loaded")
    result = other.load_state_dict(more, strict=False)
    if ([*result.missing_keys], [*result.unexpected_keys]) != (["0.bias"], ["more"]):
        wrong.append("strict=False does not name what is missing")
    return "; ".join([*wrong, *_assigned(torch, other, state)])


def _assigned(torch: Any, module: Any, state: dict[str, Any]) -> list[str]:
    if version(torch) < MAPPED_SINCE:
        return []
    bias = torch.nn.Parameter(state["0.bias"].clone())
    module.load_state_dict({**state, "0.bias": bias}, assign=True)
    return [] if module[0].bias.data_ptr() == bias.data_ptr() else ["assign=True copies"]


def copies(torch: Any, device: Any, source: random.Random) -> str:
    """Judge what is made of a module: a deep copy, one in evaluation, one of another dtype."""
    one, wrong = _module(torch, device, source), list[str]()
    copied = copy.deepcopy(one)
    old, new = ([*module.parameters(), *module.buffers()] for module in (one, copied))
    if not _alike(old, new) or any(a.data_ptr() == b.data_ptr() for a, b in zip(old, new)):
        wrong.append("deepcopy is not a copy")
    one.eval()
    if one.training or one[1].training or not copied[1].training:
        wrong.append("eval() does not reach the parts, or reaches others")
    lower = copied.to(torch.bfloat16)
    if lower[0].weight.dtype != torch.bfloat16 or lower[1].num_batches_tracked.dtype != torch.int64:
        wrong.append("to(bfloat16) casts other tensors than the floating ones")
    if not _alike([one[0].weight.to(torch.bfloat16)], [lower[0].weight]):
        wrong.append("to(bfloat16) changes numbers")
    return "; ".join(wrong)


def recomputed(torch: Any, device: Any, source: random.Random) -> str:
    """Judge checkpointed parts: gradients in both forms, in sequence, and dropout that falls out alike again."""
    from torch.utils import checkpoint

    values = [source.randint(-8, 8) / 4 for _ in range(400)]
    wrong = []

    def leaf() -> Any:
        return torch.nn.Parameter(seeded_numbers.tensor(torch, values, (400,), "float32", device))

    for reentrant in (True, False):
        x = leaf()
        checkpoint.checkpoint(lambda v: v * v * v, x, use_reentrant=reentrant).sum().backward()
        if seeded_numbers.read(x.grad) != [3 * v * v for v in values]:
            wrong.append(f"the gradient with use_reentrant={reentrant}")
        y = leaf()
        made = checkpoint.checkpoint(lambda v: torch.nn.functional.dropout(v * 1.0, 0.5), y, use_reentrant=reentrant)
        torch.rand(7, device=device)
        made.sum().backward()
        kept = [m != 0 for m, v in zip(seeded_numbers.read(made), values) if v]
        passed = [g != 0 for g, v in zip(seeded_numbers.read(y.grad), values) if v]
        if kept != passed or all(kept) or not any(kept):
            wrong.append(f"dropout with use_reentrant={reentrant}")
    z = leaf()
    steps = [lambda v: v * v, lambda v: v + v, lambda v: v * 3]
    form = {"use_reentrant": False} if version(torch) >= MAPPED_SINCE else {}
    checkpoint.checkpoint_sequential(steps, 2, z, **form).sum().backward()
    if seeded_numbers.read(z.grad) != [12 * v for v in values]:
        wrong.append("checkpoint_sequential")
    return ", ".join(wrong)


def functions(torch: Any, device: Any, source: random.Random) -> str:
    """Judge a function with a gradient of one's own, Jacobians, and torch.func's grad, vmap and functional_call."""
    values = [source.randint(-8, 8) / 4 for _ in range(6)]
    wrong = []

    class Cube(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            context.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(context: Any, upstream: Any) -> Any:
            (x,) = context.saved_tensors
            return upstream * x * x * 5  # not the true one: it has to be this one that is used

    def tensor() -> Any:
        return seeded_numbers.tensor(torch, values, (6,), "float32", device)

    def check(name: str, made: Any, right: list[float]) -> None:
        if seeded_numbers.read(made) != right:
            wrong.append(name)

    x = torch.nn.Parameter(tensor())
    made = Cube.apply(x)
    check("a function of one's own", made, [v * v * v for v in values])
    made.sum().backward(retain_graph=True)
    made.sum().backward()
    check("its gradient, twice", x.grad, [10 * v * v for v in values])
    diagonal = [v if i == j else 0.0 for i, v in enumerate(2 * v for v in values) for j in range(6)]
    check("autograd.functional.jacobian", torch.autograd.functional.jacobian(lambda v: v * v, tensor()), diagonal)
    if version(torch) >= FUNC_SINCE:
        func, rows = torch.func, tensor().reshape(2, 3)
        check("func.grad", func.grad(lambda v: (v * v * v).sum())(tensor()), [3 * v * v for v in values])
        check("func.jacrev", func.jacrev(lambda v: v * v)(tensor()), diagonal)
        sums = [sum(values[:3]), sum(values[3:])]
        right = [v * sums[i // 3] for i, v in enumerate(values)]
        check("func.vmap", func.vmap(lambda row: row * row.sum())(rows), right)
        layer = torch.nn.Linear(3, 1, bias=False).to(device)
        called = func.functional_call(layer, {"weight": torch.ones(1, 3, device=device)}, (rows,))
        check("func.functional_call", called, sums)
    return ", ".join(wrong)


def hooks(torch: Any, device: Any, source: random.Random) -> str:
    """Judge the hooks of modules: what they see, change and when, and that a removed one is gone."""
    values, seen = [source.randint(1, 8) / 4 for _ in range(4)], list[str]()
    layer = torch.nn.Identity()
    x = torch.nn.Parameter(seeded_numbers.tensor(torch, values, (4,), "float32", device))

    def times(name: str, factor: int) -> Callable[..., Any]:
        """Return a hook that leaves word and multiplies: what comes last are a module's inputs or its output."""

        def hook(_module: Any, *given: Any) -> Any:
            seen.append(name)
            value = given[0] if name == "back" else given[-1]
            return tuple(one * factor for one in value) if isinstance(value, tuple) else value * factor

        return hook

    layer.register_forward_pre_hook(times("before", 2))
    layer.register_forward_hook(times("after", 3))
    layer.register_full_backward_hook(times("back", 5))
    layer.register_forward_hook(times("removed", 7)).remove()
    made = layer(x)
    made.sum().backward()
    wrong = [] if seen == ["before", "after", "back"] else [f"they ran as {', '.join(seen)}"]
    if seeded_numbers.read(made) != [6 * v for v in values]:
        wrong.append("what they return is not used")
    if seeded_numbers.read(x.grad) != [30.0] * 4:
        wrong.append("the gradient they return is not used")
    return "; ".join(wrong)


PROMISES: dict[str, Promise] = {
    "files of more kinds": more_files,
    "states of modules": states,
    "copies of modules": copies,
    "recomputed parts": recomputed,
    "functions of functions": functions,
    "hooks of modules": hooks,
}
