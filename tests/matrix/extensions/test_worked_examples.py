"""What users ask most: which of flash-attn, vllm, sglang, xformers, torchao, onnxruntime and faiss fit together."""

from __future__ import annotations

from collections.abc import Callable

from envcheck.matrix.extensions.answer import ExtensionResolution
from envcheck.matrix.extensions.file import Extensions
from envcheck.matrix.extensions.fit import CellOnHost, fit
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Cell, Matrix
from tests.tables import each

AskWith = Callable[..., ExtensionResolution]


def releases(answer: ExtensionResolution) -> list[str]:
    return [f"{each.name} {each.version}" for each in answer.extensions]


def test_flash_attn_and_vllm_on_an_h100_with_an_old_driver(ask_with: AskWith) -> None:
    answer = ask_with("flash-attn", "vllm", gpus=["H100"], driver="550.54.15")
    assert (answer.cell, answer.verdict) == ("torch2.9.1-cu128-py312", "driver-ok-via-minor-compat")
    assert releases(answer) == ["flash-attn 2.8.3", "vllm 0.16.0"]
    flash, vllm = answer.extensions
    assert (flash.channel, vllm.channel) == ("project", "pypi")
    assert flash.file == "flash_attn-2.8.3+cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"
    assert vllm.file == "vllm-0.16.0-cp38-abi3-manylinux_2_31_x86_64.whl"
    assert (flash.weak, vllm.weak) == (["the GPU code of flash-attn 2.8.3"], [])
    assert not answer.verified
    (without,) = [offer for offer in answer.alternatives if offer.change.startswith("without flash-attn")]
    assert without.change == "without flash-attn (vllm brings such kernels of its own): vllm 0.19.1"
    assert without.cell == "torch2.10.0-cu128-py313"


def test_another_authors_wheels_are_chosen_only_where_they_are_allowed(ask_with: AskWith) -> None:
    answer = ask_with("flash-attn", "vllm", gpus=["H100"], driver="550.54.15", third_party=True)
    assert answer.cell == "torch2.13.0-cu129-py313"
    assert releases(answer) == ["flash-attn 2.8.3", "vllm 0.27.1"]
    assert [each.channel for each in answer.extensions] == ["third-party", "project"]
    assert not any(each.verified for each in answer.extensions)


def test_what_has_no_wheel_is_built_and_says_with_what(ask_with: AskWith) -> None:
    answer = ask_with("flash-attn", gpus=["H100"], torch="2.14.1")
    (flash,) = answer.extensions
    assert (flash.verdict, flash.channel) == ("source-only", "source")
    assert "nvcc 13.0" in flash.reason
    assert any(offer.change.startswith("another torch: flash-attn 2.8.3") for offer in answer.alternatives)


def test_what_compiles_at_first_use_says_so(ask_with: AskWith) -> None:
    (deepspeed,) = ask_with("deepspeed", gpus=["H100"], variant="cu130").extensions
    assert deepspeed.verdict == "jit"
    assert "compiled at first use" in deepspeed.reason
    assert deepspeed.reason.endswith("of CUDA 13, as torch is: the target `devel` has it, `runtime` does not")
    (deepspeed,) = ask_with("deepspeed", gpus=["H100"], variant="cu128").extensions
    assert "no target has it, so add NVIDIA's nvcc 12.8 to an image on top of `devel`" in deepspeed.reason


@each("name", ["deepspeed", "flashinfer-python"])
def test_what_compiles_at_first_use_fits_no_cell_without_cuda(ask_with: AskWith, name: str) -> None:
    answer = ask_with(name, variant="cpu")
    assert (answer.cell, answer.verdict) == (None, "cuda-major")
    assert "compiles with nvcc at first use, and cpu has no CUDA" in answer.refused[0].reason


@each(("gpu", "word"), [("H100", "jit"), ("B200", "no-gpu-code")])
def test_what_compiles_at_first_use_needs_an_nvcc_that_knows_the_gpu(
    matrix: Matrix, extensions: Extensions, gpu: str, word: str
) -> None:
    facts, row = Facts(matrix), extensions.find("deepspeed")
    assert row is not None
    cell = Cell(torch="2.8.0", variant="cu126", python="3.12")
    place = CellOnHost(cell, "x86_64", "12.6", native=True, glibc="2.36", triton=None, devices=(facts.device(gpu),))
    judged = fit(facts, "deepspeed", row.releases[0], place, third_party=False)
    assert judged.word == word, judged.reason


def test_a_dependency_that_cannot_run_refuses_what_needs_it(ask_with: AskWith) -> None:
    answer = ask_with("sglang==0.5.23", variant="cu126", gpus=["H100"])
    assert (answer.cell, answer.verdict) == (None, "cuda-major")
    assert "needs sglang-kernel==0.4.10" in answer.refused[0].reason
