"""A tag says every axis; an alias never goes back."""

import pytest

from envcheck.errors import ConfigError
from envcheck.images import tags
from envcheck.images.spec import ImageSpec
from envcheck.images.tags import parse
from envcheck.matrix.facts.model import Base, Cell, Target
from tests.tables import each


def spec(torch: str = "2.13.0", target: Target = "runtime") -> ImageSpec:
    return ImageSpec(
        cell=Cell(torch=torch, variant="cpu", python="3.11"),
        target=target,
        base=Base(python="3.11", distro="debian", suite="bookworm", image="debian:bookworm-slim"),
        arch="x86_64",
        locks=[],
        promises={},
    )


def test_full_tag_names_every_axis() -> None:
    assert spec().tag == "2.13.0-cpu-py311-runtime"


def test_aliases_of_a_runtime_also_go_without_its_target() -> None:
    assert tags.aliases("t", spec()) == [
        "t:2.13-cpu-py311-runtime",
        "t:cpu-py311-runtime",
        "t:2.13.0-cpu-py311",
        "t:2.13-cpu-py311",
        "t:cpu-py311",
    ]


@each("theirs", ["2.13.0+cpu", "2.12.1+cpu", "2.9.1+cpu"])
def test_alias_moves_from_the_same_or_an_older_torch(theirs: str) -> None:
    assert tags.held_back({"envcheck.torch": theirs}, spec()) is None


@each(
    "labels, why",
    [
        ({"envcheck.torch": "2.13.1+cpu"}, "newer"),
        ({"envcheck.torch": "2.14.0"}, "newer"),
        ({"envcheck.torch": "2.8.0a0+5228986c39"}, "not envcheck's"),
        ({}, "not envcheck's"),
    ],
)
def test_alias_stays_with_a_newer_torch_or_a_stranger(labels: dict[str, str], why: str) -> None:
    text = tags.held_back(labels, spec())
    assert text is not None
    assert why in text


@each(
    "name, expected",
    [
        ("me/torch", ("me/torch", None)),
        ("me/torch:mine", ("me/torch", "mine")),
        ("torch:2.8", ("torch", "2.8")),
        ("registry.example:5000/ml/torch", ("registry.example:5000/ml/torch", None)),
        ("registry.example:5000/ml/torch:v1", ("registry.example:5000/ml/torch", "v1")),
        ("localhost/torch:x", ("localhost/torch", "x")),
        ("[::1]:5000/torch:x", ("[::1]:5000/torch", "x")),
        ("a__b/c--d.e:T_1.x-y", ("a__b/c--d.e", "T_1.x-y")),
    ],
)
def test_a_name_is_read_as_docker_reads_it(name: str, expected: tuple[str, str | None]) -> None:
    assert parse(name) == expected


WRONG = (
    *("Me/torch", "me/torch:", ":mine", "me//torch", "me/torch:a:b", "me/torch:-x", "-me", "me torch", "../torch"),
    *("me/torch:mine\n", "a" * 256, "me/torch:" + "x" * 129, "me/torch@sha256:" + "0" * 64),
    "https://registry.example/torch",
)


@each("name", WRONG)
def test_what_is_no_name_is_refused_before_anything_is_built(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid image name; give REPOSITORY or REPOSITORY:TAG"):
        parse(name)
