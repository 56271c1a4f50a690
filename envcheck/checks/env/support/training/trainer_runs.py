"""Training by transformers' Trainer: a tiny model from files of its own, two runs, and what each leaves behind.

Nothing here asks a hub: the model is made, saved and loaded below the check's own directory, offline.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from pathlib import Path
from typing import Any

from envcheck.checks import Measured
from envcheck.checks.env.support.training import model_replicas

STEPS, SAVED_AT = 8, 4
# What a launcher says of ranks: the Trainer would join their group.
_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_WORDS, _LENGTH, _WIDTH, _BATCH, _EXAMPLES, _RATE = 29, 12, 32, 8, 64, 2e-2


def isolate(directory: Path) -> None:
    """Keep this process's Hugging Face libraries offline, alone and in their own directory; before their import."""
    for name in _LAUNCHER:
        os.environ.pop(name, None)
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1")
    os.environ.update({**offline, "HF_HOME": str(directory / "hf"), "TOKENIZERS_PARALLELISM": "false"})


def save(torch: Any, directory: Path) -> dict[str, str]:
    """Write a tiny model's weights; return their digests."""
    library = importlib.import_module("transformers")
    torch.manual_seed(1)
    config = library.GPT2Config(
        vocab_size=_WORDS, n_positions=_LENGTH, n_embd=_WIDTH, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = library.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(str(directory))
    return digests(torch, model)


def load(directory: Path) -> Any:
    """Return the model that was written; its attention is plain operations, which repeat to the bit on any device."""
    library = importlib.import_module("transformers")
    config = library.AutoConfig.from_pretrained(str(directory), attn_implementation="eager")
    return library.AutoModelForCausalLM.from_pretrained(str(directory), config=config, local_files_only=True)


def spoil(torch: Any, model: Any) -> None:
    """Spoil every weight of a model: what it has of them after it was resumed is the checkpoint's."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()


def digests(torch: Any, model: Any) -> dict[str, str]:
    """Return a digest of each parameter, by name."""
    return {name: model_replicas.digest(torch, [tensor])[:16] for name, tensor in model.named_parameters()}


class TrainerRun:
    """One Trainer with its own directory, and what is seen of it: steps, losses and dtypes."""

    def __init__(self, torch: Any, model: Any, directory: Path, **options: Any) -> None:
        trainer = importlib.import_module("transformers").Trainer
        self.torch, self.model, self.logs = torch, model, directory / "events"
        self.losses: list[tuple[int, float]] = []
        self.dtypes: set[str] = set()
        model.get_output_embeddings().register_forward_hook(self._saw)
        arguments = _arguments(directory, self.logs, **options)
        data = _progressions(torch)
        self.trainer = trainer(model=model, args=arguments, train_dataset=data, callbacks=[_listener(self.losses)])

    def train(self, checkpoint: Path | None = None) -> None:
        """Train to the last step, from a checkpoint if there is one."""
        self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    def _saw(self, _module: Any, _inputs: Any, output: Any) -> None:
        self.dtypes.add(str(output.dtype).rpartition(".")[2])

    def seen(self) -> Measured:
        """Return what this run came to."""
        weights = {str(parameter.dtype).rpartition(".")[2] for parameter in self.model.parameters()}
        return {
            "steps": [step for step, _ in self.losses],
            "losses": [loss for _, loss in self.losses],
            "computed": sorted(self.dtypes),
            "weights": sorted(weights),
            "state": {**digests(self.torch, self.model), **self._optimizer()},
        }

    def _optimizer(self) -> dict[str, str]:
        """Return a digest of each moment that the optimizer keeps, and of its learning rates."""
        optimizer, state = self.trainer.optimizer, {}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for index, parameter in enumerate(parameters):
            for name, value in optimizer.state.get(parameter, {}).items():
                state[f"optimizer.{index}.{name}"] = self.torch.as_tensor(value)
        state["rates"] = self.torch.tensor([float(group["lr"]) for group in optimizer.param_groups])
        return {name: model_replicas.digest(self.torch, [value])[:16] for name, value in state.items()}


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


def _progressions(torch: Any) -> list[dict[str, Any]]:
    """Return sequences in which each word is the one before plus a step of the sequence's own."""
    rows = [[(5 * start + step * (1 + start % 3)) % _WORDS for step in range(_LENGTH)] for start in range(_EXAMPLES)]
    return [{"input_ids": torch.tensor(row), "labels": torch.tensor(row)} for row in rows]


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
