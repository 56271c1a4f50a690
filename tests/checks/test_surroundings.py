"""What surrounds torch in its own environment: variables, and how much memory may be locked."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, PASS, WARN, Rank, View
from envcheck.checks.env import environment_variables, memlock, shm

Node = Callable[..., View]
RANK = Rank(0, 1, 0, "cpu", "gloo", "")


@pytest.mark.parametrize(
    ("allowed", "status"),
    [(-1, PASS), (16 << 30, PASS), ((16 << 30) - 1, WARN), (8 << 20, WARN), (None, ERROR), (float("nan"), ERROR)],
)
def test_memlock_on_each_side_of_its_limit(node: Node, allowed: Any, status: str) -> None:
    assert memlock.judge(node("h100x8"), [{"rank": 0, "bytes": allowed}]).status == status
    assert memlock.judge(node("h100x8"), []).status == ERROR


def test_the_limits_of_this_process_are_read() -> None:
    assert memlock.measure(RANK)["bytes"] == resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    assert shm.measure(RANK)["total"] >= shm.measure(RANK)["free"] > 0


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    known = (*environment_variables.REFUSED_BY_DCGM, *environment_variables.SLOWING, "LD_LIBRARY_PATH")
    for name in known:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.usefixtures("clean")
def test_a_clean_environment_passes(node: Node) -> None:
    assert environment_variables.judge(node("h100x8"), [environment_variables.measure(RANK)]).status == PASS


@pytest.mark.parametrize("name", environment_variables.REFUSED_BY_DCGM)
def test_each_variable_that_dcgm_refuses_is_named(node: Node, clean: pytest.MonkeyPatch, name: str) -> None:
    clean.setenv(name, "1")
    outcome = environment_variables.judge(node("h100x8"), [environment_variables.measure(RANK)])
    assert outcome.status == WARN
    assert name in outcome.summary
    assert name in outcome.remedy


@pytest.mark.parametrize(("name", "value"), environment_variables.SLOWING.items())
def test_what_slows_gpus_is_a_warning_there_alone(
    node: Node, cpu: View, clean: pytest.MonkeyPatch, name: str, value: str
) -> None:
    clean.setenv(name, value)
    measured = [environment_variables.measure(RANK)]
    assert environment_variables.judge(node("h100x8"), measured).status == WARN
    assert environment_variables.judge(cpu, measured).status == PASS
    clean.setenv(name, {"0": "1", "1": "0"}[value])
    assert environment_variables.judge(node("h100x8"), [environment_variables.measure(RANK)]).status == PASS


@pytest.mark.parametrize(
    ("library", "status"),
    [("libcudnn.so.9", WARN), ("libnccl.so.2", WARN), ("stubs/libcuda.so", WARN), ("libcuda.so.1", PASS)],
)
def test_a_library_before_the_wheels_own_is_named(
    node: Node, cpu: View, clean: pytest.MonkeyPatch, tmp_path: Path, library: str, status: str
) -> None:
    path = tmp_path / library
    path.parent.mkdir(exist_ok=True)
    path.touch()
    clean.setenv("LD_LIBRARY_PATH", f"/nowhere::{path.parent}")
    measured = [environment_variables.measure(RANK)]
    outcome = environment_variables.judge(node("h100x8"), measured)
    assert outcome.status == status
    assert (str(path) in outcome.summary) == (status == WARN)
    assert environment_variables.judge(cpu, measured).status == PASS


def test_an_environment_that_was_not_read_is_an_error(node: Node) -> None:
    assert environment_variables.judge(node("h100x8"), []).status == ERROR
    assert environment_variables.judge(node("h100x8"), [{"rank": 0, "refused": None}]).status == ERROR
