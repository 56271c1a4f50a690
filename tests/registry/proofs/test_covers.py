"""Which node a proof covers: each axis on both sides, and the resolver of today in between."""

from typing import Any

from msgspec import structs

from envcheck.matrix.file.load import load
from envcheck.node.snapshot import Snapshot
from envcheck.registry.judge import NodeFacts, concerns, node_of, uncovered
from tests import proofs
from tests.builders import machine
from tests.tables import each

H100 = proofs.H100


def word(node: NodeFacts, **changes: Any) -> str | None:
    refused = uncovered(proofs.h100x8(**changes).facts, node, load())
    return refused.reason.value if refused else None


@each(
    "node, refusal",
    [
        (proofs.NODE, None),
        (structs.replace(proofs.NODE, models=("H100",)), None),
        (structs.replace(proofs.NODE, models=("NVIDIA H100 PCIe",)), None),  # one model of the matrix
        (structs.replace(proofs.NODE, models=("NVIDIA H200",)), "wrong-gpu"),
        (structs.replace(proofs.NODE, models=("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")), "wrong-gpu"),
        (structs.replace(proofs.NODE, models=("?",)), "wrong-gpu"),
        (structs.replace(proofs.NODE, models=("NVIDIA H100-1-10C",)), "wrong-gpu"),  # a slice of one
        (structs.replace(proofs.NODE, models=(), gpus=0), "wrong-gpu"),
        (structs.replace(proofs.NODE, mig=True), "wrong-gpu"),
        (structs.replace(proofs.NODE, gpus=1), None),
        (structs.replace(proofs.NODE, gpus=9), "too-few-gpus"),
        (structs.replace(proofs.NODE, driver="570.124.05"), "driver-too-old"),
        (structs.replace(proofs.NODE, driver="570.26"), "driver-too-old"),  # per field: 26 < 124
        (structs.replace(proofs.NODE, driver="570.124.07"), None),
        (structs.replace(proofs.NODE, driver="580.65.06"), None),
        (structs.replace(proofs.NODE, driver=""), "driver-unsupported"),
        (structs.replace(proofs.NODE, driver="new"), "driver-unsupported"),
        (structs.replace(proofs.NODE, driver=None), None),
        (structs.replace(proofs.NODE, arch="aarch64"), "wrong-arch"),
        (structs.replace(proofs.NODE, arch=""), "wrong-arch"),
        (structs.replace(proofs.NODE, arch=None), None),
    ],
)
def test_each_axis_is_held_against_the_node(node: NodeFacts, refusal: str | None) -> None:
    assert word(node) == refusal


def test_a_model_that_the_matrix_lacks_is_compared_by_the_letter() -> None:
    node = structs.replace(proofs.NODE, models=("NVIDIA Made-Up 9000",))
    assert word(node, gpu="NVIDIA Made-Up 9000") is None
    assert word(node, gpu="NVIDIA Made-Up 9001") == "wrong-gpu"
    assert word(proofs.NODE, gpu="NVIDIA H100-1-10C") == "wrong-gpu"


def test_the_resolver_of_today_must_still_say_yes() -> None:
    """R590 no longer drives Volta, whatever was proven on an older driver."""
    v100 = structs.replace(proofs.NODE, models=("Tesla V100-SXM2-32GB",), gpus=1)
    old = {"gpu": "Tesla V100-SXM2-32GB", "cc": "7.0", "cell": "torch2.8.0-cu126-py312", "driver": "570.124.06"}
    assert word(v100, **old) is None
    assert word(structs.replace(v100, driver="590.44.01"), **old) == "driver-unsupported"
    assert word(proofs.NODE, cell="torch2.8.0-cu999-py312") == "driver-unsupported"
    assert word(proofs.NODE, cell=None) == "driver-unsupported"
    assert word(proofs.NODE, cell="torch0.1.0-cu128-py312") == "driver-unsupported"


def test_forward_compatibility_is_proven_for_its_branch_alone() -> None:
    """CUDA 13 on R570 needs cuda-compat; on R580 it needs none."""
    forward = {"cell": "torch2.14.1-cu130-py312", "driver": "570.124.06"}
    assert word(proofs.NODE, **forward) is None
    assert word(structs.replace(proofs.NODE, driver="570.172.08"), **forward) is None
    assert word(structs.replace(proofs.NODE, driver="580.65.06"), **forward) == "driver-unsupported"
    unlisted = {**forward, "driver": "555.42.02"}  # cuda-compat does not work on R555
    assert word(structs.replace(proofs.NODE, driver="555.42.02"), **unlisted) == "driver-unsupported"
    assert word(proofs.NODE, **unlisted) == "driver-unsupported"
    native = {**forward, "driver": "580.65.06"}
    assert word(structs.replace(proofs.NODE, driver="580.65.06"), **native) is None
    assert word(structs.replace(proofs.NODE, driver="570.124.06"), **native) == "driver-too-old"


def test_a_run_on_a_cpu_covers_its_architecture() -> None:
    facts = proofs.stated("cpu").facts
    assert uncovered(facts, NodeFacts(arch="x86_64"), load()) is None
    assert uncovered(facts, proofs.NODE, load()) is None
    refused = uncovered(facts, NodeFacts(arch="aarch64"), load())
    assert refused is not None
    assert refused.reason.value == "wrong-arch"


def test_the_node_is_read_off_its_snapshot() -> None:
    assert node_of(machine("h100x8")) == structs.replace(
        proofs.NODE, driver=machine("h100x8").signal("driver.version").value
    )
    assert node_of(machine("mig")).mig
    assert len(node_of(machine("mixed")).models) == 2
    assert node_of(machine("cpu")).gpus == 0
    assert node_of(Snapshot()) == NodeFacts((), 0, "", "", mig=False)
    assert node_of(proofs.recorded("h200x1").snapshot) == proofs.H200


@each(
    "node, changes, does",
    [
        (proofs.NODE, {}, True),
        (proofs.NODE, {"gpus": 1}, True),
        (structs.replace(proofs.NODE, gpus=1), {}, True),
        (structs.replace(proofs.NODE, driver="570.124.05"), {}, False),
        (structs.replace(proofs.NODE, driver="580.65.06"), {}, True),
        (structs.replace(proofs.NODE, driver=None), {}, True),
        (structs.replace(proofs.NODE, driver="new"), {}, True),
        (proofs.NODE, {"driver": None}, True),
        (proofs.NODE, {"gpu": None}, True),
        (proofs.NODE, {"mode": "unknown", "gpu": None, "gpus": 0}, True),
        (structs.replace(proofs.NODE, models=("NVIDIA H200",)), {}, False),
        (structs.replace(proofs.NODE, mig=True), {}, False),
        (structs.replace(proofs.NODE, arch="aarch64"), {}, False),
    ],
)
def test_a_failed_run_concerns_the_same_gpus_on_its_driver_or_a_newer_one(
    node: NodeFacts, changes: dict[str, Any], does: object
) -> None:
    assert concerns(proofs.h100x8(**changes).facts, node, load()) is does
