"""Faults of torch in loaders, sharded and wrapped training, and optimizers after many steps or of odd tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checks.env import torch_faults
from tests.checks.env.torch_faults import Fault, around, rate, replaced

_ALONE = """
from torch.utils.data import dataloader as module
single = module._SingleProcessDataLoaderIter
honest = single.{name}
def lying(self, *a, **k):
    {body}
single.{name} = lying
"""


def _alone(body: str, message: str, name: str = "_next_data") -> Fault:
    return Fault("dataloader", _ALONE.format(name=name, body=body), message)


def _loader(change: str, message: str) -> Fault:
    patch = f"""
honest = torch.utils.data.DataLoader.__iter__
def change(batches): {change}
torch.utils.data.DataLoader.__iter__ = lambda self: honest(self) if self.num_workers else change(list(honest(self)))
"""
    return Fault("dataloader", patch, message)


# DDP's own name for a parameter of the outermost module begins with a dot.
_IGNORED = """
module._ddp_params_and_buffers_to_ignore = [f'.{{n}}' for n, p in module.named_parameters() if {when}]
honest(self, module, *a, **k)"""
_KINDS = "parameters of other kinds"


def _wrapped(body: str, message: str) -> Fault:
    name, given = "torch.nn.parallel.DistributedDataParallel.__init__", "self, module, *a, **k"
    return around("ddp-options", name, body, message, given)


_NARROW = "p[0].dtype == torch.bfloat16"
_FULLY = "import torch.distributed.fsdp as fsdp\nfrom torch.distributed.fsdp import FSDPModule\n"
_SPLIT = """
from torch.distributed.tensor import parallel
module = parallel.{name}
honest = module.{function}
def lying(*a, **k):
    {body}
module.{function} = staticmethod(lying)
"""


def _brought_back(change: str, message: str) -> Fault:
    patch = f"""
from torch.distributed import checkpoint
honest = checkpoint.load
def lying(state, **k):
    honest(state, **k)
    {change}
checkpoint.load = lying
"""
    return Fault("checkpoint", patch, f"brings back other numbers: {message}")


def _split(name: str, function: str, body: str) -> Fault:
    return Fault("fsdp", _SPLIT.format(name=name, function=function, body=body), "tensor parallel")


FAULTS = {
    "alone-loses": _loader("return iter(batches[:-1])", "without workers, in order: 5 batches arrived"),
    "alone-reorders": _loader("return iter(batches[::-1])", "without workers, in order: the tensors of batch 0"),
    "alone-doubles": _loader("return iter([batches[0], *batches[:-1]])", "without workers, shuffled: batches"),
    "alone-keeps-the-last": around(
        "dataloader",
        "torch.utils.data.DataLoader.__init__",
        "if not k.get('num_workers'): k.pop('drop_last', None)\nhonest(self, *a, **k)",
        "without workers, last batch dropped: 6 batches",
        given="self, *a, **k",
    ),
    "alone-collates-wrong": _alone(
        "made = honest(self, *a, **k); made['row'][-1] += 1; return made", "without workers, in order: the tensors"
    ),
    "sgd-large": rate("_single_tensor_sgd", "p[0].numel() > 4000", "SGD of tensors of 9279 numbers"),
    "sgd-large-foreach": rate("_multi_tensor_sgd", "max(map(torch.numel, p)) > 4000", "SGD of tensors of 9279 numbers"),
    "adamw-many-foreach": rate("_multi_tensor_adam", "len(p) > 8", "AdamW of tensors of 9279 numbers"),
    "adam-narrow": rate("_single_tensor_adam", _NARROW, "Adam in bfloat16"),
    "adam-narrow-foreach": rate("_multi_tensor_adam", _NARROW, "Adam in bfloat16"),
    "adam-narrow-fused": rate("_fused_adam", _NARROW, "Adam in bfloat16"),
    "sgd-narrow": rate("_single_tensor_sgd", _NARROW, "SGD in bfloat16"),
    "shards-forget-the-first-half": Fault(
        "fsdp",
        f"{_FULLY}honest = FSDPModule.set_requires_gradient_sync\n"
        "def lying(self, on, **k):\n"
        "    honest(self, on, **k)\n"
        "    if not on: self.zero_grad()\n"
        "    if on: [p.grad.zero_() for p in self.parameters() if p.grad is not None]\n"
        "FSDPModule.set_requires_gradient_sync = lying",
        "gradients accumulated is off",
    ),
    "shards-never-wait-to-send": Fault(
        "fsdp",
        f"{_FULLY}FSDPModule.set_requires_gradient_sync = lambda self, on, **k: None if on else [\n"
        "    setattr(state._fsdp_param_group, 'reduce_grads', False) for m in self.modules()\n"
        "    if (state := getattr(m, '_get_fsdp_state', lambda: None)()) and state._fsdp_param_group]",
        "gradients accumulated without sending",
    ),
    "offloaded-rate": around(
        "fsdp",
        "fsdp.fully_shard",
        "if 'offload_policy' in k:\n"
        "    m.register_forward_hook(lambda m, given, out: out * 1.01)\n"
        "return honest(m, **k)",
        "parameters kept on the CPU is off",
        given="m, **k",
        before="import torch.distributed.fsdp as fsdp",
    ),
    "columns-doubled": _split("ColwiseParallel", "_prepare_output_fn", "return honest(*a, **k) * 2"),
    "rows-not-added": _split("RowwiseParallel", "_prepare_output_fn", "return honest(*a, **k) * 0.5"),
    "brought-back-cut": _brought_back("state['large'][1 << 19:] = 0", "a large tensor"),
    "brought-back-turned": _brought_back("state['turned'].fill_(1)", "a turned tensor"),
    "brought-back-step": _brought_back("state['plain']['step'] += 1", "plain values"),
    "brought-back-moments": _brought_back(
        "state['optimizer']['state'][0]['exp_avg'].zero_()", "moments of an optimizer"
    ),
    "brought-back-rate": _brought_back("state['optimizer']['param_groups'][0]['lr'] = 0.5", "options of an optimizer"),
    "zero-keeps-all": Fault(
        "ddp-options",
        "import torch.distributed.optim as module\n"
        "module.ZeroRedundancyOptimizer = lambda p, optimizer_class, **k: optimizer_class(p, **k)",
        "ZeroRedundancyOptimizer",
    ),
    "zero-rate": replaced(
        "ddp-options",
        "module.__init__",
        "lambda self, *a, **k: honest(self, *a, **{**k, 'lr': k['lr'] * 1.01})",
        "ZeroRedundancyOptimizer is off",
        before="from torch.distributed.optim import ZeroRedundancyOptimizer as module",
    ),
    "never-averaged-after": Fault(
        "ddp-options",
        "from torch.distributed.algorithms.model_averaging import averagers\n"
        "averagers.PeriodicModelAverager.average_parameters = lambda self, params: None",
        "post-local SGD is off",
    ),
    "always-averaged": Fault(
        "ddp-options",
        "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook as module\n"
        "module.post_localSGD_hook = lambda state, bucket: default_hooks.allreduce_hook(None, bucket)",
        "post-local SGD is off",
    ),
    "split-in-name-only": Fault(
        "fsdp",
        "from torch.distributed.tensor import parallel\nparallel.parallelize_module = lambda module, *a, **k: module",
        "tensor parallel",
    ),
    "adam-late": rate("_single_tensor_adam", "float(a[4][0]) >= 60", "Adam of 120 steps"),
    "adamw-late-foreach": rate("_multi_tensor_adam", "float(a[4][0]) >= 60", "AdamW of 120 steps"),
    "momentum-lost-late": around(
        "optimizers",
        "torch.optim.SGD.step",
        "count = self.__dict__.setdefault('count', [0])\ncount[0] += 1\n"
        "if count[0] == 60: [state.pop('momentum_buffer', None) for state in self.state.values()]\n"
        "return honest(self, closure)",
        "SGD of 120 steps",
        given="self, closure=None",
    ),
    "scaler-tires": around(
        "amp",
        "torch.amp.GradScaler._maybe_opt_step",
        "count = self.__dict__.setdefault('count', [0])\ncount[0] += 1\n"
        "return optimizer.step(*a, **k) if count[0] > 9 else honest(self, optimizer, state, *a, **k)",
        "scaler: skips a late overflow",
        given="self, optimizer, state, *a, **k",
    ),
    "long-order-stays": replaced(
        "samplers",
        "torch.utils.data.RandomSampler.__iter__",
        "lambda self: iter(range(len(self.data_source))) if len(self.data_source) > 1000 else honest(self)",
        "most of many indices are left in their places",
    ),
    "epochs-in-one-order": around(
        "samplers",
        "torch.utils.data.RandomSampler.__iter__",
        "if self.generator is not None: return honest(self)\n"
        "self.generator = torch.Generator().manual_seed(3)\norder = list(honest(self))\nself.generator = None\n"
        "return iter(order)",
        "two epochs come in one order",
        given="self",
    ),
    "long-data-short": around(
        "samplers",
        "torch.utils.data.DataLoader.__iter__",
        "batches = honest(self)\n"
        "long = hasattr(self.dataset, '__len__') and len(self.dataset) > 1000\n"
        "return iter(list(batches)[:-1]) if long else batches",
        "a loader of many",
        given="self",
    ),
    "frozen-apart": _wrapped(
        "honest(self, module, *a, **k)\n"
        "with torch.no_grad(): [p.add_(rank.rank) for p in module.parameters() if not p.requires_grad]",
        "a frozen parameter of rank 0 is 1",
    ),
    "narrow-not-sent": _wrapped(_IGNORED.format(when="p.dtype == torch.bfloat16"), _KINDS),
    "single-not-sent": _wrapped(_IGNORED.format(when="p.numel() == 1"), _KINDS),
    "state-of-another-type": around(
        "ddp-options",
        "torch.nn.Module.state_dict",
        "state = honest(self, *a, **k)\n"
        "return {n: t.half() for n, t in state.items()} if hasattr(self, 'reducer') else state",
        "the state of the wrapped model",
        given="self, *a, **k",
    ),
    "whole-state-loses-a-part": around(
        "fsdp",
        "states.get_model_state_dict",
        "state = honest(model, **k)\n"
        "return {n: t * 0 if n.endswith('bias') and k.get('options') else t for n, t in state.items()}",
        "the whole state is off",
        given="model, **k",
        before="from torch.distributed.checkpoint import state_dict as states",
    ),
    "loaded-shards-empty": around(
        "fsdp",
        "checkpoint.load",
        "honest(state, **k)\n[t.to_local().zero_() for t in state['model'].values()]",
        "shards saved and loaded is off",
        given="state, **k",
        before="from torch.distributed import checkpoint",
    ),
    "alone-raises": _alone("raise KeyError('lost')", "without workers, in order: raised KeyError"),
}


@pytest.fixture(scope="module")
def outcomes(torch_python: Path, once: Callable[..., Path]) -> dict[str, Any]:
    """Run every fault in one command; return the outcomes by fault."""
    return torch_faults.outcomes(torch_python, once, "parallel-faults", FAULTS)


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_loaders_and_shards_fails_the_check_that_promises_otherwise(
    outcomes: dict[str, Any], name: str
) -> None:
    assert torch_faults.is_found(outcomes[name], FAULTS[name])
