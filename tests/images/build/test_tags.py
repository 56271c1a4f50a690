"""A tag says every axis; an alias never goes back."""

import os
from pathlib import Path

import pytest

from envcheck.errors import ConfigError, PromiseError
from envcheck.images import tags
from envcheck.images.lockfile import Lock
from envcheck.images.plan import context_digest
from envcheck.images.spec import ImageSpec, make_spec
from envcheck.images.tags import broken_labels, parse, require_labels
from envcheck.matrix.facts.model import Base, Cell, Matrix, Target
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


def test_aliases_of_a_runtime_also_go_without_its_target() -> None:
    assert tags.aliases("t", spec()) == [
        "t:2.13-cpu-py311-runtime",
        "t:cpu-py311-runtime",
        "t:2.13.0-cpu-py311",
        "t:2.13-cpu-py311",
        "t:cpu-py311",
    ]


@each(
    "labels, why",
    [
        *(({"envcheck.torch": torch}, "") for torch in ("2.13.0+cpu", "2.12.1+cpu", "2.9.1+cpu")),
        ({"envcheck.torch": "2.13.1+cpu"}, "newer"),
        ({"envcheck.torch": "2.14.0"}, "newer"),
        ({"envcheck.torch": "2.8.0a0+5228986c39"}, "not envcheck's"),
        ({}, "not envcheck's"),
    ],
)
def test_alias_stays_with_a_newer_torch_or_a_stranger(labels: dict[str, str], why: str) -> None:
    text = tags.held_back(labels, spec()) or ""
    assert (why in text, bool(text)) == (True, bool(why))


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
    with pytest.raises(ConfigError, match="is not a valid image name; give REPOSITORY:TAG"):
        parse(name)


FILES = {
    "Dockerfile": "ARG BASE=debian:x\nFROM ${BASE}\nRUN true\n",
    "torch.lock": "torch==2.8.0",
    "bin/uv": "binary",
    "templates/context/install/install.sh": "echo",
    "mirror/torch/sources.tsv": "torch\tpypi-1\tsimple\thttps://mirror.example/simple\n",
    "mirror/os/ca.pem": "certificate",
    "mirror/torch/wheels/torch.whl": "wheel",
    "mirror/os/apt/debian.mirrors": "http://mirror.example/debian",
}


@pytest.fixture
def context(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@each(
    "name, text, changes",
    [
        *((name, "other", True) for name in ("torch.lock", "bin/uv", "templates/context/install/install.sh")),
        *((name, "other", False) for name in [*FILES, "mirror/os/apt/x"] if name.startswith("mirror/")),
        ("Dockerfile", FILES["Dockerfile"].replace("debian:x", "mirror.example/debian:x"), False),
        ("Dockerfile", FILES["Dockerfile"].replace("true", "false"), True),
    ],
)
def test_what_is_built_changes_the_digest_and_the_mirror_does_not(
    context: Path, name: str, text: str, *, changes: bool
) -> None:
    before = context_digest(context)
    (context / name).write_text(text)
    assert (context_digest(context) != before) is changes


def test_dates_do_not_but_names_and_executable_bits_do(context: Path) -> None:
    before = context_digest(context)
    os.utime(context / "bin/uv", (1, 1))
    assert context_digest(context) == before
    (context / "bin/uv").chmod(0o755)
    executable = context_digest(context)
    assert executable != before
    (context / "bin/uv").rename(context / "bin/uv2")
    assert context_digest(context) != executable


@pytest.fixture
def spec_of(matrix: Matrix, locks: list[Lock]) -> ImageSpec:
    return make_spec(matrix, Cell(torch="2.8.0", variant="cu128", python="3.11"), locks)


def test_each_lie_is_named_and_saying_nothing_is_one(spec_of: ImageSpec) -> None:
    labels = {f"envcheck.{name}": value for name, value in spec_of.promises.items()}
    require_labels(spec_of, {**labels, "maintainer": "site"}, "x:1")
    for name in ("cell", "target", "torch", "cuda", "cudnn", "nccl", "python", "arch-list", "lock"):
        with pytest.raises(PromiseError, match=rf"envcheck\.{name} is 0\.0, expected "):
            require_labels(spec_of, {**labels, f"envcheck.{name}": "0.0"}, "x:1")
    del labels["envcheck.torch"]
    assert broken_labels(spec_of, labels) == ["envcheck.torch is absent, expected 2.8.0+cu128"]
    assert len(broken_labels(spec_of, {})) == len(spec_of.promises)
