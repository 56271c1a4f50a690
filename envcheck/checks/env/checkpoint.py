"""A checkpoint that loads, and resumes another training than the one that was saved.

Seen in the wild: a buffer (BatchNorm's statistics) that is not in the file, an optimizer that starts afresh, a schedule
or a random generator that begins again at step 0, a file system that says "written" and was full. The loss jumps a
little and nobody asks. Saved after k steps, run on to 2k; loaded into a fresh model, run to 2k: the bits are the same.
What is saved is digested before, after, and when it is loaded, from the objects themselves; the learning rates are
compared with their formula; and torch.distributed.checkpoint has to bring tensors, plain values and an optimizer back.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from pathlib import Path
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.support import process_group, promise_cases
from envcheck.checks.training import deterministic_training, plain_math
from envcheck.counting import counted

CHECK = Check(
    promise="training resumed from a checkpoint is the training that was saved, to the bit",
    level="standard",
    seconds=2.0,
    cpu_seconds=0.3,
    timeout=120.0,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS = 4
# Weight and bias of two linear layers and of the normalisation between them.
PARAMETERS = 6
_ROUNDING = 1e-12
LIMIT = Limit(0, "tensors that differ", "the same operations on the same bits, deterministic algorithms on", "at most")
_FIX = "save and load the whole state_dict of model, optimizer and schedule, and the random state; or reinstall torch"


def measure(rank: Rank) -> Measured:
    """Save half-way, go on; load, go on from there; fingerprint every tensor of both ends."""
    import torch

    deterministic_training.make(torch)
    device = process_group.device_of(rank)
    path = Path(rank.scratch) / "checkpoint.pt"
    saved = deterministic_training.Training(torch, device, seed=1)
    saved.run(0, STEPS)
    before = saved.fingerprints()
    _save(torch, saved, path)
    after = saved.fingerprints()
    saved.run(STEPS, STEPS)
    ended = saved.fingerprints()
    resumed = deterministic_training.Training(torch, device, seed=2)
    lacking = _load(torch, resumed, path)
    loaded = resumed.fingerprints()
    resumed.run(STEPS, STEPS)
    where = process_group.standing(rank, next(resumed.model.parameters()))
    return {
        **where,
        "bytes": path.stat().st_size,
        "lacking": lacking,
        "losses": [saved.losses[STEPS:], resumed.losses],
        "rates": [saved.rates, resumed.rates],
        "state": {"before": before, "after": after, "loaded": loaded},
        "saved": ended,
        "resumed": resumed.fingerprints(),
        "distributed": _distributed(torch, device, Path(rank.scratch) / "distributed"),
    }


def _distributed(torch: Any, device: Any, directory: Path) -> Measured:
    """Save plain numbers by torch.distributed.checkpoint and load them; return which came back wrong, or why not."""
    if importlib.util.find_spec("torch.distributed.checkpoint") is None:
        return {"absent": f"torch {torch.__version__} as installed has no module torch.distributed.checkpoint"}
    from torch.distributed import checkpoint

    parameters = inspect.signature(checkpoint.save).parameters if hasattr(checkpoint, "save") else {}
    if "checkpoint_id" not in parameters:
        return {"absent": f"torch {torch.__version__} has no torch.distributed.checkpoint.save(checkpoint_id=)"}
    try:
        return {**tried(torch, checkpoint, device, directory), "torch": torch.__version__}
    # PyTorch derives its CheckpointException from BaseException.
    except (Exception, getattr(checkpoint, "CheckpointException", Exception)) as error:  # noqa: BLE001 (a finding)
        return {"raised": promise_cases.quoted(error)}


def _save(torch: Any, training: deterministic_training.Training, path: Path) -> None:
    cuda = torch.cuda.get_rng_state(training.device) if training.device.type == "cuda" else None
    state = {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "schedule": training.schedule.state_dict(),
        "random": torch.get_rng_state(),
        "random_cuda": cuda,
    }
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        # A full or failing disk says so here, or never.
        os.fsync(file.fileno())


def _load(torch: Any, training: deterministic_training.Training, path: Path) -> list[str]:
    """Load everything; return what of the model the file does not hold."""
    state = torch.load(path, map_location="cpu")
    loaded_keys = training.model.load_state_dict(state["model"], strict=False)
    training.optimizer.load_state_dict(state["optimizer"])
    training.schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["random"])
    if state["random_cuda"] is not None:
        torch.cuda.set_rng_state(state["random_cuda"], training.device)
    return [*loaded_keys.missing_keys, *loaded_keys.unexpected_keys]


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail naming what the file lacks, or the first step and tensors that differ."""
    problem = process_group.problem(view, ranks, backend=False)
    if problem is not None:
        return problem
    entry = ranks[0]
    losses, saved, resumed = entry.get("losses") or [[], []], entry.get("saved"), entry.get("resumed")
    written = process_group.finite(entry.get("bytes")) and entry["bytes"] > 0
    if [len(run) for run in losses] != [STEPS, STEPS] or not saved or not resumed or not written:
        return undecided("the training was not resumed", fix="see the check's log", code="checkpoint.not-resumed")
    findings = []
    if not all(process_group.finite(loss) for run in losses for loss in run):
        fix = "run the kernels check on this device"
        findings.append(failed("the loss is not finite", fix=fix, losses=losses, code="checkpoint.loss"))
    if entry.get("lacking"):
        summary = f"the checkpoint lacks {', '.join(entry['lacking'])}"
        findings.append(failed(summary, fix=_FIX, lacking=entry["lacking"], code="checkpoint.lacks"))
    apart = _apart(losses, saved, resumed)
    findings += [*([apart] if apart else []), *_changed(entry), *_rates(entry), *_not_brought_back(entry)]
    return (
        worst(findings, otherwise=findings[0])
        if findings
        else passed(
            f"{2 * STEPS} steps with a checkpoint between are the same to the bit: {len(saved)} tensors, "
            f"{entry['bytes']} bytes on disk",
            value=0,
            unit=LIMIT.unit,
            limit=LIMIT,
            losses=losses[0],
        )
    )


def _changed(entry: Measured) -> list[Outcome]:
    """Return a finding for what saving changed, what loading did not bring back, and what the optimizer lacks."""
    state = entry.get("state") or {}
    before, after, loaded = (state.get(name) or {} for name in ("before", "after", "loaded"))
    if not (before and after and loaded):
        return [
            undecided(
                "the state was not compared", fix="see the check's log", code="checkpoint.missing", culprit="state"
            )
        ]
    findings = []
    moments = {name for name in before if name.startswith("optimizer.") and name.endswith(("exp_avg", "exp_avg_sq"))}
    if len(moments) != 2 * PARAMETERS:
        summary = f"the optimizer keeps {len(moments)} moments for {PARAMETERS} parameters, not {2 * PARAMETERS}"
        findings.append(failed(summary, fix=_FIX, value=len(moments), code="checkpoint.moments", culprit="optimizer"))
    for event, other in (("saving changed", after), ("loading did not bring back", loaded)):
        names = sorted(name for name in before.keys() | other.keys() if before.get(name) != other.get(name))
        if names:
            summary = f"{event} {', '.join(names[:3])}{' …' if len(names) > 3 else ''}"  # noqa: PLR2004 (a line's worth)
            code = "checkpoint.saving" if event.startswith("saving") else "checkpoint.loading"
            findings.append(
                failed(summary, fix=_FIX, value=len(names), unit=LIMIT.unit, limit=LIMIT, code=code, tensors=names)
            )
    return findings


def _rates(entry: Measured) -> list[Outcome]:
    """Return a finding where the learning rates are not those of the schedule's formula."""
    rule = deterministic_training
    right = [rule.RATE * rule.FACTOR ** (step // rule.PERIOD) for step in range(2 * STEPS)]
    rates = entry.get("rates") or []
    if [len(values) for values in rates] != [2 * STEPS, STEPS]:
        return [
            undecided(
                "the learning rates were not recorded",
                fix="see the check's log",
                code="checkpoint.missing",
                culprit="learning rates",
            )
        ]
    findings = []
    for who, actual, due in (("saved", rates[0], right), ("resumed", rates[1], right[STEPS:])):
        if not all(
            process_group.finite(one) and abs(one - other) <= other * _ROUNDING for one, other in zip(actual, due)
        ):
            summary = f"the {who} training's learning rates are {actual}, not {due}"
            findings.append(failed(summary, fix=_FIX, code="checkpoint.rates", culprit=who))
    return findings


def _not_brought_back(entry: Measured) -> list[Outcome]:
    """Return a finding where torch.distributed.checkpoint brought other numbers back."""
    distributed = entry.get("distributed") or {}
    if distributed.get("raised"):
        summary = f"rank {entry.get('rank')}: torch.distributed.checkpoint raised {distributed['raised']}"
        return [failed(summary, fix="reinstall torch", code="checkpoint.distributed-raised")]
    if distributed.get("wrong"):
        summary = f"torch.distributed.checkpoint brings back other numbers: {', '.join(distributed['wrong'])}"
        return [failed(summary, fix="reinstall torch", value=len(distributed["wrong"]), code="checkpoint.distributed")]
    version = distributed.get("torch")
    count = due(version) if isinstance(version, str) and version[:1].isdigit() else None
    if distributed.get("absent") or (
        distributed.get("wrong") == [] and count is not None and distributed.get("tried") == count
    ):
        return []
    summary = "torch.distributed.checkpoint was not tried"
    return [
        undecided(summary, fix="see the check's log", code="checkpoint.missing", culprit="torch.distributed.checkpoint")
    ]


def _apart(losses: list[list[float]], saved: dict[str, str], resumed: dict[str, str]) -> process_group.Problem:
    names = sorted(saved.keys() | resumed.keys())
    apart = [name for name in names if saved.get(name) != resumed.get(name)]
    steps = [step for step, (one, other) in enumerate(zip(*losses)) if one != other]
    if not apart and not steps:
        return None
    when = f"from step {STEPS + steps[0]} on" if steps else "in what no loss shows"
    named = f": {', '.join(apart[:3])}{' …' if len(apart) > 3 else ''}" if apart else ""  # noqa: PLR2004 (a line's worth)
    return failed(
        f"the resumed training is another one {when}; {counted(len(apart), 'different tensor')}{named}",
        fix=_FIX,
        value=len(apart),
        unit=LIMIT.unit,
        limit=LIMIT,
        tensors=apart,
        losses=losses,
        code="checkpoint.differs",
    )


DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "uint8")
MORE = ("a large tensor", "a turned tensor", "plain values", "moments of an optimizer", "options of an optimizer")
# Beside tensors of each type the others were not tried in earlier releases.
MORE_SINCE = (2, 4)
_LARGE = (1 << 20) + 3
_PLAIN = {"step": 7, "rate": 0.25, "name": "saved", "list": [1, 2], "truth": True}
_GRADIENT = [1.0, -2.0, 3.0]
_BETAS = (0.75, 0.5)
_MOMENT_ROUNDING = 1e-6


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
        off <= _MOMENT_ROUNDING and float(state["step"]) == 1.0,
        (group["lr"], tuple(group["betas"])) == (0.25, _BETAS),
    )
    return [name for name, right_one in zip(MORE, held) if not right_one]
