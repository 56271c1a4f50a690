"""Sabotages of attention, convolutions and Fourier transforms that are wrong for one option, form or layout only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.checks.sabotage.torch.sabotages import Sabotage, ScaledGradient, lie

F = functional
Options = dict[str, Any]


def attention(
    when: Callable[[Any, Any, Options], Any], changed: Callable[[Options], Options] | None = None
) -> Sabotage:
    """Return what makes attention too large by five percent, or changes its options, where Q, K and they are such."""

    def change(honest: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
        if not when(q, k, options):
            return honest(q, k, v, **options)
        return honest(q, k, v, **{**options, **changed(options)}) if changed else honest(q, k, v, **options) * 1.05

    return "attention", lambda: lie(F, "scaled_dot_product_attention", change)


def mask(options: Options) -> Any:
    """Return the mask, or an empty tensor."""
    return torch.zeros(0) if options.get("attn_mask") is None else options["attn_mask"]


def bottom_right(q: Any, k: Any, options: Options) -> bool:
    """Return whether a causal mask has two ways to lie."""
    return bool(options.get("is_causal")) and q.shape[-2] != k.shape[-2]


def convolution(name: str, when: Callable[[Any, Any, Options], Any], changed: Callable[..., Any]) -> Sabotage:
    """Return what changes a convolution's result where its input, its weight and its options are such."""

    def change(honest: Any, x: Any, w: Any, *a: Any, **k: Any) -> Any:
        return changed(honest, x, w, *a, **k) if when(x, w, k) else honest(x, w, *a, **k)

    return "convolution", lambda: lie(F, name, change)


def larger(honest: Any, *a: Any, **k: Any) -> Any:
    """Return a result that is too large by one percent."""
    return honest(*a, **k) * 1.01


def last(x: Any) -> bool:
    """Return whether channels lie last."""
    return not x.is_contiguous() and bool(x.is_contiguous(memory_format=torch.channels_last))


def bias_gradient(honest: Any, x: Any, w: Any, bias: Any = None, **k: Any) -> Any:
    """Return the right result, whose bias has a wrong gradient."""
    return honest(x, w, None if bias is None else ScaledGradient.apply(bias), **k)


def where(kind: str, owner: Any, name: str, when: Callable[..., Any], factor: float = 1.01) -> Sabotage:
    """Return what makes a function's result wrong by a factor where it is given such arguments."""

    def change(honest: Any, *a: Any, **k: Any) -> Any:
        made = honest(*a, **k)
        if not when(*a, **k):
            return made
        return (made[0] * factor, made[1]) if isinstance(made, tuple) else made * factor

    return kind, lambda: lie(owner, name, change)


def seen(option: str) -> Callable[..., Any]:
    """Return what says whether an option is set."""
    return lambda *_, **k: k.get(option) is not None and k[option] is not False


def weights_doubled() -> None:
    """Return each head's weights twice as large."""
    lie(F, "multi_head_attention_forward", lambda h, *a, **k: doubled(*h(*a, **k)))


def doubled(out: Any, weights: Any) -> tuple[Any, Any]:
    """Return the result, and its weights twice as large."""
    return out, weights if weights is None else weights * 2


def size_forgotten(honest: Any, self: Any, x: Any, output_size: Any, *a: Any, **k: Any) -> Any:
    """Return the padding of a transposed convolution without the size that is asked for."""
    return [0 for _ in honest(self, x, output_size, *a, **k)]


class Bent(torch.autograd.Function):  # type: ignore[misc]
    """The identity, whose gradient is right and has a wrong gradient."""

    @staticmethod
    def forward(_: Any, x: Any) -> Any:
        """Return the input."""
        return x.clone()

    @staticmethod
    def backward(_: Any, grad: Any) -> Any:
        """Return the gradient, with a wrong one."""
        return ScaledGradient.apply(grad)


def second_gradient() -> None:
    """Give the gradient of convolutions a wrong gradient."""
    for name in ("conv1d", "conv2d"):
        lie(F, name, lambda h, x, *a, **k: h(Bent.apply(x), *a, **k))


N, FFT = torch.nn, torch.fft
SABOTAGES: dict[str, Sabotage] = {
    "attention takes a mask of keys for its opposite": attention(
        lambda *a: mask(a[2]).dim() == 4 and mask(a[2]).shape[-2] == 1 and mask(a[2]).dtype == torch.bool,
        lambda k: {"attn_mask": ~k["attn_mask"]},
    ),
    "attention has one mask for all heads": attention(
        lambda *a: mask(a[2]).dim() == 4 and mask(a[2]).shape[1] > 1,
        lambda k: {"attn_mask": k["attn_mask"][:, :1]},
    ),
    "attention learns no mask": attention(
        lambda *a: mask(a[2]).requires_grad, lambda k: {"attn_mask": k["attn_mask"].detach()}
    ),
    "attention is causal from the other corner": attention(
        bottom_right,
        lambda _: {"is_causal": False},
    ),
    "attention drops nothing": attention(lambda *a: a[2].get("dropout_p"), lambda _: {"dropout_p": 0.0}),
    "attention drops twice as much": attention(
        lambda *a: a[2].get("dropout_p"), lambda k: {"dropout_p": 2 * k["dropout_p"]}
    ),
    "attention wrong for heads of 128": attention(lambda q, *_: q.shape[-1] == 128),
    "attention wrong for odd heads": attention(lambda q, *_: q.shape[-1] % 2),
    "attention wrong for three dimensions": attention(lambda q, *_: q.dim() == 3),
    "attention wrong without gradients": attention(lambda *_: not torch.is_grad_enabled()),
    "attention wrong for many keys": attention(lambda _, k, __: k.shape[-2] > 512),
    "convolution wrong where channels lie last": convolution("conv2d", lambda x, *_: last(x), larger),
    "convolution wrong gradient of its bias": convolution("conv3d", lambda *_: True, bias_gradient),
    "convolution wrong for 64 channels": convolution("conv2d", lambda _, w, __: w.shape[1] == 64, larger),
    "convolution wrong without gradients": convolution("conv1d", lambda *_: not torch.is_grad_enabled(), larger),
    "transposed convolution starts one later": convolution(
        "conv_transpose2d", lambda *a: any(a[2]["output_padding"]), lambda h, *a, **k: h(*a, **k).roll(1, -1)
    ),
    "conv2d forgets what same padding adds": (
        "convolutions",
        lambda: lie(
            F, "conv2d", lambda h, *a, **k: h(*a, **k).roll(1, -1) if k.get("padding") == "same" else h(*a, **k)
        ),
    ),
    "Conv module takes reflect for replicate": (
        "convolutions",
        lambda: lie(
            F, "pad", lambda h, x, p, mode="constant", **k: h(x, p, {"reflect": "replicate"}.get(mode, mode), **k)
        ),
    ),
    "ConvTranspose module forgets its size": (
        "convolutions",
        lambda: lie(N.modules.conv._ConvTransposeNd, "_output_padding", size_forgotten),  # noqa: SLF001
    ),
    "convolution of one image x 1.01": where("convolutions", F, "conv1d", lambda x, *_, **__: x.dim() == 2),
    "convolution wrong second gradient": ("convolutions", second_gradient),
    "MultiheadAttention sees padding": (
        "attention layers",
        lambda: lie(F, "multi_head_attention_forward", lambda h, *a, **k: h(*a, **{**k, "key_padding_mask": None})),
    ),
    "MultiheadAttention doubles its weights": ("attention layers", weights_doubled),
    "MultiheadAttention wrong for other widths": where(
        "attention layers", F, "multi_head_attention_forward", seen("use_separate_proj_weight")
    ),
    "MultiheadAttention wrong without a batch": where(
        "attention layers", F, "multi_head_attention_forward", lambda q, *_, **__: q.dim() == 2
    ),
    "MultiheadAttention wrong as it infers": where(
        "attention layers", torch, "_native_multi_head_attention", lambda *_, **__: True
    ),
    "encoder layer wrong with norms first": where(
        "transformer layers", N.TransformerEncoderLayer, "forward", lambda layer, *_, **__: layer.norm_first
    ),
    "encoder layer wrong as it infers": where(
        "transformer layers", torch, "_transformer_encoder_layer_fwd", lambda *_, **__: True
    ),
    "decoder layer x 1.01": where("transformer layers", N.TransformerDecoderLayer, "forward", lambda *_, **__: True),
    "encoder x 1.01": where("transformer layers", N.TransformerEncoder, "forward", lambda *_, **__: True),
    "hfft x 1.01": where("transforms", FFT, "hfft", lambda *_, **__: True),
    "ihfft x 1.01": where("transforms", FFT, "ihfft", lambda *_, **__: True),
    "rfftn wrong for chosen dimensions": where("transforms", FFT, "rfftn", seen("dim")),
    "fftn wrong for a norm": where("transforms", FFT, "fftn", seen("norm")),
    "fftshift shifts every dimension": (
        "transforms",
        lambda: lie(FFT, "fftshift", lambda h, x, dim=None: h(x)),  # noqa: ARG005
    ),
    "rfftfreq x 1.01": where("transforms", FFT, "rfftfreq", lambda *_, **__: True),
    "stft wrong for shorter windows": where("transforms", torch, "stft", seen("win_length")),
    "istft without a length x 1.01": where("transforms", torch, "istft", lambda *_, **k: k.get("length") is None),
    "windows always periodic": (
        "transforms",
        lambda: lie(torch, "hann_window", lambda h, n, periodic=True, **k: h(n, **k)),  # noqa: ARG005
    ),
}
