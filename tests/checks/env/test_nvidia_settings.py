"""What an image's NVIDIA_* variables ask for, against the CUDA of its wheel."""

import dataclasses
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Rank, View
from envcheck.checks.env import image_config, nvidia_settings
from tests.builders import gpu_view

RANK = Rank(0, 1, 0, "cpu", "gloo", "")
SOUND = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "NVIDIA_REQUIRE_CUDA": "cuda>=12.0",
}
# As nvidia/cuda:12.8 has it, shortened.
BASE = "cuda>=12.8 brand=unknown,driver>=535,driver<536 brand=tesla,driver>=550,driver<551"


def measured(*, image: bool = True, contained: bool = True, **change: str | None) -> list[dict[str, Any]]:
    variables = {name: value for name, value in {**SOUND, **change}.items() if value is not None}
    return [{"rank": 0, "image": image, "contained": contained, "variables": variables}]


@pytest.fixture
def wheel() -> View:
    """Return a CUDA 12.8 wheel on a build machine, which has no GPU."""
    return dataclasses.replace(gpu_view("h100x8"), mode="cpu")


@pytest.mark.parametrize(
    ("change", "status", "word"),
    [
        ({}, PASS, "they suit CUDA 12.8"),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, FAIL, "passes no GPU in"),
        ({"NVIDIA_VISIBLE_DEVICES": ""}, FAIL, "NVIDIA_VISIBLE_DEVICES=(empty)"),
        ({"NVIDIA_VISIBLE_DEVICES": None}, WARN, "NVIDIA_VISIBLE_DEVICES is not set"),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, PASS, "suit"),
        ({"NVIDIA_DRIVER_CAPABILITIES": "compute"}, WARN, "leaves NVML and nvidia-smi out"),
        ({"NVIDIA_DRIVER_CAPABILITIES": "graphics, compute ,utility"}, PASS, "suit"),
        ({"NVIDIA_DRIVER_CAPABILITIES": "all"}, PASS, "suit"),
        ({"NVIDIA_DRIVER_CAPABILITIES": None}, PASS, "suit"),
        ({"NVIDIA_REQUIRE_CUDA": BASE}, PASS, "suit"),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=13.0"}, WARN, "wants CUDA 13.0"),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=11.8", "NVIDIA_DISABLE_REQUIRE": "true"}, PASS, "suit"),
        ({"NVIDIA_REQUIRE_CUDA": None}, PASS, "suit"),
        ({"NVIDIA_REQUIRE_DRIVER": "driver>=550"}, PASS, "suit"),
        ({"NVIDIA_REQUIRE_GPUS": "gpus>=2"}, FAIL, "NVIDIA_REQUIRE_GPUS holds gpus>=2"),
    ],
)
def test_an_image_on_each_side(wheel: View, change: dict[str, Any], status: str, word: str) -> None:
    outcome = nvidia_settings.judge(wheel, measured(**change))
    assert outcome.status == status, outcome
    assert word in outcome.summary
    assert bool(outcome.remedy) == (status in (FAIL, WARN))


def test_the_remedy_is_what_the_wheel_needs(wheel: View) -> None:
    outcome = nvidia_settings.judge(wheel, measured(NVIDIA_VISIBLE_DEVICES=""))
    assert 'NVIDIA_REQUIRE_CUDA="cuda>=12.0"' in outcome.remedy


def test_whoever_starts_a_container_without_gpus_may_mean_it_so(wheel: View) -> None:
    assert nvidia_settings.judge(wheel, measured(image=False, NVIDIA_VISIBLE_DEVICES="void")).status == WARN


def test_where_gpus_are_seen_void_is_how_cdi_passes_them_in() -> None:
    for change in ("void", None):
        assert nvidia_settings.judge(gpu_view("h100x8"), measured(NVIDIA_VISIBLE_DEVICES=change)).status == PASS


def test_a_host_and_a_cpu_wheel_have_no_use_for_them(cpu: View, wheel: View) -> None:
    assert nvidia_settings.judge(wheel, measured(contained=False, NVIDIA_VISIBLE_DEVICES="void")).status == SKIP
    assert nvidia_settings.judge(cpu, measured(NVIDIA_VISIBLE_DEVICES="void")).status == SKIP
    assert nvidia_settings.judge(wheel, []).status == ERROR


def test_the_variables_are_read_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_config, "is_image", lambda: True)
    monkeypatch.setenv("NVIDIA_REQUIRE_CUDA", "cuda>=12.0")
    monkeypatch.setenv("NVIDIA_SECRET", "canary")
    actual = nvidia_settings.measure(RANK)
    assert actual["variables"]["NVIDIA_REQUIRE_CUDA"] == "cuda>=12.0"
    assert "NVIDIA_SECRET" not in actual["variables"]
    assert actual["contained"]
