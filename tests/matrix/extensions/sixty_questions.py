"""Sixty questions whose answers follow by hand from METADATA, file names and the libraries of the wheels.

A question is: the requirements, then torch, variant, Python, GPU, and where it matters the driver and the host. The
answer is the releases to install, or the first word that refuses. The comment is the fact that decides.
"""

from typing import Any, Final, NamedTuple


class AskedExtensions(NamedTuple):
    """Requirements, the axes of the query, and the answer: releases, or the word of a refusal."""

    requirements: str
    axes: dict[str, Any]
    answer: str

    @property
    def fits(self) -> bool:
        """Whether something can be installed."""
        return " " in self.answer


def _ask(requirements: str, where: str, answer: str, **more: str) -> AskedExtensions:
    """Read "2.9.1 cu128 3.12 H100": torch, variant, Python, GPU; "-" leaves an axis free."""
    torch, variant, python, *gpu = where.split(maxsplit=3)
    axes = {name: value for name, value in (("torch", torch), ("variant", variant), ("python", python)) if value != "-"}
    return AskedExtensions(requirements, {**axes, **more, "gpus": [*gpu]}, answer)


FITS: Final = (
    _ask("vllm", "2.9.1 cu128 3.12 H100", "vllm 0.16.0"),  # pins torch 2.9.1; CUDA 12; code for 9.0
    _ask("vllm", "2.10.0 cu128 3.12 A100", "vllm 0.19.1"),  # pins torch 2.10.0; code for 8.0
    _ask("vllm", "2.11.0 cu130 3.12 H100", "vllm 0.25.1"),  # pins torch 2.11.0; CUDA 13
    _ask("vllm", "2.13.0 cu130 3.12 B200", "vllm 0.31.0"),  # the newer of two that pin torch 2.13.0; code for 10.0
    _ask("vllm", "2.14.0 cu130 3.12 RTX 5090", "vllm 0.33.0"),  # pins torch 2.14.0; code for 12.0
    _ask("vllm", "2.14.0 cu132 3.13 L4", "vllm 0.33.0"),  # CUDA 13 whatever its minor; code for 8.9
    _ask("vllm<0.30", "2.13.0 cu130 3.12 H100", "vllm 0.27.1"),  # the specifier leaves out 0.31.0
    _ask("xformers", "2.8.0 cu128 3.12 A100", "xformers 0.0.32.post2"),  # pins torch 2.8.0; abi3 from 3.9
    _ask("xformers", "2.9.1 cu128 3.13 H100", "xformers 0.0.33.post2"),  # pins torch 2.9.1
    _ask("xformers", "2.10.0 cu126 3.12 L4", "xformers 0.0.35"),  # stable ABI, torch>=2.10; 8.0 runs on 8.9
    _ask("xformers", "2.12.1 cu126 3.12 H100", "xformers 0.0.35"),  # as above: the CUDA 12 wheel beside a CUDA 12 torch
    _ask("torchao", "2.9.1 cu128 3.12 A100", "torchao 0.15.0"),  # built for torch 2.9.1; code for 8.0
    _ask("torchao", "2.11.0 cu130 3.12 H100", "torchao 0.18.0"),  # stable ABI from 2.11; CUDA 13; code for 9.0
    _ask("torchao", "2.14.1 cu132 3.12 B200", "torchao 0.18.0"),  # code for 10.0
    _ask("flash-attn", "2.8.0 cu128 3.12 H100", "flash-attn 2.8.3"),  # the project's list has +cu12torch2.8
    _ask("flash-attn", "2.9.1 cu126 3.12 A100", "flash-attn 2.8.3"),  # +cu12torch2.9 for cp312
    _ask("flash-attn", "2.14.1 cu130 3.12 H100", "flash-attn 2.8.3.post2"),  # no wheel from torch 2.11 on: a build
    _ask("mamba-ssm", "2.9.1 cu130 3.11 H100", "mamba-ssm 2.3.2.post1"),  # +cu13torch2.9; triton 3.5.1 >= 3.5.0
    _ask("onnxruntime-gpu", "2.9.1 cu128 3.12 H100", "onnxruntime-gpu 1.26.0"),  # the last of CUDA 12
    _ask("onnxruntime-gpu", "2.14.1 cu130 3.12 RTX 4090", "onnxruntime-gpu 1.31.1"),  # CUDA 13; code for 8.9
    _ask("onnxruntime-gpu", "2.14.1 cu130 3.12 B200", "onnxruntime-gpu 1.28.0"),  # the last with code for 10.0
    _ask("bitsandbytes", "2.8.0 cu128 3.12 T4", "bitsandbytes 0.50.2"),  # a library for each CUDA; code for 7.5
    _ask("torchvision", "2.13.0 cu130 3.12 H100", "torchvision 0.28.0"),  # pins torch 2.13.0
    _ask("torchcodec", "2.9.1 cu128 3.12 H100", "torchcodec 0.9.1"),  # C++ symbols of torch 2.9
    _ask("torchcodec", "2.13.0 cu130 3.12 H100", "torchcodec 0.17.0"),  # stable ABI; CUDA 13
    _ask("torchcodec", "2.13.0 cu126 3.12 H100", "torchcodec 0.13.0"),  # the last that links no CUDA
    _ask("torch-tensorrt", "2.9.1 cu130 3.12 H100", "torch-tensorrt 2.9.0"),  # CUDA 13 although PyPI's torch is cu128
    _ask("sglang", "2.14.1 cu130 3.12 H100", "sglang 0.5.23"),  # its kernel 0.4.10 is CUDA 13 and pins 2.14.1
    _ask("deepspeed", "2.14.1 cu130 3.12 H100", "deepspeed 0.19.8"),  # compiles at first use
    _ask("vllm xformers", "2.9.1 cu128 3.12 H100", "vllm 0.16.0, xformers 0.0.33.post2"),  # both pin 2.9.1
)

NOTHING_FITS: Final = (
    _ask("faiss-gpu-cu12", "2.9.1 cu128 3.12 H100", "no-gpu-code"),  # 7.0 and 8.0, no PTX
    _ask("faiss-gpu", "2.14.1 cu130 3.12 H100", "cuda-major"),  # libcudart.so.12 only
    _ask("onnxruntime-gpu>=1.29", "2.14.1 cu130 3.12 B200", "no-gpu-code"),  # neither 10.0 nor PTX
    _ask("onnxruntime-gpu<1.27", "2.14.1 cu130 3.12 H100", "cuda-major"),  # CUDA 12 to 1.26
    _ask("vllm", "2.12.1 cu130 3.12 H100", "torch-pinned"),  # none pins 2.12.1
    _ask("vllm", "2.14.0 cu126 3.12 H100", "cuda-major"),  # 0.33.0 needs CUDA 13
    _ask("vllm==0.33.0", "2.14.0 cu130 3.10 H100", "no-python"),  # requires Python 3.11
    _ask("vllm", "2.9.1 cu128 3.13t H100", "no-python"),  # abi3 is not for free-threaded Pythons
    _ask("vllm", "2.14.0 cu130 3.12 GH200", "not-known"),  # nobody opened the aarch64 wheels
    _ask("xformers", "2.14.1 cu130 3.12 H100", "not-known"),  # nobody opened the wheel of whl/cu130
    _ask("xformers==0.0.33.post2", "2.10.0 cu128 3.12 H100", "torch-pinned"),  # pins 2.9.1
    _ask("xformers", "2.9.1 cu128 3.12 GH200", "no-host"),  # x86_64 only
    _ask("xformers", "2.9.1 cu129 3.12 B200", "no-gpu-code", driver="570.124.06"),  # PTX needs the native driver, 575
    _ask("torchao>=0.17", "2.10.0 cu130 3.12 H100", "torch-abi"),  # stable ABI from 2.11 on
    _ask("torchao>=0.17", "2.11.0 cu126 3.12 H100", "cuda-major"),  # CUDA 13
    _ask("torchao", "2.14.1 cu130 3.12 A100", "no-gpu-code"),  # 9.0 and 10.0, PTX 12.0
    _ask("flash-attn", "2.9.1 cpu 3.12", "cuda-major"),  # nothing to link against
    _ask("causal-conv1d==1.6.1", "2.9.1 cu128 3.12 H100", "not-known"),  # its wheels' code was never read
    _ask("torchcodec==0.7.0", "2.13.0 cu130 3.12 H100", "torch-abi"),  # misses 3 symbols in torch 2.13
    _ask("torchcodec>=0.15", "2.13.0 cu126 3.12 H100", "cuda-major"),  # CUDA 13 from 0.14
    _ask("torch-tensorrt", "2.9.1 cu128 3.12 H100", "cuda-major"),  # 2.9.0 is CUDA 13
    _ask("sglang==0.5.17", "2.11.0 cu130 3.12 H100", "not-known"),  # nobody opened its wheel
    _ask("sglang-kernel", "2.14.1 cu130 3.12 T4", "no-gpu-code"),  # from 8.0 on
    _ask("auto-gptq", "2.6.0 cu124 3.11 A100", "not-known"),  # C++ symbols of a torch that nobody named
    _ask("auto-gptq", "2.6.0 cu124 3.12 A100", "no-python"),  # cp38 to cp311
    _ask("cupy-cuda12x", "2.14.1 cu130 3.12 H100", "cuda-major"),  # by name
    _ask("pyg-lib", "2.13.0 cu126 3.12 H100", "not-known"),  # its index was not reachable
    _ask("horovod", "2.9.1 cu128 3.12 H100", "torch-abi"),  # does not compile from torch 2.1 on
    _ask("vllm gptqmodel", "- - - H100", "torch-pinned"),  # ==2.14.0 at most, and >=2.14.1
    _ask("vllm sglang", "- - - H100", "pins-conflict"),  # flashinfer-python, with the one torch that both take
)
QUESTIONS: Final = (*FITS, *NOTHING_FITS)
