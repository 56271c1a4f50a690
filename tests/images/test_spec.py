"""A spec says what an image is to be, and refuses locks that contradict the facts."""

import re
from pathlib import Path

import msgspec
import pytest

from envcheck.errors import ConfigError
from envcheck.images.dockerfile import render_cell, write_locks
from envcheck.images.lockfile import Lock, Pin, digest, version_of
from envcheck.images.spec import load_spec, load_specs, make_spec
from envcheck.images.targets import cuda_compilers, requirements_of
from envcheck.matrix.facts.lookup import nvcc_in_wheels
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.matrix.file.load import load
from tests.tables import each

CELL = Cell(torch="2.8.0", variant="cu128", python="3.11")


def test_a_spec_promises_what_torch_will_say_of_itself(matrix: Matrix, locks: list[Lock]) -> None:
    spec = make_spec(matrix, CELL, locks)
    assert spec.tag == "2.8.0-cu128-py311-runtime"
    assert spec.promises == {
        "cell": "torch2.8.0-cu128-py311",
        "target": "runtime",
        "variant": "cu128",
        "torch": "2.8.0+cu128",
        "cuda": "12.8",
        "cudnn": "9.10.2",
        "nccl": "2.27.3",
        "triton": "none",
        "torchvision": "none",
        "torchaudio": "none",
        "python": "3.11",
        "arch-list": "sm_80 sm_90",
        "driver-floor": "525.60.13",
        "fabric": "libibverbs.so.1 libmlx5.so.1",
        "lock": digest(locks),
    }


def test_a_cpu_cell_says_none_where_it_has_no_such_thing(matrix: Matrix) -> None:
    promises = make_spec(matrix, Cell(torch="2.8.0", variant="cpu", python="3.11"), []).promises
    assert {promises[name] for name in ("cuda", "cudnn", "nccl", "arch-list", "driver-floor", "fabric", "lock")} == {
        "none"
    }
    assert promises["torch"] == "2.8.0+cpu"


@pytest.mark.parametrize(("package", "version"), [("nvidia-cudnn-cu12", "9.10.3.1"), ("nvidia-nccl-cu12", "2.27.30")])
def test_a_lock_that_contradicts_the_facts_is_refused(
    matrix: Matrix, locks: list[Lock], package: str, version: str
) -> None:
    others = [pin for pin in locks[0].pins if pin.name != package]
    wrong = [*others, Pin(name=package, version=version, sha256=["0" * 64])]
    with pytest.raises(ConfigError, match=version):
        make_spec(matrix, CELL, [msgspec.structs.replace(locks[0], pins=wrong), *locks[1:]])


def test_a_lock_of_another_torch_is_refused(matrix: Matrix, locks: list[Lock]) -> None:
    torch = msgspec.structs.replace(locks[1], pins=[Pin(name="torch", version="2.7.1", sha256=["0" * 64])])
    with pytest.raises(ConfigError, match=r"torch 2\.7\.1, not 2\.8\.0"):
        make_spec(matrix, CELL, [locks[0], torch, locks[2]])


def test_every_published_cell_has_a_spec_and_its_lock_agrees_with_the_facts() -> None:
    facts = load()
    for cell in facts.cells():
        spec = load_spec(facts, cell)
        assert spec.promises["cudnn"] != "unknown", cell
        assert spec.promises["nccl"] != "unknown", cell
        assert spec.promises["arch-list"] != "unknown", cell


def test_a_target_without_its_own_lock_is_refused_with_what_to_do(
    matrix: Matrix, locks: list[Lock], tmp_path: Path
) -> None:
    write_locks(tmp_path, CELL, locks)
    assert load_spec(matrix, CELL, images_dir=tmp_path).promises["target"] == "runtime"
    with pytest.raises(ConfigError, match=rf"lacks train.lock.*envcheck lock {CELL} --target train"):
        load_spec(matrix, CELL, "train", images_dir=tmp_path)
    own = Lock(group="train", index="pypi", pins=[Pin(name="peft", version="1.0", sha256=["0" * 64])])
    write_locks(tmp_path, CELL, [*locks, own])
    with pytest.raises(ConfigError, match=rf"lacks extensions.lock.*envcheck lock {CELL} --target train"):
        load_spec(matrix, CELL, "train", images_dir=tmp_path)
    write_locks(tmp_path, CELL, [*locks, own, Lock(group="extensions", index="pypi", pins=own.pins)])
    groups = [lock.group for lock in load_spec(matrix, CELL, "train", images_dir=tmp_path).locks]
    assert groups[-2:] == ["train", "extensions"]
    assert not {"train", "extensions"} & {lock.group for lock in load_spec(matrix, CELL, images_dir=tmp_path).locks}


def test_an_architecture_has_its_own_locks_of_the_same_versions() -> None:
    facts = load()
    cells = [cell for cell in facts.cells() if "aarch64" in facts.archs(cell)]
    # torch 2.11 to 2.15 as the Python index has it, for Grace, and the CPU's that it has: torch 2.4 to 2.10
    assert [cell.variant == "cpu" for cell in cells].count(False) == 19
    assert len(cells) == 45
    for cell, target in [(one, target) for one in cells for target in facts.targets(one)]:
        x86, arm = load_spec(facts, cell, target), load_spec(facts, cell, target, arch="aarch64")
        versions = [
            {pin.name: pin.version.partition("+")[0] for lock in spec.locks for pin in lock.pins} for spec in (x86, arm)
        ]
        assert versions[0] == versions[1], (cell, target)
        torches = [next(pin for lock in spec.locks for pin in lock.pins if pin.name == "torch") for spec in (x86, arm)]
        assert not {*torches[0].sha256} & {*torches[1].sha256}
        assert (arm.arch, arm.promises["cuda"]) == ("aarch64", x86.promises["cuda"])
        assert cell.variant == "cpu" or "sm_90" in arm.promises["arch-list"].split()


def test_an_old_wheel_of_the_cpu_for_arm_names_no_variant() -> None:
    """The word of torch/version.py in the wheels: 2.5.1, then 2.6.0+cpu."""
    facts = load()
    cells = [Cell(torch=torch, variant="cpu", python="3.11") for torch in ("2.4.1", "2.5.1", "2.6.0", "2.10.0")]
    promised = [load_spec(facts, cell, arch="aarch64").promises["torch"] for cell in cells]
    assert promised == ["2.4.1", "2.5.1", "2.6.0+cpu", "2.10.0+cpu"]
    assert load_spec(facts, cells[0]).promises["torch"] == "2.4.1+cpu"


def test_the_locks_of_one_architecture_leave_the_other_alone(tmp_path: Path) -> None:
    facts = load()
    cell = Cell(torch="2.14.1", variant="cu130", python="3.12")
    x86, arm = load_spec(facts, cell), load_spec(facts, cell, arch="aarch64")
    assert write_locks(tmp_path, cell, x86.locks)
    assert write_locks(tmp_path, cell, arm.locks, "aarch64")
    assert not write_locks(tmp_path, cell, x86.locks)
    assert load_spec(facts, cell, images_dir=tmp_path, arch="aarch64").locks == arm.locks
    files = render_cell(x86, arm)
    assert {name for name in files if "aarch64" in name} == {f"{g}.aarch64.lock" for g in ("nvidia", "torch", "base")}
    with pytest.raises(ConfigError, match=rf"lacks train\.aarch64\.lock.*envcheck lock {cell} --arch aarch64 --target"):
        load_spec(facts, cell, "train", images_dir=tmp_path, arch="aarch64")
    (tmp_path / str(cell) / "base.aarch64.lock").unlink()
    assert load_spec(facts, cell, images_dir=tmp_path).locks == x86.locks
    with pytest.raises(ConfigError, match=r"lacks base\.aarch64\.lock"):
        load_spec(facts, cell, images_dir=tmp_path, arch="aarch64")


@each(
    "cuda, wheels",
    [
        ("11.8", {"nvidia-cuda-nvcc-cu11", "nvidia-cuda-cccl-cu11"}),
        ("12.1", {"nvidia-cuda-nvcc-cu12", "nvidia-cuda-cccl-cu12"}),
        ("12.9", {"nvidia-cuda-nvcc-cu12", "nvidia-cuda-cccl-cu12"}),
        ("13.0", {"nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl"}),
        ("13.2", {"nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl"}),
        ("14.0", set()),
    ],
)
def test_compilers_are_those_of_the_same_minor_cuda(cuda: str, wheels: set[str]) -> None:
    assert set(cuda_compilers(cuda)) == {f"{name}=={cuda}.*" for name in wheels}
    assert nvcc_in_wheels(cuda) == ("nvidia-nvvm" in wheels or not wheels)


def test_devel_wants_a_cuda_compiler_only_for_a_wheel_with_cuda() -> None:
    without = requirements_of("devel", None)
    assert not any(name.startswith("nvidia-") for name in without)
    assert requirements_of("devel", "13.0") == [*without, *cuda_compilers("13.0")]
    assert requirements_of("runtime", "13.0") == []


def test_every_published_devel_holds_the_compilers_of_its_own_cuda() -> None:
    facts = load()
    specs = [spec for cell in facts.cells() for spec in load_specs(facts, cell) if spec.target == "devel"]
    assert specs
    for spec in (spec for spec in specs if spec.promises["cuda"] != "none"):
        for wheel in (requirement.partition("==")[0] for requirement in cuda_compilers(spec.promises["cuda"])):
            version = version_of(spec.locks, re.escape(wheel))
            assert version is not None, (spec.cell, wheel)
            # The headers of CCCL go by their own version where torch itself asks for newer ones.
            assert "cccl" in wheel or version.startswith(f"{spec.promises['cuda']}."), (spec.cell, wheel, version)
