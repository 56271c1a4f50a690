"""What blogs get wrong: each claim of facts that people rely on, answered."""

from __future__ import annotations

from collections.abc import Callable

from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.resolver.resolve import Resolution
from tests.tables import each

Ask = Callable[..., Resolution]


def test_torch_2_8_has_no_cu121_and_the_answer_says_what_has(ask: Ask) -> None:
    resolution = ask(torch="2.8.0", variant="cu121")
    assert (resolution.verdict, resolution.cell) == ("no-wheel", None)
    assert resolution.reasons == [
        "torch 2.8.0 has no cu121 wheels, but cpu, cu126, cu128, cu129; torch 2.1.0 - 2.5.1 has cu121"
    ]
    assert {(row.change, row.cell.rpartition("-")[0]) for row in resolution.alternatives} == {
        ("keep torch 2.8.0: cu128", "torch2.8.0-cu128"),
        ("keep cu121: torch 2.5.1", "torch2.5.1-cu121"),
    }


@each(
    ("torch", "variant", "driver", "verdict"),
    [
        ("2.1.0", "cu118", "450.80.01", "driver-too-old"),
        ("2.1.0", "cu118", "450.80.02", "driver-ok-via-minor-compat"),
        ("2.1.0", "cu118", "520.61.04", "driver-ok-via-minor-compat"),
        ("2.1.0", "cu118", "520.61.05", "ok"),
        ("2.0.1", "cu117", "450.80.01", "driver-too-old"),
        ("2.0.1", "cu117", "450.80.02", "driver-ok-via-minor-compat"),
        ("2.0.1", "cu117", "515.43.03", "driver-ok-via-minor-compat"),
        ("2.0.1", "cu117", "515.43.04", "ok"),
        ("2.8.0", "cu128", "525.60.12", "driver-too-old"),
        ("2.8.0", "cu128", "525.60.13", "driver-ok-via-minor-compat"),
        ("2.8.0", "cu128", "570.25", "driver-ok-via-minor-compat"),
        ("2.8.0", "cu128", "570.26", "ok"),
        ("2.8.0", "cu128", "570.124.06", "ok"),  # field by field: 124 > 26
        ("2.13.0", "cu130", "580.65.05", "driver-too-old"),
        ("2.13.0", "cu130", "580.65.06", "ok"),
        ("2.15.0", "cu132", "580.65.06", "driver-ok-via-minor-compat"),
        ("2.15.0", "cu132", "595.45.03", "driver-ok-via-minor-compat"),
        ("2.15.0", "cu132", "595.45.04", "ok"),
    ],
)
def test_floor_and_native_driver_to_the_patch(ask: Ask, torch: str, variant: str, driver: str, verdict: str) -> None:
    assert ask(torch=torch, variant=variant, driver=driver).verdict == verdict


@each(
    ("torch", "verdict"),
    [("2.7.1", "arch-not-in-wheel"), ("2.8.0", "ok"), ("2.10.0", "ok"), ("2.11.0", "arch-not-in-wheel")],
)
def test_v100_works_with_cu128_of_2_8_to_2_10_only(ask: Ask, torch: str, verdict: str) -> None:
    assert ask(torch=torch, variant="cu128", gpus=["V100"], driver="570.124.06").verdict == verdict


@each(
    ("gpu", "torch", "variant", "driver", "verdict"),
    [
        ("RTX 4090", "1.13.1", "cu117", "535.54.03", "ok"),  # sm_86 code runs on 8.9
        ("H100", "1.13.1", "cu117", "535.54.03", "gpu-too-new-for-cuda"),
        ("H100", "2.0.1", "cu118", "535.54.03", "ok"),
        ("RTX 5090", "2.7.0", "cu126", "570.86.16", "gpu-too-new-for-cuda"),
        ("RTX 5090", "2.7.0", "cu128", "570.86.16", "ok"),
        ("B300", "2.9.1", "cu130", "580.82.07", "ok"),  # sm_100 code runs on 10.3
        ("B300", "2.9.1", "cu130", "580.82.06", "driver-too-old"),
        ("GB10", "2.13.0", "cu130", "580.119.02", "ok"),  # sm_120 code runs on 12.1
        ("P100", "2.8.0", "cu128", "570.124.06", "arch-not-in-wheel"),
        ("P100", "2.14.0", "cu126", "570.124.06", "ok"),
        ("V100", "2.8.0", "cu128", "590.44.01", "gpu-dropped-by-driver"),
        ("K80", "2.0.1", "cu118", "470.256.02", "driver-ok-via-minor-compat"),
        ("K80", "2.0.1", "cu118", "495.29.05", "gpu-dropped-by-driver"),
    ],
)
def test_gpu_against_wheel_and_driver(ask: Ask, gpu: str, torch: str, variant: str, driver: str, verdict: str) -> None:
    assert ask(torch=torch, variant=variant, gpus=[gpu], driver=driver).verdict == verdict


def test_cuda_13_on_r570_needs_a_data_centre_gpu_and_its_compat_package(ask: Ask) -> None:
    axes = {"torch": "2.13.0", "variant": "cu130", "driver": "570.124.06"}
    centre = ask(gpus=["H100"], **axes)
    assert centre.verdict == "forward-compat-required"
    assert "cuda-compat-13-0" in " ".join(centre.reasons)
    desk = ask(gpus=["RTX 4090"], **axes)
    assert desk.verdict == "driver-too-old"
    assert "data-centre GPUs only" in " ".join(desk.reasons)


@each(
    ("torch", "variant"),
    [
        ("2.1.2", "cu121"),
        ("2.6.0", "cu124"),
        ("2.7.1", "cu126"),
        ("2.10.0", "cu128"),
        ("2.14.1", "cu130"),
        ("2.15.0", "cu132"),
    ],
)
def test_what_pip_install_gives_on_x86_64(ask: Ask, torch: str, variant: str) -> None:
    resolution = ask(torch=torch)
    assert resolution.cell is not None
    assert resolution.cell.split("-")[1] == variant
    assert resolution.index == ""


def test_no_torchaudio_after_2_11(matrix: Matrix) -> None:
    audio = {release.torch: release.torchaudio for release in matrix.torch}
    assert (audio["2.11.0"], audio["2.12.0"], audio["2.15.0"]) == ("2.11.0", None, None)
