"""A key changes with content and with nothing else: not with a mirror, a date or a secret's value."""

import os
from pathlib import Path

import pytest

from envcheck.errors import PromiseError
from envcheck.images.lockfile import Lock
from envcheck.images.plan import context_digest
from envcheck.images.spec import ImageSpec, make_spec
from envcheck.images.tags import broken_labels, require_labels
from envcheck.matrix.facts.model import Cell, Matrix

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


@pytest.mark.parametrize("name", ["torch.lock", "bin/uv", "templates/context/install/install.sh"])
def test_content_changes_it(context: Path, name: str) -> None:
    before = context_digest(context)
    (context / name).write_text("other")
    assert context_digest(context) != before


@pytest.mark.parametrize(
    "name", ["mirror/torch/sources.tsv", "mirror/os/ca.pem", "mirror/torch/wheels/torch.whl", "mirror/os/apt/x"]
)
def test_the_mirror_does_not(context: Path, name: str) -> None:
    before = context_digest(context)
    (context / name).write_text("other")
    assert context_digest(context) == before


def test_the_bases_name_does_not_but_the_rest_of_the_dockerfile_does(context: Path) -> None:
    before = context_digest(context)
    dockerfile = context / "Dockerfile"
    dockerfile.write_text(FILES["Dockerfile"].replace("debian:x", "mirror.example/debian:x"))
    assert context_digest(context) == before
    dockerfile.write_text(FILES["Dockerfile"].replace("true", "false"))
    assert context_digest(context) != before


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
def spec(matrix: Matrix, locks: list[Lock]) -> ImageSpec:
    return make_spec(matrix, Cell(torch="2.8.0", variant="cu128", python="3.11"), locks)


@pytest.fixture
def labels(spec: ImageSpec) -> dict[str, str]:
    return {f"envcheck.{name}": value for name, value in spec.promises.items()}


def test_the_truth_passes_whatever_else_is_said(spec: ImageSpec, labels: dict[str, str]) -> None:
    more = {**labels, "maintainer": "site"}
    assert broken_labels(spec, more) == []
    require_labels(spec, more, "x:1")


@pytest.mark.parametrize("name", ["cell", "target", "torch", "cuda", "cudnn", "nccl", "python", "arch-list", "lock"])
def test_each_lie_is_named(spec: ImageSpec, labels: dict[str, str], name: str) -> None:
    with pytest.raises(PromiseError, match=rf"envcheck\.{name} is 0\.0, expected "):
        require_labels(spec, {**labels, f"envcheck.{name}": "0.0"}, "x:1")


def test_saying_nothing_is_a_lie(spec: ImageSpec, labels: dict[str, str]) -> None:
    del labels["envcheck.torch"]
    assert broken_labels(spec, labels) == ["envcheck.torch is absent, expected 2.8.0+cu128"]
    assert len(broken_labels(spec, {})) == len(spec.promises)
