"""Lies of ranks: what each does to torch, or to the check, before an honest check measures.

Each is a check of its own beside the honest ones: `write` makes the files of a directory for --checks of them. What a
lie does, its function does in the ranks; there it is run by this file's path, so it imports nothing of the tests.
"""

import contextlib
import importlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

CHECK = '''"""A lie: {name}."""

import dataclasses
import runpy

from envcheck.checks.env import {check} as sound

CHECK, judge = dataclasses.replace(sound.CHECK, **{options}), sound.judge


def measure(rank):
    """Measure under the lie."""
    import torch
    import torch.distributed
    import torch.nn.parallel

    lies = runpy.run_path({path!r})
    lies["prepare"](sound)
    if {rank} in (None, rank.rank):
        lies[{name!r}](torch, sound)
    return sound.measure(rank)
'''
Tell = Callable[[Any, Any], None]


class Lie(NamedTuple):
    """Which check is measured, in which rank it lies (None for every one), and what of the check is changed."""

    check: str
    rank: int | None
    options: dict[str, object]
    tell: Tell


LIES: dict[str, Lie] = {}


def lie(check: str, rank: int | None = None, **options: object) -> Callable[[Tell], Tell]:
    """Register a lie under its function's name; it is told torch and the check's module."""

    def register(tell: Tell) -> Tell:
        LIES[tell.__name__] = Lie(check, rank, options, tell)
        return tell

    return register


def write(directory: Path) -> None:
    """Write a check for each lie, beside those of this directory."""
    (directory / "env").mkdir()
    for path in (Path(__file__).parent / "env").glob("*.py"):
        (directory / "env" / path.name).write_bytes(path.read_bytes())
    for name, one in LIES.items():
        text = CHECK.format(name=name, check=one.check, rank=one.rank, options=one.options, path=__file__)
        (directory / "env" / f"{name}.py").write_text(text)


def prepare(check: Any) -> None:
    """Have a check measure little, on every rank."""
    name = check.__name__.rpartition(".")[2]
    if name == "disk_read":
        check.MOST = check.LEAST
    elif name == "collective_bandwidth":
        check.timed_collectives.SIZES["cpu"], check.timed_collectives.SMALL_ITERATIONS["cpu"] = [1 << 20], 2


def after(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Change what a function gives; what the change returns, if anything, stands for it."""
    honest = getattr(owner, name)

    def lying(*given: Any, **options: Any) -> Any:
        made = honest(*given, **options)
        changed = change(made)
        return made if changed is None else changed

    setattr(owner, name, lying)


def after_into(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Change what a function writes into its first argument."""
    honest = getattr(owner, name)

    def lying(into: Any, *given: Any, **options: Any) -> Any:
        done = honest(into, *given, **options)
        change(into)
        return done

    setattr(owner, name, lying)


@lie("collective_bandwidth", rank=1)
def bandwidth_elsewhere(_torch: Any, check: Any) -> None:
    # Rank 1 says that its tensors were on a GPU, which it does not have.
    after(check, "measure", lambda measured: {**measured, "is_cuda": True, "device": "GPU-1"})


@lie("collective_bandwidth", rank=1)
def broadcast_flips_a_bit(torch: Any, _check: Any) -> None:
    # One bit of one element of a broadcast flips on its way to rank 1.
    def flip(tensor: Any) -> None:
        if len(tensor) > 4242:
            tensor.view(torch.int32)[4242] ^= 1

    after_into(torch.distributed, "broadcast", flip)


@lie("checkpoint")
def checkpoint_loses_a_buffer(torch: Any, _check: Any) -> None:
    # A checkpoint without BatchNorm's running mean.
    honest = torch.save

    def lying(state: Any, file: Any) -> None:
        del state["model"]["1.running_mean"]
        honest(state, file)

    torch.save = lying


@lie("compiled")
def compiles_nothing(torch: Any, _check: Any) -> None:
    # A torch.compile that hands the model back as it is.
    torch.compile = lambda model, **_options: model


@lie("fingerprint", rank=1)
def corrupts_always(torch: Any, _check: Any) -> None:
    # Rank 1 gives the same wrong bits every time.

    def flip(product: Any) -> None:
        product.view(torch.int32)[7, 9] ^= 1

    after(torch.Tensor, "__matmul__", flip)


@lie("disk_read")
def disk_crawls(_torch: Any, _check: Any) -> None:
    # A disk of a tenth of a gigabyte a second, whatever is really below it.
    after(os, "preadv", lambda _read: time.sleep(0.32))


@lie("disk_read")
def disk_forgets(_torch: Any, _check: Any) -> None:
    # A disk that gives back one other bit, in byte 4711 of each block.
    honest = os.preadv

    def forget(descriptor: int, buffers: Any, offset: int, flags: int = 0, /) -> int:
        read = honest(descriptor, buffers, offset, flags)
        buffers[0][4711] ^= 1
        return read

    os.preadv = forget


@lie("all_reduce_bandwidth")
def does_nothing(torch: Any, _check: Any) -> None:
    # A collective that is quick because it does nothing.
    torch.distributed.all_reduce = lambda _tensor, **_options: None


@lie("ddp", rank=1)
def drifts(torch: Any, check: Any) -> None:
    # One rank's last step is not the others': its gradients were right, one bit of its weights is not.
    taken = []

    def drift(optimizer: Any) -> None:
        taken.append(1)
        if len(taken) == check.STEPS:
            weight = optimizer.param_groups[0]["params"][0].data
            weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))

    after_into(torch.optim.SGD, "step", drift)


@lie("fp8_training", rank=1)
def fp8_scales_once(_torch: Any, check: Any) -> None:
    # Rank 1's FP8 products of gradients have the scale of one operand undone only.
    honest = check.multiply

    def careless(torch: Any, left: Any, left_scale: Any, right: Any, right_scale: Any) -> Any:
        once = torch.ones_like(right_scale) if left.dtype == torch.float8_e5m2 else right_scale
        return honest(torch, left, left_scale, right, once)

    check.multiply = careless


@lie("collectives", rank=1)
def gather_misplaced(torch: Any, _check: Any) -> None:
    # Rank 1 finds in the place of rank 0's first chunk its second, as if a write had gone to the wrong address.

    def misplace(parts: Any) -> None:
        if len(parts[0]) >= 32:
            parts[0][:16] = parts[0][16:32].clone()

    after_into(torch.distributed, "all_gather", misplace)


@lie("dataloader")
def loader_reuses_pages(torch: Any, _check: Any) -> None:
    # A worker writes into a batch that it has sent already: one element of the third, before it is read.
    honest = torch.utils.data.DataLoader.__iter__

    def lying(loader: Any) -> Any:
        for number, batch in enumerate(honest(loader)):
            if number == 2 and batch[0].shape[1] > 5000:
                batch[0][1, 5000] = -1
            yield batch

    torch.utils.data.DataLoader.__iter__ = lying


@lie("memory_patterns", rank=0)
def memory_aliases(_torch: Any, check: Any) -> None:
    # An address line of rank 0's memory is stuck: what is written into one chunk lands in another one too.

    def alias(chunks: Any) -> None:
        chunks[3] = chunks[1]

    after(check, "_chunks", alias)


@lie("memory_patterns", rank=1)
def memory_flips_a_bit(_torch: Any, check: Any) -> None:
    # One bit of one word of rank 1's memory is stuck at 1, whatever is written over it.
    honest = vars(check)["_compare"]

    def stuck(actual: Any, chunk: Any, expected: Any, number: int) -> None:
        if number == 2:
            chunk[77] |= 1 << 20
        honest(actual, chunk, expected, number)

    vars(check)["_compare"] = stuck


@lie("ddp")
def nan_gradient(torch: Any, check: Any) -> None:
    # One gradient of many is not a number on rank 1, after sound ones; whoever takes a maximum over them loses it.
    wrap, backward = check.training.wrap, torch.Tensor.backward

    def spoiled(rank: Any, module: Any, **options: Any) -> Any:
        second = list(module.parameters())[1]

        def back(loss: Any) -> None:
            backward(loss)
            if second.grad is not None and rank.rank == 1:
                second.grad.fill_(math.nan)

        torch.Tensor.backward = back
        return wrap(rank, module, **options)

    check.training.wrap = spoiled


@lie("ddp")
def no_sync_stays(torch: Any, _check: Any) -> None:
    # The last micro-batch is under no_sync too: every rank steps with its own gradients.

    def stays(model: Any) -> contextlib.AbstractContextManager[None]:
        model.require_backward_grad_sync = False
        return contextlib.nullcontext()

    torch.nn.parallel.DistributedDataParallel.no_sync = stays


@lie("peer_to_peer", gpus=0)
def peers_bring_nothing(torch: Any, check: Any) -> None:
    # The copy engine says that it is done, and nothing has arrived; a kernel's stores arrive.
    honest = torch.Tensor.copy_
    torch.Tensor.copy_ = lambda target, source: target if len(target) == check.VALUES else honest(target, source)


@lie("peer_to_peer", gpus=0)
def peers_crash(torch: Any, check: Any) -> None:
    # The second pair's write kills the process.
    honest, copies = torch.Tensor.copy_, []

    def dies(target: Any, source: Any) -> Any:
        copies.append(1)
        if len(copies) > 3 * check.TRANSFERS:  # one by the copy engine, two halves by a kernel, each time
            os.kill(os.getpid(), signal.SIGSEGV)
        return honest(target, source)

    torch.Tensor.copy_ = dies


@lie("peer_to_peer", gpus=0)
def peers_flip_a_bit(torch: Any, check: Any) -> None:
    # The copy engine flips one bit of what one GPU writes to another; a kernel's stores arrive.

    def flip(target: Any) -> None:
        if len(target) == check.VALUES:
            target[777] ^= 1 << 30

    after(torch.Tensor, "copy_", flip)


@lie("peer_to_peer", gpus=0, timeout=4.0)
def peers_hang(torch: Any, _check: Any) -> None:
    # The first write from one GPU to another never comes to an end.
    torch.Tensor.copy_ = lambda _target, _source: time.sleep(600)


@lie("ddp")
def powersgd_coarse(_torch: Any, _check: Any) -> None:
    # PowerSGD whose left factor is never made orthogonal: an approximation of nothing in particular.
    hook = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")
    vars(hook)["_orthogonalize"] = lambda _matrices, epsilon=0: None  # noqa: ARG005 (the name it is called by)


@lie("collectives", rank=0)
def recv_flips_a_bit(torch: Any, _check: Any) -> None:
    # One bit of one element flips on the way from rank 1 to rank 0.
    honest = torch.distributed.batch_isend_irecv

    def lying(operations: Any) -> Any:
        works = honest(operations)
        tensor, last = operations[1].tensor if len(operations) == 2 else None, works[-1]
        if tensor is None or tensor.dtype is not torch.int32:
            return works

        def wait() -> None:
            last.wait()
            tensor[0] ^= 8

        return [*works[:-1], SimpleNamespace(wait=wait)]

    torch.distributed.batch_isend_irecv = lying


@lie("fsdp", rank=1)
def shards_train_apart(torch: Any, _check: Any) -> None:
    # Rank 1 trains its shard on a gradient of its own making: a thousandth too large.

    def scaled(honest: Any) -> Any:
        def lying(output: Any, *arguments: Any, **options: Any) -> Any:
            work = honest(output, *arguments, **options)
            if work is not None:
                work.wait()
            output.mul_(1.001)
            return work

        return lying

    for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
        if hasattr(torch.distributed, name):
            setattr(torch.distributed, name, scaled(getattr(torch.distributed, name)))


@lie("ddp")
def slightly_off(torch: Any, _check: Any) -> None:
    # Gradients that are averaged, and off by a part in ten thousand on every rank alike: a lossy reduction.
    honest, dist = torch.nn.parallel.DistributedDataParallel, torch.distributed

    def scaled(bucket: Any) -> Any:
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda done: done.value()[0].mul_(1 + 1e-4))

    def lossy(module: Any, **options: Any) -> Any:
        model = honest(module, **options)
        model.register_comm_hook(None, lambda _state, bucket: scaled(bucket))
        return model

    torch.nn.parallel.DistributedDataParallel = lossy


@lie("straggler", rank=1)
def slow_rank(torch: Any, _check: Any) -> None:
    # Rank 1 takes three times as long as the others.
    honest = torch.mm

    def slow(left: Any, right: Any, **options: Any) -> Any:
        began = time.perf_counter()
        product = honest(left, right, **options)
        until = began + 3 * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass
        return product

    torch.mm = slow


@lie("all_reduce", rank=1)
def sum_swapped(torch: Any, _check: Any) -> None:
    # Two chunks arrive in each other's place, which a sum of ones would never show.
    after_into(torch.distributed, "all_reduce", lambda tensor: tensor[: 1 << 19].copy_(tensor[: 1 << 19].roll(1 << 18)))


@lie("all_reduce", rank=1)
def sum_wrong_after(torch: Any, _check: Any) -> None:
    # Rank 1 receives one element wrong.

    def spoil(tensor: Any) -> None:
        tensor[12345] += torch.ones(1, dtype=tensor.dtype)[0]

    after_into(torch.distributed, "all_reduce", spoil)


@lie("trainer")
def trainer_cannot_be_imported(_torch: Any, check: Any) -> None:
    # What an accelerate that is too old does: transformers is there, its Trainer is not.
    modules: dict[str, Any] = sys.modules
    after(check, "isolate", lambda _made: modules.update({"transformers.trainer": None}))


@lie("trainer")
def trainer_computes_in_float32(torch: Any, _check: Any) -> None:
    # bf16=True that changes nothing.
    honest = torch.autocast
    torch.autocast = lambda *given, **options: honest(*given, **{**options, "enabled": False})
