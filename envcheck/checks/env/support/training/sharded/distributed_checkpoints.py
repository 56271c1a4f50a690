"""What torch.distributed.checkpoint saves and brings back, compared with numbers of plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envcheck.checks import Measured
from envcheck.checks.env.support.training import plain_math

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "uint8")
MORE = ("a large tensor", "a turned tensor", "plain values", "moments of an optimizer", "options of an optimizer")
# Beside tensors of each type the others were not tried in earlier releases.
MORE_SINCE = (2, 4)
_LARGE = (1 << 20) + 3
_PLAIN = {"step": 7, "rate": 0.25, "name": "saved", "list": [1, 2], "truth": True}
_GRADIENT = [1.0, -2.0, 3.0]
_BETAS = (0.75, 0.5)
_ROUNDING = 1e-6


def due(version: str) -> int:
    """Return how much has to be tried with this torch."""
    return len(DTYPES) + (len(MORE) if _release(version) >= MORE_SINCE else 0)


def tried(torch: Any, checkpoint: Any, device: Any, directory: Path) -> Measured:
    """Save everything, load it over something else; return what came back wrong."""
    plain = {name: list(range(first, first + 24)) for first, name in enumerate(DTYPES)}
    sent = {name: torch.tensor(numbers, dtype=getattr(torch, name), device=device) for name, numbers in plain.items()}
    received = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    saved, loaded = {"nested": sent}, {"nested": received}
    also = _release(torch.__version__) >= MORE_SINCE
    if also:
        saved, loaded = {**saved, **_saved(torch, device)}, {**loaded, **_other(torch, device)}
    checkpoint.save(saved, checkpoint_id=str(directory))
    checkpoint.load(loaded, checkpoint_id=str(directory))
    wrong = [name for name, numbers in plain.items() if received[name].tolist() != numbers]
    return {"wrong": [*wrong, *(_wrong(loaded) if also else [])], "tried": due(torch.__version__)}


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _saved(torch: Any, device: Any) -> dict[str, Any]:
    large = torch.tensor(range(_LARGE), dtype=torch.int32, device=device)
    turned = torch.tensor([[1, 2, 3], [4, 5, 6]], device=device).t()
    return {"large": large, "turned": turned, "plain": dict(_PLAIN), "optimizer": _state(torch, device, 0.25, 1.0)}


def _other(torch: Any, device: Any) -> dict[str, Any]:
    large = torch.zeros(_LARGE, dtype=torch.int32, device=device)
    turned, plain = torch.zeros(3, 2, dtype=torch.int64, device=device), dict.fromkeys(_PLAIN, 0)
    return {"large": large, "turned": turned, "plain": plain, "optimizer": _state(torch, device, 0.5, 9.0)}


def _state(torch: Any, device: Any, rate: float, factor: float) -> Any:
    """Return the state of an optimizer after one step."""
    parameter = torch.nn.Parameter(torch.zeros(len(_GRADIENT), device=device))
    optimizer = torch.optim.Adam([parameter], lr=rate, betas=_BETAS)
    parameter.grad = torch.tensor([factor * g for g in _GRADIENT], device=device)
    optimizer.step()
    return optimizer.state_dict()


def _wrong(loaded: dict[str, Any]) -> list[str]:
    """Return what is not what was saved: moments after one step are shares of the gradient and of its square."""
    state, group = loaded["optimizer"]["state"][0], loaded["optimizer"]["param_groups"][0]
    moments = [plain_math.numbers(state["exp_avg"]), plain_math.numbers(state["exp_avg_sq"])]
    right = [[(1 - _BETAS[0]) * g for g in _GRADIENT], [(1 - _BETAS[1]) * g * g for g in _GRADIENT]]
    off = max(plain_math.off(actual, one) for actual, one in zip(moments, right))
    held = (
        loaded["large"].tolist() == list(range(_LARGE)),
        loaded["turned"].tolist() == [[1, 4], [2, 5], [3, 6]],
        loaded["plain"] == _PLAIN,
        off <= _ROUNDING and float(state["step"]) == 1.0,
        (group["lr"], tuple(group["betas"])) == (0.25, _BETAS),
    )
    return [name for name, right_one in zip(MORE, held) if not right_one]
