"""The installer has the last word on extensions: a real uv, against an index on the loopback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.images.lock_with_uv import DisagreementError, dry_resolution, platform_of
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.mirrors.profiles.model import Index, Profile
from tests.tables import each
from tests.wheels import wheel

CELL = Cell(torch="2.9.1", variant="cu128", python="3.12")


@pytest.fixture
def profile(tmp_path: Path, simple_index: Callable[[Path], Path], serve: Callable[[Path], Any]) -> Profile:
    wheels = tmp_path / "extension-wheels"
    wheels.mkdir()
    wheel(wheels, "torch", "2.9.1")
    wheel(wheels, "torch", "2.10.0")
    wheel(wheels, "vllm", "0.16.0", requires=["torch==2.9.1", "outlines-core==1"])
    wheel(wheels, "sglang", "0.5.10", requires=["torch==2.9.1", "outlines-core==2"])
    wheel(wheels, "outlines-core", "1")
    wheel(wheels, "outlines-core", "2")
    return Profile(name="test", pypi=[Index(url=f"{serve(simple_index(wheels).parent).url}/simple")])


def test_what_fits_is_counted(matrix: Matrix, profile: Profile) -> None:
    assert dry_resolution(matrix, CELL, ["vllm==0.16.0"], profile, "x86_64") == 3


def test_a_conflict_one_level_down_is_the_installers_to_find(matrix: Matrix, profile: Profile) -> None:
    with pytest.raises(DisagreementError, match="outlines-core"):
        dry_resolution(matrix, CELL, ["vllm==0.16.0", "sglang==0.5.10"], profile, "x86_64")


@each(
    "glibc, platform",
    [
        ("2.35", "x86_64-manylinux_2_35"),
        ("2.41", "x86_64-manylinux_2_40"),  # the newest that uv knows
        (None, "x86_64-manylinux_2_28"),
    ],
)
def test_wheels_are_taken_for_the_c_library_of_the_base(glibc: str | None, platform: str) -> None:
    assert platform_of(glibc, "x86_64") == platform
