"""The options of sharding that users set: precision, clipping, accumulation, offloading, and other ways to shard."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

from envcheck.checks.env.support.training import model_replicas, plain_math, promise_cases
from envcheck.checks.env.support.training.sharded import sharded_task, tensor_parallel

NAMES = (
    "kept gathered",
    "bf16 policy",
    "gradients clipped",
    "FSDP1",
    "gradients accumulated",
    "gradients accumulated without sending",
    "parameters kept on the CPU",
    "tensor parallel",
    "the whole state",
    "shards saved and loaded",
)


class ShardingOptions:
    """The cases, each trained on the same task."""

    def __init__(self, task: sharded_task.ShardedTask, dist: Any, fully_shard: Any) -> None:
        self.task, self.dist, self.fully_shard = task, dist, fully_shard

    def cases(self) -> dict[str, promise_cases.Case]:
        """Return a case for each variant."""
        tries: tuple[promise_cases.Case, ...] = (self.kept, self.lower, self.clipped, self.first)
        tries += (partial(self.accumulated, sends=True), partial(self.accumulated, sends=False), self.offloaded)
        return dict(zip(NAMES, (*tries, self.split, self.whole_state, self.stored)))

    def trained(self, clip: float = 0.0, **options: Any) -> float:
        """Train under some options; return how far the gathered weights are."""
        sharded = sharded_task.sharded(self.dist, self.task.model(), self.fully_shard, self.task.device, **options)
        for step in range(sharded_task.STEPS):
            self.task.step(sharded, step, clip)
        whole = [plain_math.numbers(p.full_tensor()) for p in sharded.parameters()]
        return self.task.off(whole, self.task.trained(clip or math.inf))

    def kept(self) -> float:
        """Keep parameters gathered between forward and backward."""
        return self.trained(reshard_after_forward=False)

    def lower(self) -> float:
        """Compute in bf16, reduce in float32."""
        torch = self.task.torch
        try:
            from torch.distributed.fsdp import MixedPrecisionPolicy
        except ImportError:
            from torch.distributed._composable.fsdp import MixedPrecisionPolicy
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        return self.trained(mp_policy=policy)

    def clipped(self) -> float:
        """Clip by the norm over all shards."""
        return self.trained(clip=0.05)

    def accumulated(self, *, sends: bool) -> float:
        """Add up the gradients of two halves: they are those of the whole."""
        sharded = sharded_task.sharded(self.dist, self.task.model(), self.fully_shard, self.task.device)
        for step in range(sharded_task.STEPS):
            self.task.accumulated(sharded, step, sends=sends)
        return self.task.off([plain_math.numbers(p.full_tensor()) for p in sharded.parameters()], self.task.right)

    def only_on_cpus(self) -> None:
        """Raise Absent on a GPU: the cases that call this have not met one yet."""
        if self.task.rank.device != "cpu":
            message = "tried on CPUs alone"
            raise promise_cases.AbsentFeature(message)

    def split(self) -> float | str:
        """Split layers by columns and rows."""
        self.only_on_cpus()
        return tensor_parallel.trained(self.task.torch, self.task.rank, self.dist)

    def offloaded(self) -> float | str:
        """Keep shards, gradients and steps on the CPU."""
        self.only_on_cpus()
        try:
            from torch.distributed.fsdp import CPUOffloadPolicy
        except ImportError:
            from torch.distributed._composable.fsdp import CPUOffloadPolicy
        policy, task = CPUOffloadPolicy(pin_memory=False), self.task
        sharded = sharded_task.sharded(self.dist, task.model(), self.fully_shard, task.device, offload_policy=policy)
        for step in range(sharded_task.STEPS):
            task.step(sharded, step)
        held = [(p.to_local(), p.shape[0], p.numel() // p.shape[0]) for p in sharded.parameters()]
        if any(local.device.type != "cpu" for local, _, _ in held):
            return "the shards are not on the CPU"
        pairs = [
            (local, sharded_task.rows_of(task.rank, right, *shape)) for (local, *shape), right in zip(held, task.right)
        ]
        # What has no row of a parameter holds nothing of it.
        way = max(abs(x - y) for new, old in zip(task.right, task.start) for x, y in zip(new, old))
        errors = [0.0, *(plain_math.off(plain_math.numbers(actual), right, way) for actual, right in pairs if right)]
        lost = [1 for actual, right in pairs if len(right) != actual.numel()]
        return "a shard has another size" if lost else model_replicas.worst(errors)

    def ended(self) -> Any:
        """Return the sharded model after all steps, and what reads and writes states of such."""
        try:
            from torch.distributed.checkpoint import state_dict as states
        except ImportError as error:
            message = f"torch {self.task.torch.__version__} has no torch.distributed.checkpoint.state_dict (2.2 has)"
            raise promise_cases.AbsentFeature(message) from error
        model = sharded_task.sharded(self.dist, self.task.model(), self.fully_shard, self.task.device)
        for step in range(sharded_task.STEPS):
            self.task.step(model, step)
        return model, states

    def whole_state(self) -> float:
        """Gather the whole state on each rank, as a checkpoint of one file has it."""
        model, states = self.ended()
        whole = states.get_model_state_dict(model, options=states.StateDictOptions(full_state_dict=True))
        return self.task.off([plain_math.numbers(tensor) for tensor in whole.values()], self.task.right)

    def stored(self) -> float:
        """Save each rank's shards by torch.distributed.checkpoint, and load them into a fresh model."""
        from torch.distributed import checkpoint

        (model, states), where = self.ended(), str(Path(self.task.rank.scratch) / "shards")
        checkpoint.save({"model": states.get_model_state_dict(model)}, checkpoint_id=where)
        other = sharded_task.sharded(self.dist, self.task.model(), self.fully_shard, self.task.device)
        state = {"model": states.get_model_state_dict(other)}
        checkpoint.load(state, checkpoint_id=where)
        states.set_model_state_dict(other, state["model"])
        return self.task.off([plain_math.numbers(p.full_tensor()) for p in other.parameters()], self.task.right)

    def first(self) -> float:
        """Shard by FullyShardedDataParallel, flattened into one parameter."""
        from torch.distributed.fsdp import FullyShardedDataParallel

        if self.task.device.type != "cuda":
            message = "FSDP1 needs an accelerator (torch says so itself)"
            raise promise_cases.AbsentFeature(message)
        sharded = FullyShardedDataParallel(self.task.model(), device_id=self.task.device)
        for step in range(sharded_task.STEPS):
            self.task.step(sharded, step)
        with FullyShardedDataParallel.summon_full_params(sharded):
            whole = [plain_math.numbers(p) for p in sharded.module.parameters()]
        return self.task.off(whole, self.task.right)
