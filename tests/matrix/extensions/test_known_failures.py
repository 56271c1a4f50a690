"""Each failure that users of extensions report is foreseen: what they met, and the answer that keeps them from it."""

from collections.abc import Callable
from typing import Any

from msgspec import structs

from envcheck.cli.shared.extension_steps import commands
from envcheck.matrix.extensions.answer import ExtensionResolution, glibc_notes
from envcheck.matrix.facts.model import Matrix
from tests.tables import each

AskWith = Callable[..., ExtensionResolution]


H100 = {"gpus": ["H100"]}
# A question, the word of the answer, and words of its reason.
REFUSED: dict[str, tuple[list[str], dict[str, Any], str, str]] = {
    "1 undefined symbol of c10": (["torchcodec==0.10.0"], {"torch": "2.13.0"}, "torch-abi", "torch ==2.10.*"),
    "3 libcudart.so.13 is not there": (
        ["torchao==0.17.0"],
        {"torch": "2.11.0", "variant": "cu128"},
        "cuda-major",
        "the libraries of CUDA 13",
    ),
    "4 no kernel image is available": (["faiss-gpu-cu12"], H100, "no-gpu-code", "9.0"),
    "4 a build without kernels for the GPU": (
        ["flash-attn"],
        {"gpus": ["T4"]},
        "no-gpu-code",
        "builds code for 8.0, 9.0, 10.0, 12.0: none runs on T4 (7.5)",
    ),
    "4 nvcc compiles nothing for the GPU": (
        ["pytorch3d"],
        {"cc": ["99.9"]},
        "no-gpu-code",
        "is not known to compile pytorch3d",
    ),
    "5 torch is replaced": (["vllm==0.16.0"], {"torch": "2.10.0"}, "torch-pinned", "requires torch==2.9.1"),
    "6 two extensions exclude each other": (["vllm", "sglang"], H100, "pins-conflict", "vllm 0.16.0 needs"),
    "7 another triton": (["mamba-ssm"], {"torch": "2.8.0", **H100}, "pins-conflict", "triton==3.4.0"),
    "8 no wheel for this Python": (["vllm"], {"python": "3.13t", **H100}, "no-python", "cp38-abi3"),
}


@each("symptom", REFUSED)
def test_what_would_fail_is_refused_with_its_reason(ask_with: AskWith, symptom: str) -> None:
    names, axes, word, reason = REFUSED[symptom]
    answer = ask_with(*names, **axes)
    assert (answer.cell, answer.verdict) == (None, word)
    assert any(reason in each.reason for each in answer.refused), answer.refused


def test_a_build_has_kernels_for_newer_gpus_of_the_same_major(ask_with: AskWith) -> None:
    (flash,) = ask_with("flash-attn", torch="2.12.0", gpus=["L4"]).extensions  # 8.9 runs code for 8.0
    assert flash.verdict == "source-only"


@each(
    ("torch", "variant", "strings"), [("2.5.1", "cu124", "FALSE"), ("2.6.0", "cu126", "TRUE"), ("2.8.0", None, "TRUE")]
)
def test_failure_2_the_wheel_has_the_strings_of_its_torch(
    ask_with: AskWith, torch: str, variant: str | None, strings: str
) -> None:
    (flash,) = ask_with("flash-attn", torch=torch, variant=variant, **H100).extensions
    assert f"torch{torch[:3]}cxx11abi{strings}-" in (flash.file or "")


def test_failure_9_a_build_has_torch_enough_memory_and_the_right_gpus(ask_with: AskWith) -> None:
    """Users met: No module named torch, a compiler that was killed, a build of hours, one against another torch."""
    answer = ask_with("flash-attn", torch="2.12.0", **H100)
    (flash,) = answer.extensions
    assert flash.verdict == "source-only"
    assert "build it in `devel` with nvcc 13.0" in flash.reason
    assert "min" in flash.reason
    torch, build = commands(structs.replace(answer, pip="pip install torch==2.12.0"), ["9.0"])
    assert torch == "pip install torch==2.12.0"
    # In pip's isolated environment there is no torch, or the newest one.
    assert "--no-build-isolation" in build
    assert build.endswith("pip install --no-build-isolation torch==2.12.0 flash-attn==2.8.3.post2")
    # One compiler for each 8 GiB that are free, for no GPU but those of the question.
    assert build.startswith('TORCH_CUDA_ARCH_LIST="9.0" MAX_JOBS=')
    assert "/ 8 + 1" in build


@each(
    ("names", "axes"),
    [
        (["torchvision"], {"torch": "2.8", "variant": "cu128"}),
        (["torchvision", "torchaudio"], {"torch": "2.6.0", "variant": "cu118"}),
        (["torchaudio<2.9"], H100),
        (["flash-attn", "torchvision"], H100),
        (["torchvision"], {"torch": "2.15.0"}),
    ],
)
def test_what_is_released_with_torch_is_what_the_plain_answer_installs(
    ask_with: AskWith, names: list[str], axes: dict[str, Any]
) -> None:
    answer = ask_with(*names, **axes)
    assert answer.legal, answer.reasons
    own = {f"{each.name}=={each.version}" for each in answer.extensions if each.channel == "torch"}
    assert own
    assert own <= {*answer.install}
    later = " ".join(commands(structs.replace(answer, pip="pip install"), [])[1:])
    assert "torchvision" not in later
    assert "torchaudio" not in later


def test_each_package_stands_once_in_the_steps(ask_with: AskWith) -> None:
    answer = ask_with("flash-attn", "vllm>=0.16", **H100, driver="550.54.15")
    _, last = commands(structs.replace(answer, pip="pip install torch==2.9.1"), ["9.0"])
    assert last.count("flash") == last.count("/flash-attention/releases/download/v2.8.3/flash_attn-2.8.3%2Bcu12") * 2
    assert last.startswith("pip install torch==2.9.1 https://")
    assert last.endswith(" vllm==0.16.0")


@each(
    ("here", "says"),
    [
        (None, "the wheels need glibc 2.32 (flash-attn 2.8.3); the base image has 2.39"),
        ("2.36", "the wheels need glibc 2.32 (flash-attn 2.8.3); this node has 2.36"),
        ("2.31", "this node has 2.31: pip takes no such wheel here; an image has 2.39"),
    ],
)
def test_a_joint_answer_says_which_glibc_its_wheels_need(
    ask_with: AskWith, matrix: Matrix, here: str | None, says: str
) -> None:
    answer = ask_with("flash-attn", torch="2.8.0", python="3.12", **H100)
    (note,) = glibc_notes(matrix, answer, here)
    assert note.endswith(says)


def test_what_is_in_git_only_is_never_taken_from_an_index(ask_with: AskWith) -> None:
    """On the Python index, apex is another project."""
    answer = ask_with("apex", torch="2.12.0", **H100)
    _, build = commands(structs.replace(answer, pip="pip install torch==2.12.0"), ["9.0"])
    assert "torch==2.12.0 git+https://github.com/NVIDIA/apex@24.01" in build  # its dependencies, and no other torch


def test_failure_10_what_compiles_at_first_use_says_what_that_needs(ask_with: AskWith) -> None:
    (deepspeed,) = ask_with("deepspeed", **H100).extensions
    assert (deepspeed.verdict, "nvcc" in deepspeed.reason) == ("jit", True)


def test_a_gpu_and_another_compute_capability_are_two_gpus_and_say_so(ask_with: AskWith) -> None:
    notes = ask_with("vllm", gpus=["H100"], cc=["8.0"]).notes
    assert [note for note in notes if note.startswith("--gpu H100 has compute capability 9.0: --cc 8.0 is taken as")]
    assert not [note for note in ask_with("vllm", gpus=["H100"], cc=["9.0"]).notes if "is taken as" in note]
