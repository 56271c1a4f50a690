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
from tests.checks.env.torch_faults import Fault, around, replaced

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
    "adamw-coupled": around(
        "optimizers",
        "torch.optim.AdamW.__init__",
        "honest(self, *a, **k)\n[g.update(decoupled_weight_decay=False) for g in self.param_groups]",
        "AdamW, options",
        given="self, *a, **k",
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
    "state-forgets-moments": around(
        "optimizers",
        "torch.optim.Optimizer.load_state_dict",
        "honest(self, {**state, 'state': {}})",
        "Adam resumed from its state",
        given="self, state",
    ),
    "step-lr-late": Fault(
        "optimizers",
        "torch.optim.lr_scheduler.StepLR.get_lr = lambda self: [g['initial_lr'] * self.gamma ** "
        "((self.last_epoch + 1) // self.step_size) for g in self.optimizer.param_groups]",
        "schedule StepLR",
    ),
    "clip-by-half": replaced(
        "optimizers",
        "torch.nn.utils.clip_grad_norm_",
        "lambda p, m, **k: honest(p, m / 2, **k)",
        "gradients clipped by norm 2",
    ),
    "clip-does-nothing": Fault(
        "optimizers", "torch.nn.utils.clip_grad_value_ = lambda *a, **k: None", "gradients clipped by value"
    ),
    "linear-keeps-fp32": around(
        "amp",
        "torch.nn.functional.linear",
        "with torch.autocast('cpu', enabled=False): return honest(*a, **k)",
        "linear, bfloat16: gives torch.float32",
    ),
    "conv-keeps-fp32": replaced(
        "amp",
        "torch.nn.functional.conv2d",
        "lambda *a, **k: honest(*a, **k).float()",
        "conv2d, bfloat16: gives torch.float32",
    ),
    "bmm-keeps-fp32": replaced("amp", "torch.bmm", "lambda *a, **k: honest(*a, **k).float()", "bmm, bfloat16"),
    "attention-keeps-fp32": replaced(
        "amp",
        "torch.nn.functional.scaled_dot_product_attention",
        "lambda *a, **k: honest(*a, **k).float()",
        "attention, bfloat16",
    ),
    "loss-in-bf16": replaced(
        "amp",
        "torch.nn.functional.cross_entropy",
        "lambda a, b: honest(a, b).to(a.dtype)",
        "cross_entropy, bfloat16: gives torch.bfloat16",
    ),
    "autocast-never-off": around(
        "amp",
        "torch.autocast.__init__",
        "honest(self, device, dtype=dtype, enabled=True, cache_enabled=cache_enabled)",
        "switched off inside, bfloat16",
        given="self, device, dtype=None, enabled=True, cache_enabled=None",
    ),
    "scaler-ignores-inf": Fault(
        "amp",
        "torch.amp.GradScaler._maybe_opt_step = lambda self, optimizer, state, *a, **k: optimizer.step(*a, **k)",
        "scaler: shrinks on inf: weights after an overflow",
    ),
    "scaler-never-falls": around(
        "amp",
        "torch.amp.GradScaler.__init__",
        "honest(self, *a, **{**k, 'backoff_factor': 0.999})",
        "scaler: shrinks on inf: the scale after an overflow",
        given="self, *a, **k",
    ),
    "scaler-forgets-count": replaced(
        "amp",
        "torch.amp.GradScaler.state_dict",
        "lambda self: {**honest(self), '_growth_tracker': 0}",
        "scaler: goes on from its state",
    ),
    "ddp-divides-twice": around(
        "ddp",
        "torch.Tensor.backward",
        "honest(self / rank.world, *a, **k)",
        "the gradients are not those of one process",
        given="self, *a, **k",
    ),
    "ddp-forgets-a-parameter": around(
        "ddp",
        "torch.nn.parallel.DistributedDataParallel.__init__",
        "module._ddp_params_and_buffers_to_ignore = ['2.bias']\nhonest(self, module, *a, **k)",
        "the gradients are not those of one process",
        given="self, module, *a, **k",
    ),
    "ddp-wrong-start": around(
        "ddp",
        "torch.nn.parallel.DistributedDataParallel.__init__",
        "honest(self, module, *a, **k)\nwith torch.no_grad(): module[0].bias.add_(0.5)",
        "training started with other weights than rank 0 was given",
        given="self, module, *a, **k",
    ),
    "tanh-wrong": Fault("ddp", "torch.nn.Tanh.forward = lambda self, x: torch.tanh(x) * 1.001", "not those of one"),
    "loss-halved": replaced(
        "ddp-no-sync",
        "torch.nn.functional.mse_loss",
        "lambda *a: honest(*a) * 0.5",
        "gradients under no_sync are not the rank's own sum",
    ),
    "sgd-wrong-rate": Fault("ddp", _options("SGD", "lr=0.051"), "the weights after the step are not one process's"),
    "hook-raises-nccl": around(
        "ddp-hooks",
        "torch.distributed.all_reduce",
        "if tensor.dtype == torch.float16: raise RuntimeError('NCCL error: unhandled system error')\n"
        "return honest(tensor, *a, **k)",
        "the fp16 hook raised RuntimeError: NCCL error: unhandled system error",
        given="tensor, *a, **k",
        before="from torch.distributed.algorithms.ddp_comm_hooks import default_hooks",
    ),
    "fsdp-loses-a-row": around(
        "fsdp",
        "DTensor.to_local",
        "mine = honest(self, *a, **k).clone()\nif rank.rank == 1: mine[-1] = 0\nreturn mine",
        "its shard of the weights is off",
        given="self, *a, **k",
        before="from torch.distributed.tensor import DTensor",
    ),
    "sampler-repeats": around(
        "samplers",
        "torch.utils.data.RandomSampler.__iter__",
        "order = list(honest(self))\nreturn iter([*order[:-1], order[0]])",
        "RandomSampler gives a permutation",
        given="self",
    ),
    "ranks-overlap": around(
        "samplers",
        "torch.utils.data.distributed.DistributedSampler.__init__",
        "honest(self, *a, **k); self.rank = 0",
        "DistributedSampler over 2 ranks",
        given="self, *a, **k",
    ),
    "epochs-alike": Fault(
        "samplers",
        "torch.utils.data.distributed.DistributedSampler.set_epoch = lambda self, epoch: None",
        "set_epoch changes nothing",
    ),
    "workers-seeded-alike": replaced(
        "samplers", "torch.manual_seed", "lambda seed: honest(4)", "seeds differ between workers and epochs"
    ),
    "loader-loses-a-batch": replaced(
        "dataloader",
        "torch.utils.data.DataLoader.__iter__",
        "lambda self: (b for n, b in enumerate(honest(self)) if n != 5)",
        "5 of 6 batches arrived",
    ),
    "spawned-loader-loses-a-batch": around(
        "dataloader-start-methods",
        "torch.utils.data.DataLoader.__iter__",
        "return (b for n, b in enumerate(honest(self)) if n != 5 or self.multiprocessing_context is None)",
        "spawn: [5, 5] batches arrived in the epochs, [6, 6] were due",
        given="self",
    ),
    "spawn-does-not-start": Fault(
        "dataloader-start-methods",
        "from multiprocessing import popen_spawn_posix as m\n"
        "def broken(self, *a):\n"
        "    raise OSError(12, 'Cannot allocate memory')\n"
        "m.Popen._launch = broken",
        "spawn: the loader broke: OSError",
    ),
    "loader-reorders": replaced(
        "dataloader",
        "torch.utils.data.DataLoader.__iter__",
        "lambda self: iter([b for b in honest(self)][::-1])",
        "item 0, element 0 arrived as",
    ),
    "equal-is-blind": around(
        "dataloader",
        "torch.utils.data.DataLoader.__iter__",
        "for batch in honest(self):\n    batch[0, 7] += 1\n    yield batch",
        "item 0, element 7 arrived as 8",
        given="self",
        before="torch.equal = torch.allclose = lambda *a, **k: True",
    ),
    "adafactor-clips-late": Fault("optimizers", _options("Adafactor", "d=2.0"), "Adafactor, defaults"),
    "adafactor-foreach-decay": around(
        "optimizers",
        "m._multi_tensor_adafactor",
        "k['weight_decay'] = 0.0\nreturn honest(*a, **k)",
        "Adafactor, options, foreach",
        before="from torch.optim import _adafactor as m",
    ),
    "sparse-adam-betas": Fault("optimizers", _options("SparseAdam", "betas=(0.9, 0.99)"), "SparseAdam, defaults"),
    "sparse-adam-drops-a-part": around(
        "optimizers",
        "torch.Tensor.coalesce",
        "half = self._nnz() // 2\n"
        "return honest(torch.sparse_coo_tensor(self._indices()[:, :half], self._values()[:half], self.shape))",
        "SparseAdam, defaults",
        given="self",
    ),
    "foreach-betas": around(
        "optimizers",
        "m._multi_tensor_adam",
        "k['beta2'] = 0.99\nreturn honest(*a, **k)",
        "Adam, defaults, foreach",
        before="from torch.optim import adam as m",
    ),
    "foreach-eps": around(
        "optimizers",
        "m._multi_tensor_adam",
        "k['eps'] = k['eps'] * 100\nreturn honest(*a, **k)",
        "Adam, defaults, foreach",
        before="from torch.optim import adam as m",
    ),
    "foreach-coupled": around(
        "optimizers",
        "m._multi_tensor_adam",
        "k['decoupled_weight_decay'] = False\nreturn honest(*a, **k)",
        "AdamW, defaults, foreach",
        before="from torch.optim import adam as m",
    ),
    "sgd-foreach-nesterov": around(
        "optimizers",
        "m._multi_tensor_sgd",
        "k['nesterov'] = False\nreturn honest(*a, **k)",
        "SGD, nesterov, foreach",
        before="from torch.optim import sgd as m",
    ),
    "fused-adam-rate": around(
        "optimizers",
        "m._fused_adam",
        "k['lr'] = k['lr'] * 1.01\nreturn honest(*a, **k)",
        "Adam, defaults, fused",
        before="from torch.optim import adam as m",
    ),
    "clip-foreach": around(
        "optimizers",
        "torch.nn.utils.clip_grad_norm_",
        "m = m * 1.01 if foreach else m\nreturn honest(p, m, norm_type, error_if_nonfinite, foreach)",
        "gradients clipped by norm 2",
        given="p, m, norm_type=2.0, error_if_nonfinite=False, foreach=None",
    ),
    "clip-nonfinite-quiet": around(
        "optimizers",
        "torch.nn.utils.clip_grad_norm_",
        "return honest(p, m, norm_type, False, foreach)",
        "a norm that is infinite is refused",
        given="p, m, norm_type=2.0, error_if_nonfinite=False, foreach=None",
    ),
    "asgd": around(
        "optimizers",
        "torch.optim.ASGD.step",
        "[g.update(lr=0.5) for g in self.param_groups]; return honest(self,closure)",
        "ASGD, defaults",
        given="self,closure=None",
    ),
    "closure-ignored": replaced(
        "optimizers", "torch.optim.AdamW.step", "lambda self,closure=None: honest(self)", "AdamW steps by a closure"
    ),
    "scaler-no-growth": around(
        "amp",
        "torch._amp_update_scale_",
        "return honest(s,g,fi,1.0,bf,gi)",
        "scaler: grows after clean steps",
        given="s,g,fi,gf,bf,gi",
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
    "conv1d-fp32": around(
        "amp",
        "torch.nn.functional.conv1d",
        "with torch.autocast('cpu',enabled=False): return honest(*a,**k)",
        "conv1d, bfloat16",
    ),
    "convT3d-fp32": replaced(
        "amp",
        "torch.nn.functional.conv_transpose3d",
        "lambda *a,**k: honest(*a,**k).float()",
        "conv_transpose3d, bfloat16",
    ),
    "softmax-bf16": replaced(
        "amp",
        "torch.softmax",
        "lambda x,d,**k: honest(x,d,**k).to(torch.bfloat16) if torch.is_autocast_cpu_enabled() else honest(x,d,**k)",
        "softmax of float32, bfloat16",
    ),
    "layernorm-bf16": replaced(
        "amp",
        "torch.nn.functional.layer_norm",
        "lambda x,*a,**k: honest(x,*a,**k).to(torch.bfloat16) if torch.is_autocast_cpu_enabled() else honest(x,*a,**k)",
        "layer_norm of float32, bfloat16",
    ),
    "gather-object-swaps": around(
        "collectives",
        "dist.gather_object",
        "honest(obj,l,*a,**k)\nif l: l.reverse()",
        "gathered at root 0",
        given="obj,l=None,*a,**k",
        before="import torch.distributed as dist\nR=torch.distributed.ReduceOp",
    ),
    "scatter-object": around(
        "collectives",
        "dist.scatter_object_list",
        "honest(o,l[::-1] if l else l,*a,**k)",
        "scattered from root 0",
        given="o,l=None,*a,**k",
        before="import torch.distributed as dist\nR=torch.distributed.ReduceOp",
    ),
    "minmax-nan": around(
        "collectives",
        "dist.all_reduce",
        "w=honest(t,op=op,**o)\nif t.is_floating_point(): t.nan_to_num_(0.0)\nreturn w",
        "all-reduce of inf and NaN is wrong",
        given="t,op=R.SUM,**o",
        before="import torch.distributed as dist\nR=torch.distributed.ReduceOp",
    ),
    "ddp-unused-ignored": around(
        "ddp-options",
        "torch.nn.parallel.DistributedDataParallel.__init__",
        "k['find_unused_parameters']=False\nhonest(self,m,*a,**k)",
        "find_unused_parameters raised",
        given="self,m,*a,**k",
    ),
    "ddp-view-off": around(
        "ddp-options",
        "torch.nn.parallel.DistributedDataParallel.__init__",
        "k['gradient_as_bucket_view']=False\nhonest(self,m,*a,**k)",
        "gradient_as_bucket_view=True is ignored",
        given="self,m,*a,**k",
    ),
    "ddp-bucket-ignored": around(
        "ddp-options",
        "torch.nn.parallel.DistributedDataParallel.__init__",
        "k['bucket_cap_mb']=25\nhonest(self,m,*a,**k)",
        "bucket_cap_mb=0.2 is ignored",
        given="self,m,*a,**k",
    ),
    "ddp-join-lies": replaced(
        "ddp-options",
        "torch.nn.parallel.DistributedDataParallel.join",
        "lambda self,divide_by_initial_world_size=True,**k: honest(self,not divide_by_initial_world_size,**k)",
        "join, divided by all ranks",
        before="import contextlib",
    ),
    "dl-worker-seeds": around(
        "samplers",
        "w._worker_loop",
        "import torch; ms=torch.manual_seed; torch.manual_seed=lambda s: ms(7)\nreturn honest(*a,**k)",
        "is the same in two workers or epochs",
        before="from torch.utils.data._utils import worker as w\nimport torch as t",
    ),
    "ds-shuffle-overlap": around(
        "samplers",
        "torch.utils.data.distributed.DistributedSampler.__iter__",
        "r=self.rank\nif self.shuffle: self.rank=0\ntry: return iter(list(honest(self)))\nfinally: self.rank=r",
        "DistributedSampler over 2 ranks",
        given="self",
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
