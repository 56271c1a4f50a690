"""Operations of extensions that run on a GPU only. Each returns the result and what torch computes in float32."""

from __future__ import annotations

from typing import Any

Result = tuple[Any, Any]
_EPSILON = 1e-6


def _random(device: str, *shape: int, dtype: str = "float16") -> Any:
    import torch

    torch.manual_seed(len(shape))
    return torch.randn(*shape).to(device=device, dtype=getattr(torch, dtype))


def _attention(device: str, compute: Any) -> Result:
    """Compute attention of (batch, sequence, heads, width), as flash-attn and xformers lay it out."""
    import torch

    query, keys, values = (_random(device, 1, 16, 1, 64) * scale for scale in (1.0, 0.5, 2.0))
    result = compute(query, keys, values)
    turned = [part.float().transpose(1, 2) for part in (query, keys, values)]
    expected = torch.softmax(turned[0] @ turned[1].transpose(2, 3) / 8.0, dim=-1) @ turned[2]
    return (result[0] if isinstance(result, tuple) else result), expected.transpose(1, 2).contiguous()


def flash_attention(device: str) -> Result:
    """Compute attention with flash-attn."""
    from flash_attn import flash_attn_func

    return _attention(device, flash_attn_func)


def flash_attention_4(device: str) -> Result:
    """Compute attention with flash-attn 4."""
    from flash_attn.cute import flash_attn_func

    return _attention(device, flash_attn_func)


def xformers_attention(device: str) -> Result:
    """Compute attention with xformers."""
    from xformers.ops import memory_efficient_attention

    return _attention(device, memory_efficient_attention)


def _norm(device: str, compute: Any) -> Result:
    rows, weight = _random(device, 4, 128), _random(device, 128)
    result = compute(rows, weight)
    wide = rows.float()
    return result, wide * (wide.pow(2).mean(-1, keepdim=True) + _EPSILON).rsqrt() * weight.float()


def vllm_norm(device: str) -> Result:
    """Normalize rows with the operator that vllm registers."""
    import importlib

    import torch

    importlib.import_module("vllm._custom_ops")

    def compute(rows: Any, weight: Any) -> Any:
        result = torch.empty_like(rows)
        torch.ops._C.rms_norm(result, rows, weight, _EPSILON)  # noqa: SLF001 (the name under which vllm registers it)
        return result

    return _norm(device, compute)


def sglang_norm(device: str) -> Result:
    """Normalize rows with sgl-kernel."""
    import sgl_kernel

    return _norm(device, lambda rows, weight: sgl_kernel.rmsnorm(rows, weight, _EPSILON))


def flashinfer_norm(device: str) -> Result:
    """Normalize rows with flashinfer, which compiles the kernel unless its cache has it."""
    import flashinfer

    return _norm(device, lambda rows, weight: flashinfer.norm.rmsnorm(rows, weight, eps=_EPSILON))


def causal_convolution(device: str) -> Result:
    """Convolve each channel with its own weights and with what came before."""
    import torch
    from causal_conv1d import causal_conv1d_fn

    signal, weight = _random(device, 1, 8, 32), _random(device, 8, 4)
    wide = torch.nn.functional.conv1d(signal.float(), weight.float()[:, None], padding=3, groups=8)
    return causal_conv1d_fn(signal, weight), wide[..., :32]


def selective_scan(device: str) -> Result:
    """Scan a sequence, and compare with mamba's own loop in torch."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn, selective_scan_ref

    steps, delta = (_random(device, 1, 8, 16, dtype="float32") for _ in range(2))
    decay = -_random(device, 8, 4, dtype="float32").abs()
    inputs, outputs = (_random(device, 1, 4, 16, dtype="float32") for _ in range(2))
    arguments = (steps, delta.abs(), decay, inputs, outputs)
    return selective_scan_fn(*arguments), selective_scan_ref(*arguments)


def transformer_linear(device: str) -> Result:
    """Apply a layer of Transformer Engine."""
    import torch
    import transformer_engine.pytorch as te

    layer = te.Linear(16, 16, params_dtype=torch.bfloat16).to(device)
    inputs = _random(device, 16, 16, dtype="bfloat16")
    expected = torch.nn.functional.linear(inputs.float(), layer.weight.float(), layer.bias.float())
    return layer(inputs).detach(), expected.detach()


def tensorrt_linear(device: str) -> Result:
    """Compile a layer with TensorRT."""
    import torch
    import torch_tensorrt

    layer, inputs = torch.nn.Linear(16, 16).eval().to(device), _random(device, 4, 16, dtype="float32")
    compiled = torch_tensorrt.compile(layer, inputs=[inputs])
    return compiled(inputs).detach(), layer(inputs).detach()


def scaled(device: str) -> Result:
    """Scale a list of tensors with apex."""
    import amp_C
    import torch
    from apex.multi_tensor_apply import multi_tensor_applier

    numbers = torch.arange(8.0, device=device)
    result, overflow = torch.empty_like(numbers), torch.zeros(1, dtype=torch.int, device=device)
    multi_tensor_applier(amp_C.multi_tensor_scale, overflow, [[numbers], [result]], 2.0)
    return result, numbers * 2


def deepspeed_compatible(_device: str) -> Result:
    """Return whether deepspeed could compile its fused Adam here: it needs nvcc of torch's CUDA."""
    from deepspeed.ops.op_builder import FusedAdamBuilder

    return [float(FusedAdamBuilder().is_compatible())], [1.0]
