"""transformers' Trainer that trains something else than its arguments say, or cannot be resumed.

A tiny model is made, saved and loaded offline; it trains for 8 steps in bf16; a second run goes on from the checkpoint
of step 4 and has to end with the same bits; TensorBoard's own reader has to find every loss.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import os
from pathlib import Path
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, worst
from envcheck.checks.support import process_group, training
from envcheck.counting import counted

CHECK = checks.Check(
    promise="transformers' Trainer trains in bf16, logs every loss, and resumes a checkpoint to the bit",
    level="standard",
    seconds=12.0,
    cpu_seconds=8.0,  # half of it imports transformers
    timeout=240.0,
    imports=("torch._dynamo",),  # by the first optimizer
)


NEEDED = ("accelerate",)  # an environment for inference does without
LIMIT = checks.Limit(
    0.9, "of the first loss", "ours: the last of 8 steps on arithmetic progressions, seen at 0.75 in bf16", "at most"
)
_ROUNDING = 1e-4  # transformers before 5 logs losses with four decimals
_FIX = "install transformers, accelerate and tensorboard of one time; see the check's log"


def measure(rank: Rank) -> Measured:
    """Train, resume, and read the log; say at which stage whatever broke did."""
    import torch

    training.make(torch)
    device = process_group.device_of(rank)
    where = process_group.standing(rank, torch.zeros(1, device=device))
    if importlib.util.find_spec("transformers") is None:
        return {**where, "absent": "transformers"}
    result: Measured = {**where, "missing": [name for name in NEEDED if importlib.util.find_spec(name) is None]}
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    versions = {}
    for name in ("transformers", "tensorboard", *NEEDED):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # tb-nightly brings tensorboard, too
            versions[name] = importlib.metadata.version(name)
    result |= {"versions": versions, "capability": list(capability), "stage": "the import"}
    if result["missing"]:
        return result
    try:
        _train(torch, rank, result)
    except Exception as error:  # noqa: BLE001 (whatever a library raises is the finding)
        result["raised"] = process_group.quoted(_cause(error))
    return result


def _cause(error: BaseException) -> BaseException:
    """Return the first of a chain of exceptions: transformers' own only says which of its modules it could not load."""
    return error if error.__cause__ is None else _cause(error.__cause__)


def _train(torch: Any, rank: Rank, result: Measured) -> None:
    directory = Path(rank.scratch)
    isolate(directory)
    importlib.import_module("transformers").Trainer  # noqa: B018 (imported when asked for)
    result["stage"] = "saving and loading the model"
    save(torch, directory / "model")
    model, again = (load(directory / "model") for _ in range(2))
    gpu, tensorboard = rank.device != "cpu", importlib.util.find_spec("tensorboard") is not None
    bf16 = computed_in(gpu=gpu, capability=result["capability"]) == "bfloat16"
    options = {"bf16": bf16, "cpu": not gpu, "tensorboard": tensorboard}
    result["stage"] = "training"
    uninterrupted = TrainerRun(torch, model, directory / "whole", **options)
    uninterrupted.train()
    result |= {"whole": uninterrupted.seen(), **process_group.standing(rank, next(model.parameters()))}
    result["stage"] = f"resuming from step {SAVED_AT}"
    resumed = TrainerRun(torch, again, directory / "resumed", **options)
    resumed.train(directory / "whole" / f"checkpoint-{SAVED_AT}")
    result |= {"resumed": resumed.seen(), "stage": "reading the TensorBoard log"}
    result["events"] = events(uninterrupted.logs) if tensorboard else None


def computed_in(*, gpu: bool, capability: list[int]) -> str:
    """Return the dtype that a device is asked to train in: float32 where it has no bfloat16 of its own."""
    return "float32" if gpu and tuple(capability) < training.BFLOAT16_SINCE else "bfloat16"


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:
    """Skip without transformers; fail naming the stage that broke, or what was trained, logged or resumed wrongly."""
    entry = ranks[0]
    if entry.get("absent"):
        return skipped("transformers is not installed", code="trainer.no-transformers")
    broken = _broken(entry)
    if broken is not None:
        return broken
    uninterrupted, resumed = entry.get("whole") or {}, entry.get("resumed") or {}
    complete = uninterrupted.get("steps") == [*range(1, STEPS + 1)] and len(uninterrupted.get("losses") or []) == STEPS
    states = uninterrupted.get("state"), resumed.get("state")
    if not complete or not all(states) or not isinstance(resumed.get("losses"), list):
        return undecided("no training was compared", code="trainer.unmeasured")
    findings = [*_losses(uninterrupted), *_dtypes(view, entry), *_resumed(uninterrupted, resumed), *_events(entry)]
    return worst(findings, otherwise=findings[0]) if findings else _trained(entry)


def _broken(entry: Measured) -> process_group.Problem:
    version = (entry.get("versions") or {}).get("transformers", "")
    if entry.get("missing"):
        names = " and ".join(entry["missing"])
        summary = f"transformers {version} is installed without {names}: nothing trains here"
        return skipped(summary, code="trainer.missing")
    if entry.get("raised"):
        stage = str(entry.get("stage"))
        summary = f"transformers {version}: {stage} raised {entry['raised']}"
        return failed(summary, fix=_FIX, code="trainer.raised", culprit=stage, versions=entry.get("versions"))
    return None


def _losses(uninterrupted: Measured) -> list[Outcome]:
    losses = uninterrupted["losses"]
    wrong = [step for step, loss in enumerate(losses, 1) if not process_group.finite(loss)]
    if wrong:
        fix = "run the kernels and amp checks on this device"
        return [failed(f"the loss is not finite at step {wrong[0]}", fix=fix, losses=losses, code="trainer.loss")]
    share = losses[-1] / losses[0] if losses[0] > 0 else float("inf")
    if share <= LIMIT.value:
        return []
    summary = f"the loss does not fall: {losses[0]:.3g} at step 1, {losses[-1]:.3g} at step {STEPS}"
    fix = "run the kernels and amp checks; reinstall transformers and accelerate"
    code = "trainer.learns-nothing"
    return [failed(summary, fix=fix, value=share, limit=LIMIT, code=code, losses=losses)]


def _dtypes(view: View, entry: Measured) -> list[Outcome]:
    due = computed_in(gpu=view.mode == "gpu", capability=entry.get("capability") or [])
    fix = "reinstall accelerate; look for ACCELERATE_MIXED_PRECISION and code that changes torch.autocast"
    findings = []
    for name in ("whole", "resumed"):
        computed = entry[name].get("computed")
        if computed != [due]:
            summary = f"the {name} run was to compute in {due}, and computed in {_some(computed)}"
            findings.append(failed(summary, fix=fix, code="trainer.dtype", culprit=f"{name} run"))
    return findings


def _resumed(uninterrupted: Measured, resumed: Measured) -> list[Outcome]:
    due = uninterrupted["steps"][SAVED_AT:]
    fix = "update transformers, accelerate and torch together; look at what the checkpoint's directory holds"
    if resumed.get("steps") != due:
        summary = f"resumed from step {SAVED_AT}, the Trainer took the steps {resumed.get('steps')}, not {due}"
        return [failed(summary, fix=fix, code="trainer.steps")]
    one, other = uninterrupted["state"], resumed["state"]
    apart = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    pairs = zip(due, uninterrupted["losses"][SAVED_AT:], resumed["losses"])
    # As texts: a NaN that comes again is no difference, and has a finding of its own.
    steps = [step for step, loss, again in pairs if str(loss) != str(again)]
    if not apart and not steps:
        return []
    when = f"from step {steps[0]} on" if steps else "in what no loss shows"
    named = f": {_some(apart)}" if apart else ""
    summary = f"the resumed run is another one {when}; {counted(len(apart), 'different tensor')}{named}"
    losses = [uninterrupted["losses"], resumed["losses"]]
    more: dict[str, Any] = {"value": len(apart), "unit": "tensors that differ", "tensors": apart, "losses": losses}
    return [failed(summary, fix=fix, code="trainer.differs", **more)]


def _events(entry: Measured) -> list[Outcome]:
    if "tensorboard" not in (entry.get("versions") or {}) and entry.get("events") is None:
        return []
    events, uninterrupted = entry.get("events") or [], entry["whole"]
    fix = "reinstall tensorboard with a protobuf that it accepts; look for space on the disk"
    if [int(step) for step, _ in events] != uninterrupted["steps"]:
        summary = f"the TensorBoard log has the loss of {len(events)} of {counted(STEPS, 'step')}"
        return [failed(summary, fix=fix, value=len(events), unit="steps", code="trainer.events")]
    for (step, actual), loss in zip(events, uninterrupted["losses"]):
        if process_group.finite(loss) and not (process_group.finite(actual) and abs(actual - loss) <= _ROUNDING):
            summary = f"the TensorBoard log says that the loss at step {step} is {actual}, it was {loss}"
            return [failed(summary, fix=fix, code="trainer.events")]
    return []


def _some(names: Any) -> str:
    shown = [str(name) for name in names or []]
    return ", ".join(shown[:3]) + (" …" if len(shown) > 3 else "") if shown else "nothing"  # noqa: PLR2004 (a line's worth)


def _trained(entry: Measured) -> Outcome:
    uninterrupted, versions = entry["whole"], entry.get("versions") or {}
    losses, [dtype] = uninterrupted["losses"], uninterrupted["computed"]
    logged = "TensorBoard's log holds them" if entry.get("events") else "without a log: tensorboard is not installed"
    return passed(
        f"transformers {versions.get('transformers')}: {STEPS} steps in {dtype}, the loss falls from {losses[0]:.3g} "
        f"to {losses[-1]:.3g}, {logged}; resumed at step {SAVED_AT}, {counted(len(uninterrupted['state']), 'tensor')} "
        "are the same to the bit",
        value=losses[-1] / losses[0],
        limit=LIMIT,
        losses=losses,
        versions=versions,
    )


STEPS, SAVED_AT = 8, 4
_WORDS, _LENGTH, _WIDTH, _BATCH, _EXAMPLES, _RATE = 29, 12, 32, 8, 64, 2e-2


def isolate(directory: Path) -> None:
    """Keep this process's Hugging Face libraries offline, alone and in their own directory; before their import."""
    process_group.leave()
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1")
    os.environ.update({**offline, "HF_HOME": str(directory / "hf"), "TOKENIZERS_PARALLELISM": "false"})


def save(torch: Any, directory: Path) -> None:
    """Write a tiny model's weights."""
    library = importlib.import_module("transformers")
    torch.manual_seed(1)
    config = library.GPT2Config(
        vocab_size=_WORDS, n_positions=_LENGTH, n_embd=_WIDTH, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    library.AutoModelForCausalLM.from_config(config).save_pretrained(str(directory))


def load(directory: Path) -> Any:
    """Return the model that was written; its attention is plain operations, which repeat to the bit on any device."""
    library = importlib.import_module("transformers")
    config = library.AutoConfig.from_pretrained(str(directory), attn_implementation="eager")
    return library.AutoModelForCausalLM.from_pretrained(str(directory), config=config, local_files_only=True)


class TrainerRun:
    """One Trainer with its own directory, and what is seen of it: steps, losses and dtypes."""

    def __init__(self, torch: Any, model: Any, directory: Path, **options: Any) -> None:
        trainer = importlib.import_module("transformers").Trainer
        self.torch, self.model, self.logs = torch, model, directory / "events"
        self.losses: list[tuple[int, float]] = []
        self.dtypes: set[str] = set()
        model.get_output_embeddings().register_forward_hook(
            lambda _module, _inputs, output: self.dtypes.add(str(output.dtype).rpartition(".")[2])
        )
        arguments = _arguments(directory, self.logs, **options)
        starts = [(start, 1 + start % 3) for start in range(_EXAMPLES)]
        rows = [torch.tensor([(5 * start + at * by) % _WORDS for at in range(_LENGTH)]) for start, by in starts]
        data = [{"input_ids": row, "labels": row.clone()} for row in rows]
        self.trainer = trainer(model=model, args=arguments, train_dataset=data, callbacks=[_listener(self.losses)])

    def train(self, checkpoint: Path | None = None) -> None:
        """Train to the last step, from a checkpoint if there is one."""
        self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    def seen(self) -> Measured:
        """Return what this run came to."""
        return {
            "steps": [step for step, _ in self.losses],
            "losses": [loss for _, loss in self.losses],
            "computed": sorted(self.dtypes),
            "state": self._state(),
        }

    def _state(self) -> dict[str, str]:
        optimizer, state = self.trainer.optimizer, dict(self.model.named_parameters())
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for index, parameter in enumerate(parameters):
            for name, value in optimizer.state.get(parameter, {}).items():
                state[f"optimizer.{index}.{name}"] = self.torch.as_tensor(value)
        state["rates"] = self.torch.tensor([float(group["lr"]) for group in optimizer.param_groups])
        return {name: training.digest(self.torch, [value])[:16] for name, value in state.items()}


def _arguments(directory: Path, logs: Path, *, bf16: bool, cpu: bool, tensorboard: bool) -> Any:
    library = importlib.import_module("transformers")
    fields = {field.name for field in dataclasses.fields(library.TrainingArguments)}
    # Where events go: an argument until transformers 4, this variable from 5 on.
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(logs)
    renamed: dict[str, Any] = {"use_cpu" if "use_cpu" in fields else "no_cuda": cpu}
    renamed |= {"logging_dir": str(logs)} if "logging_dir" in fields else {}
    arguments = library.TrainingArguments(
        output_dir=str(directory),
        max_steps=STEPS,
        per_device_train_batch_size=_BATCH,
        learning_rate=_RATE,
        bf16=bf16,
        logging_steps=1,
        logging_nan_inf_filter=False,  # it would hide a NaN behind the losses before it
        save_strategy="steps",
        save_steps=SAVED_AT,
        report_to=["tensorboard"] if tensorboard else [],
        disable_tqdm=True,
        seed=1,
        **renamed,
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # noqa: SLF001 (the only way to keep one process to one GPU; DataParallel is not meant)
    return arguments


def _listener(losses: list[tuple[int, float]]) -> Any:
    library = importlib.import_module("transformers")

    class LossListener(library.TrainerCallback):  # type: ignore[misc,name-defined]
        """Hears each loss as it is logged; what a checkpoint says of earlier ones is not heard."""

        def on_log(self, _arguments: Any, state: Any, _control: Any, logs: Any = None, **_more: Any) -> None:
            """Note the step's loss."""
            if logs and "loss" in logs:
                losses.append((int(state.global_step), float(logs["loss"])))

    return LossListener()


def events(directory: Path) -> list[list[float]]:
    """Return the steps and losses that TensorBoard's own reader finds."""
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    log = reader.EventAccumulator(str(directory))
    log.Reload()
    tags = log.Tags().get("scalars", [])
    return [[event.step, event.value] for event in log.Scalars("train/loss")] if "train/loss" in tags else []
