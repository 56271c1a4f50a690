"""The plan is exactly what the engine runs, and holds no secret's value."""

from pathlib import Path

import pytest

from envcheck.images import plan
from envcheck.images.lockfile import Lock
from envcheck.images.plan import BuildInputs
from envcheck.images.spec import ImageSpec, make_spec
from envcheck.matrix.facts.model import Cell, Matrix

CELL = Cell(torch="2.8.0", variant="cu128", python="3.11")


@pytest.fixture
def spec(matrix: Matrix, locks: list[Lock]) -> ImageSpec:
    return make_spec(matrix, CELL, locks)


def inputs(tmp_path: Path) -> BuildInputs:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine mirror.example login me password canary")
    return BuildInputs(
        engine="docker",
        frontend=["docker", "buildx", "build"],
        repository="site/torch",
        network="host",
        origin=("abc", 1700000000),
        base="envcheck/base:bookworm-1",
        key="f" * 64,
        context=tmp_path / "context",
        secrets={"netrc": netrc},
        labels={"x": "y"},
    )


def test_the_argv_is_all_of_it(spec: ImageSpec, tmp_path: Path) -> None:
    made = plan.make(spec, inputs(tmp_path))
    assert made.argv == [
        "docker",
        "buildx",
        "build",
        "--platform=linux/amd64",
        "--target=runtime",
        f"--tag=envcheck/build:{'f' * 32}",
        "--network=host",
        "--build-arg=BASE=envcheck/base:bookworm-1",
        "--build-arg=REVISION=abc",
        "--build-arg=SOURCE_DATE_EPOCH=1700000000",
        f"--label=envcheck.packages={spec.packages}",
        f"--label=envcheck.key={'f' * 64}",
        "--label=x=y",
        f"--secret=id=netrc,src={tmp_path}/netrc",
        f"{tmp_path}/context",
    ]


def test_a_directory_of_wheels_is_a_named_context(spec: ImageSpec, tmp_path: Path) -> None:
    made = plan.make(spec, inputs(tmp_path)._replace(wheels=tmp_path / "wheels"))
    assert f"--build-context=wheels={tmp_path}/wheels" in made.argv
    assert plan.make(spec, inputs(tmp_path)).contexts == {}


def test_no_final_tag_is_given_before_the_image_was_read_back(spec: ImageSpec, tmp_path: Path) -> None:
    made = plan.make(spec, inputs(tmp_path))
    assert made.tag == "site/torch:2.8.0-cu128-py311-runtime"
    assert not [word for word in made.argv if "site/torch" in word]
