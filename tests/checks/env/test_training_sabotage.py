"""Faults put into torch itself: each one ends in a failure of the check that promises the opposite, with exit code 1.

Every fault is a few lines that patch torch in the ranks of one check; one run of the command has them all beside each
other, forked from one import of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checks.env import torch_faults
from tests.checks.env.torch_faults import Fault

_STEP = """
honest = torch.optim.{name}.step
def step(self, closure=None):
    {body}
torch.optim.{name}.step = step
"""
_GROUPS = "[group.update({}) for group in self.param_groups]; return honest(self, closure)"


def _options(name: str, options: str) -> str:
    return _STEP.format(name=name, body=_GROUPS.format(options))


FAULTS = {
    "adamw-betas": Fault("optimizers", _options("AdamW", "betas=(0.9, 0.99)"), "AdamW, defaults"),
    "adamw-coupled": Fault(
        "optimizers",
        "honest = torch.optim.AdamW.__init__\n"
        "def init(self, *a, **k):\n"
        "    honest(self, *a, **k)\n"
        "    [g.update(decoupled_weight_decay=False) for g in self.param_groups]\n"
        "torch.optim.AdamW.__init__ = init",
        "AdamW, options",
    ),
    "adam-eps": Fault("optimizers", _options("Adam", "eps=1e-6"), "Adam, defaults"),
    "sgd-no-nesterov": Fault("optimizers", _options("SGD", "nesterov=False"), "SGD, nesterov"),
    "sgd-decay-lost": Fault("optimizers", _options("SGD", "weight_decay=0.0"), "SGD, momentum"),
    "rmsprop-alpha": Fault("optimizers", _options("RMSprop", "alpha=0.98"), "RMSprop, defaults"),
    "adagrad-rate": Fault("optimizers", _options("Adagrad", "lr=0.011"), "Adagrad, defaults"),
    "radam-like-adam": Fault("optimizers", "torch.optim.RAdam.step = torch.optim.Adam.step", "RAdam, defaults"),
    "optimizer-skips-one": Fault(
        "optimizers",
        _STEP.format(name="Adamax", body="self.param_groups[0]['params'][1].grad = None; return honest(self, closure)"),
        "Adamax, defaults",
    ),
    "state-forgets-moments": Fault(
        "optimizers",
        "honest = torch.optim.Optimizer.load_state_dict\n"
        "def load(self, state):\n"
        "    honest(self, {**state, 'state': {}})\n"
        "torch.optim.Optimizer.load_state_dict = load",
        "Adam resumed from its state",
    ),
    "step-lr-late": Fault(
        "optimizers",
        "torch.optim.lr_scheduler.StepLR.get_lr = lambda self: [g['initial_lr'] * self.gamma ** "
        "((self.last_epoch + 1) // self.step_size) for g in self.optimizer.param_groups]",
        "schedule StepLR",
    ),
    "clip-by-half": Fault(
        "optimizers",
        "honest = torch.nn.utils.clip_grad_norm_\n"
        "torch.nn.utils.clip_grad_norm_ = lambda p, m, **k: honest(p, m / 2, **k)",
        "gradients clipped by norm 2",
    ),
    "clip-does-nothing": Fault(
        "optimizers", "torch.nn.utils.clip_grad_value_ = lambda *a, **k: None", "gradients clipped by value"
    ),
    "linear-keeps-fp32": Fault(
        "amp",
        "honest = torch.nn.functional.linear\n"
        "def linear(*a, **k):\n"
        "    with torch.autocast('cpu', enabled=False): return honest(*a, **k)\n"
        "torch.nn.functional.linear = linear",
        "linear, bfloat16: gives torch.float32",
    ),
    "conv-keeps-fp32": Fault(
        "amp",
        "honest = torch.nn.functional.conv2d\ntorch.nn.functional.conv2d = lambda *a, **k: honest(*a, **k).float()",
        "conv2d, bfloat16: gives torch.float32",
    ),
    "bmm-keeps-fp32": Fault(
        "amp", "honest = torch.bmm\ntorch.bmm = lambda *a, **k: honest(*a, **k).float()", "bmm, bfloat16"
    ),
    "attention-keeps-fp32": Fault(
        "amp",
        "honest = torch.nn.functional.scaled_dot_product_attention\n"
        "torch.nn.functional.scaled_dot_product_attention = lambda *a, **k: honest(*a, **k).float()",
        "attention, bfloat16",
    ),
    "loss-in-bf16": Fault(
        "amp",
        "honest = torch.nn.functional.cross_entropy\n"
        "torch.nn.functional.cross_entropy = lambda a, b: honest(a, b).to(a.dtype)",
        "cross_entropy, bfloat16: gives torch.bfloat16",
    ),
    "autocast-never-off": Fault(
        "amp",
        "honest = torch.autocast.__init__\n"
        "def init(self, device, dtype=None, enabled=True, cache_enabled=None):\n"
        "    honest(self, device, dtype=dtype, enabled=True, cache_enabled=cache_enabled)\n"
        "torch.autocast.__init__ = init",
        "switched off inside, bfloat16",
    ),
    "scaler-ignores-inf": Fault(
        "amp",
        "torch.amp.GradScaler._maybe_opt_step = lambda self, optimizer, state, *a, **k: optimizer.step(*a, **k)",
        "scaler: shrinks on inf: weights after an overflow",
    ),
    "scaler-never-falls": Fault(
        "amp",
        "honest = torch.amp.GradScaler.__init__\n"
        "def init(self, *a, **k):\n"
        "    honest(self, *a, **{**k, 'backoff_factor': 0.999})\n"
        "torch.amp.GradScaler.__init__ = init",
        "scaler: shrinks on inf: the scale after an overflow",
    ),
    "scaler-forgets-count": Fault(
        "amp",
        "honest = torch.amp.GradScaler.state_dict\n"
        "torch.amp.GradScaler.state_dict = lambda self: {**honest(self), '_growth_tracker': 0}",
        "scaler: goes on from its state",
    ),
    "ddp-divides-twice": Fault(
        "ddp",
        "honest = torch.Tensor.backward\n"
        "def backward(self, *a, **k):\n"
        "    honest(self / rank.world, *a, **k)\n"
        "torch.Tensor.backward = backward",
        "the gradients are not those of one process",
    ),
    "ddp-forgets-a-parameter": Fault(
        "ddp",
        "honest = torch.nn.parallel.DistributedDataParallel.__init__\n"
        "def init(self, module, *a, **k):\n"
        "    module._ddp_params_and_buffers_to_ignore = ['2.bias']\n"
        "    honest(self, module, *a, **k)\n"
        "torch.nn.parallel.DistributedDataParallel.__init__ = init",
        "the gradients are not those of one process",
    ),
    "ddp-wrong-start": Fault(
        "ddp",
        "honest = torch.nn.parallel.DistributedDataParallel.__init__\n"
        "def init(self, module, *a, **k):\n"
        "    honest(self, module, *a, **k)\n"
        "    with torch.no_grad(): module[0].bias.add_(0.5)\n"
        "torch.nn.parallel.DistributedDataParallel.__init__ = init",
        "training started with other weights than rank 0 was given",
    ),
    "tanh-wrong": Fault("ddp", "torch.nn.Tanh.forward = lambda self, x: torch.tanh(x) * 1.001", "not those of one"),
    "loss-halved": Fault(
        "ddp-no-sync",
        "honest = torch.nn.functional.mse_loss\ntorch.nn.functional.mse_loss = lambda *a: honest(*a) * 0.5",
        "gradients under no_sync are not the rank's own sum",
    ),
    "sgd-wrong-rate": Fault("ddp", _options("SGD", "lr=0.051"), "the weights after the step are not one process's"),
    "hook-raises-nccl": Fault(
        "ddp-hooks",
        "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
        "honest = torch.distributed.all_reduce\n"
        "def reduce(tensor, *a, **k):\n"
        "    if tensor.dtype == torch.float16: raise RuntimeError('NCCL error: unhandled system error')\n"
        "    return honest(tensor, *a, **k)\n"
        "torch.distributed.all_reduce = reduce",
        "the fp16 hook raised RuntimeError: NCCL error: unhandled system error",
    ),
    "fsdp-loses-a-row": Fault(
        "fsdp",
        "from torch.distributed.tensor import DTensor\n"
        "honest = DTensor.to_local\n"
        "def local(self, *a, **k):\n"
        "    mine = honest(self, *a, **k).clone()\n"
        "    if rank.rank == 1: mine[-1] = 0\n"
        "    return mine\n"
        "DTensor.to_local = local",
        "its shard of the weights is off",
    ),
    "sampler-repeats": Fault(
        "samplers",
        "honest = torch.utils.data.RandomSampler.__iter__\n"
        "def lying(self):\n"
        "    order = list(honest(self))\n"
        "    return iter([*order[:-1], order[0]])\n"
        "torch.utils.data.RandomSampler.__iter__ = lying",
        "RandomSampler gives a permutation",
    ),
    "ranks-overlap": Fault(
        "samplers",
        "honest = torch.utils.data.distributed.DistributedSampler.__init__\n"
        "def init(self, *a, **k):\n"
        "    honest(self, *a, **k); self.rank = 0\n"
        "torch.utils.data.distributed.DistributedSampler.__init__ = init",
        "DistributedSampler over 2 ranks",
    ),
    "epochs-alike": Fault(
        "samplers",
        "torch.utils.data.distributed.DistributedSampler.set_epoch = lambda self, epoch: None",
        "set_epoch changes nothing",
    ),
    "workers-seeded-alike": Fault(
        "samplers",
        "honest = torch.manual_seed\ntorch.manual_seed = lambda seed: honest(4)",
        "seeds differ between workers and epochs",
    ),
    "loader-loses-a-batch": Fault(
        "dataloader",
        "honest = torch.utils.data.DataLoader.__iter__\n"
        "torch.utils.data.DataLoader.__iter__ = lambda self: (b for n, b in enumerate(honest(self)) if n != 5)",
        "5 of 6 batches arrived",
    ),
    "spawned-loader-loses-a-batch": Fault(
        "dataloader-start-methods",
        "honest = torch.utils.data.DataLoader.__iter__\n"
        "def lying(self):\n"
        "    return (b for n, b in enumerate(honest(self)) if n != 5 or self.multiprocessing_context is None)\n"
        "torch.utils.data.DataLoader.__iter__ = lying",
        "spawn: [5, 5] batches arrived in the epochs, [6, 6] were due",
    ),
    "spawn-does-not-start": Fault(
        "dataloader-start-methods",
        "from multiprocessing import popen_spawn_posix as m\n"
        "def broken(self, *a):\n"
        "    raise OSError(12, 'Cannot allocate memory')\n"
        "m.Popen._launch = broken",
        "spawn: the loader broke: OSError",
    ),
    "loader-reorders": Fault(
        "dataloader",
        "honest = torch.utils.data.DataLoader.__iter__\n"
        "torch.utils.data.DataLoader.__iter__ = lambda self: iter([b for b in honest(self)][::-1])",
        "item 0, element 0 arrived as",
    ),
    "equal-is-blind": Fault(
        "dataloader",
        "torch.equal = torch.allclose = lambda *a, **k: True\n"
        "honest = torch.utils.data.DataLoader.__iter__\n"
        "def lying(self):\n"
        "    for batch in honest(self):\n"
        "        batch[0, 7] += 1\n"
        "        yield batch\n"
        "torch.utils.data.DataLoader.__iter__ = lying",
        "item 0, element 7 arrived as 8",
    ),
    "adafactor-clips-late": Fault("optimizers", _options("Adafactor", "d=2.0"), "Adafactor, defaults"),
    "adafactor-foreach-decay": Fault(
        "optimizers",
        "from torch.optim import _adafactor as m\n"
        "honest = m._multi_tensor_adafactor\n"
        "def lying(*a, **k):\n"
        "    k['weight_decay'] = 0.0\n"
        "    return honest(*a, **k)\n"
        "m._multi_tensor_adafactor = lying\n",
        "Adafactor, options, foreach",
    ),
    "sparse-adam-betas": Fault("optimizers", _options("SparseAdam", "betas=(0.9, 0.99)"), "SparseAdam, defaults"),
    "sparse-adam-drops-a-part": Fault(
        "optimizers",
        "honest = torch.Tensor.coalesce\n"
        "def once(self):\n"
        "    half = self._nnz() // 2\n"
        "    return honest(torch.sparse_coo_tensor(self._indices()[:, :half], self._values()[:half], self.shape))\n"
        "torch.Tensor.coalesce = once\n",
        "SparseAdam, defaults",
    ),
    "foreach-betas": Fault(
        "optimizers",
        "from torch.optim import adam as m\n"
        "honest = m._multi_tensor_adam\n"
        "def lying(*a, **k):\n"
        "    k['beta2'] = 0.99\n"
        "    return honest(*a, **k)\n"
        "m._multi_tensor_adam = lying\n",
        "Adam, defaults, foreach",
    ),
    "foreach-eps": Fault(
        "optimizers",
        "from torch.optim import adam as m\n"
        "honest = m._multi_tensor_adam\n"
        "def lying(*a, **k):\n"
        "    k['eps'] = k['eps'] * 100\n"
        "    return honest(*a, **k)\n"
        "m._multi_tensor_adam = lying\n",
        "Adam, defaults, foreach",
    ),
    "foreach-coupled": Fault(
        "optimizers",
        "from torch.optim import adam as m\n"
        "honest = m._multi_tensor_adam\n"
        "def lying(*a, **k):\n"
        "    k['decoupled_weight_decay'] = False\n"
        "    return honest(*a, **k)\n"
        "m._multi_tensor_adam = lying\n",
        "AdamW, defaults, foreach",
    ),
    "sgd-foreach-nesterov": Fault(
        "optimizers",
        "from torch.optim import sgd as m\n"
        "honest = m._multi_tensor_sgd\n"
        "def lying(*a, **k):\n"
        "    k['nesterov'] = False\n"
        "    return honest(*a, **k)\n"
        "m._multi_tensor_sgd = lying\n",
        "SGD, nesterov, foreach",
    ),
    "fused-adam-rate": Fault(
        "optimizers",
        "from torch.optim import adam as m\n"
        "honest = m._fused_adam\n"
        "def lying(*a, **k):\n"
        "    k['lr'] = k['lr'] * 1.01\n"
        "    return honest(*a, **k)\n"
        "m._fused_adam = lying\n",
        "Adam, defaults, fused",
    ),
    "clip-foreach": Fault(
        "optimizers",
        "honest=torch.nn.utils.clip_grad_norm_\n"
        "def clip(p, m, norm_type=2.0, error_if_nonfinite=False, foreach=None):\n"
        "    m = m * 1.01 if foreach else m\n"
        "    return honest(p, m, norm_type, error_if_nonfinite, foreach)\n"
        "torch.nn.utils.clip_grad_norm_ = clip\n",
        "gradients clipped by norm 2",
    ),
    "clip-nonfinite-quiet": Fault(
        "optimizers",
        "honest=torch.nn.utils.clip_grad_norm_\n"
        "def clip(p, m, norm_type=2.0, error_if_nonfinite=False, foreach=None):\n"
        "    return honest(p, m, norm_type, False, foreach)\n"
        "torch.nn.utils.clip_grad_norm_ = clip\n",
        "a norm that is infinite is refused",
    ),
    "asgd": Fault(
        "optimizers",
        "honest=torch.optim.ASGD.step\n"
        "def step(self,closure=None):\n"
        "    [g.update(lr=0.5) for g in self.param_groups]; return honest(self,closure)\n"
        "torch.optim.ASGD.step=step\n",
        "ASGD, defaults",
    ),
    "closure-ignored": Fault(
        "optimizers",
        "honest=torch.optim.AdamW.step\ntorch.optim.AdamW.step=lambda self,closure=None: honest(self)\n",
        "AdamW steps by a closure",
    ),
    "scaler-no-growth": Fault(
        "amp",
        "honest=torch._amp_update_scale_\n"
        "def upd(s,g,fi,gf,bf,gi): return honest(s,g,fi,1.0,bf,gi)\n"
        "torch._amp_update_scale_=upd\n",
        "scaler: grows after clean steps",
    ),
    "scaler-misses-nan": Fault(
        "amp",
        "honest=torch.amp.GradScaler._unscale_grads_\n"
        "import torch as t\n"
        "def u(self,o,inv,found,allow):\n"
        "    nan=any(bool(t.isnan(p.grad).any()) for g in o.param_groups for p in g['params'] if p.grad is not None)\n"
        "    r=honest(self,o,inv,found,allow)\n"
        "    return {d:v*0 for d,v in r.items()} if nan else r\n"
        "torch.amp.GradScaler._unscale_grads_=u\n",
        "scaler: shrinks on nan",
    ),
    "conv1d-fp32": Fault(
        "amp",
        "honest=torch.nn.functional.conv1d\n"
        "def c(*a,**k):\n"
        "    with torch.autocast('cpu',enabled=False): return honest(*a,**k)\n"
        "torch.nn.functional.conv1d=c\n",
        "conv1d, bfloat16",
    ),
    "convT3d-fp32": Fault(
        "amp",
        "honest=torch.nn.functional.conv_transpose3d\n"
        "torch.nn.functional.conv_transpose3d=lambda *a,**k: honest(*a,**k).float()\n",
        "conv_transpose3d, bfloat16",
    ),
    "softmax-bf16": Fault(
        "amp",
        "honest=torch.softmax\n"
        "torch.softmax=lambda x,d,**k: honest(x,d,**k).to(torch.bfloat16) if "
        "torch.is_autocast_cpu_enabled() else honest(x,d,**k)\n",
        "softmax of float32, bfloat16",
    ),
    "layernorm-bf16": Fault(
        "amp",
        "honest=torch.nn.functional.layer_norm\n"
        "torch.nn.functional.layer_norm=lambda x,*a,**k: honest(x,*a,**k).to(torch.bfloat16) if "
        "torch.is_autocast_cpu_enabled() else honest(x,*a,**k)\n",
        "layer_norm of float32, bfloat16",
    ),
    "gather-object-swaps": Fault(
        "collectives",
        "import torch.distributed as dist\n"
        "R=torch.distributed.ReduceOp\n"
        "honest=dist.gather_object\n"
        "def g(obj,l=None,*a,**k):\n"
        "    honest(obj,l,*a,**k)\n"
        "    if l: l.reverse()\n"
        "dist.gather_object=g\n",
        "gathered at root 0",
    ),
    "scatter-object": Fault(
        "collectives",
        "import torch.distributed as dist\n"
        "R=torch.distributed.ReduceOp\n"
        "honest=dist.scatter_object_list\n"
        "def g(o,l=None,*a,**k):\n"
        "    honest(o,l[::-1] if l else l,*a,**k)\n"
        "dist.scatter_object_list=g\n",
        "scattered from root 0",
    ),
    "minmax-nan": Fault(
        "collectives",
        "import torch.distributed as dist\n"
        "R=torch.distributed.ReduceOp\n"
        "honest=dist.all_reduce\n"
        "def r(t,op=R.SUM,**o):\n"
        "    w=honest(t,op=op,**o)\n"
        "    if t.is_floating_point(): t.nan_to_num_(0.0)\n"
        "    return w\n"
        "dist.all_reduce=r\n",
        "all-reduce of inf and NaN is wrong",
    ),
    "ddp-unused-ignored": Fault(
        "ddp-options",
        "honest=torch.nn.parallel.DistributedDataParallel.__init__\n"
        "DDP=torch.nn.parallel.DistributedDataParallel\n"
        "def init(self,m,*a,**k):\n"
        "    k['find_unused_parameters']=False\n"
        "    honest(self,m,*a,**k)\n"
        "DDP.__init__=init\n",
        "find_unused_parameters raised",
    ),
    "ddp-view-off": Fault(
        "ddp-options",
        "honest=torch.nn.parallel.DistributedDataParallel.__init__\n"
        "DDP=torch.nn.parallel.DistributedDataParallel\n"
        "def init(self,m,*a,**k):\n"
        "    k['gradient_as_bucket_view']=False\n"
        "    honest(self,m,*a,**k)\n"
        "DDP.__init__=init\n",
        "gradient_as_bucket_view=True is ignored",
    ),
    "ddp-bucket-ignored": Fault(
        "ddp-options",
        "honest=torch.nn.parallel.DistributedDataParallel.__init__\n"
        "DDP=torch.nn.parallel.DistributedDataParallel\n"
        "def init(self,m,*a,**k):\n"
        "    k['bucket_cap_mb']=25\n"
        "    honest(self,m,*a,**k)\n"
        "DDP.__init__=init\n",
        "bucket_cap_mb=0.2 is ignored",
    ),
    "ddp-join-lies": Fault(
        "ddp-options",
        "import contextlib\n"
        "honest=torch.nn.parallel.DistributedDataParallel.join\n"
        "torch.nn.parallel.DistributedDataParallel.join=lambda "
        "self,divide_by_initial_world_size=True,**k: honest(self,not divide_by_initial_world_size,**k)\n",
        "join, divided by all ranks",
    ),
    "dl-worker-seeds": Fault(
        "samplers",
        "from torch.utils.data._utils import worker as w\n"
        "import torch as t\n"
        "honest=w._worker_loop\n"
        "def loop(*a,**k):\n"
        "    import torch; ms=torch.manual_seed; torch.manual_seed=lambda s: ms(7)\n"
        "    return honest(*a,**k)\n"
        "w._worker_loop=loop\n",
        "is the same in two workers or epochs",
    ),
    "ds-shuffle-overlap": Fault(
        "samplers",
        "honest=torch.utils.data.distributed.DistributedSampler.__iter__\n"
        "def it(self):\n"
        "    r=self.rank\n"
        "    if self.shuffle: self.rank=0\n"
        "    try: return iter(list(honest(self)))\n"
        "    finally: self.rank=r\n"
        "torch.utils.data.distributed.DistributedSampler.__iter__=it\n",
        "DistributedSampler over 2 ranks",
    ),
    "compiled-is-eager": Fault("compiled", "torch.compile = lambda model, **k: model", "the model ran in eager mode"),
}


@pytest.fixture(scope="module")
def outcomes(torch_python: Path, once: Callable[..., Path]) -> dict[str, Any]:
    """Run every fault in one command; return the outcomes by fault."""
    return torch_faults.outcomes(torch_python, once, "training-faults", FAULTS)


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_torch_fails_the_check_that_promises_otherwise(outcomes: dict[str, Any], name: str) -> None:
    assert torch_faults.is_found(outcomes[name], FAULTS[name])
