"""What a site demands of a node: each demand is its own check, judged on both sides, and a wrong file is one line."""

from pathlib import Path

import pytest

from envcheck.checks import ERROR, FAIL, PASS, View
from envcheck.checks.node import gpu_lost
from envcheck.errors import ConfigError
from envcheck.node.snapshot import Signal, Snapshot, Why
from envcheck.runner import requirements
from envcheck.runner.judging import decide, lost_gpus_row, verdict
from envcheck.runner.outcomes import fields
from envcheck.runner.planning import discover, select
from envcheck.runner.schema import OutcomeRow
from tests import builders
from tests.tables import each


def view(machine: str) -> View:
    return View(builders.machine(machine))


def judged(wanted: requirements.Requirements, machine: View) -> dict[str, str]:
    return {actual.id: decide(actual, machine).status for actual in requirements.node_checks(wanted)}


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "ours.toml").write_text(text)
    return str(tmp_path / "ours.toml")


@each("name", sorted(p.stem for p in requirements.PROFILES.glob("*.toml")))
def test_each_shipped_profile_is_met_by_its_own_machine_and_by_no_other(name: str) -> None:
    expected = requirements.read(name)
    machines = {"hgx-h100": ("h100x8", "a100x8"), "workstation": ("rtx4090", "t4")}
    right, wrong = machines[name]
    assert set(judged(expected, view(right)).values()) == {PASS}
    assert judged(expected, view(wrong))["require-model"] == FAIL


@pytest.mark.parametrize(
    ("text", "check", "status"),
    [
        ("[gpu]\ncount = 8", "require-gpus", PASS),
        ("[gpu]\ncount = 9", "require-gpus", FAIL),
        ('[gpu]\nmodel = "H100"', "require-model", PASS),
        ('[gpu]\nmodel = "NVIDIA H100-1-10C"', "require-model", FAIL),  # a slice of one
        ("[gpu]\nmemory_gib = 80", "require-gpu-memory", PASS),
        ("[gpu]\nmemory_gib = 80.1", "require-gpu-memory", FAIL),
        ("[gpu]\nnvlinks = 18", "require-nvlinks", PASS),
        ("[gpu]\nnvlinks = 19", "require-nvlinks", FAIL),
        ("[gpu]\npcie_gen = 6", "require-pcie-gen", FAIL),
        ("[gpu]\npcie_width = 16", "require-pcie-width", PASS),
        ("[host]\nram_gib = 1024", "require-ram", PASS),
        ("[host]\nram_gib = 1025", "require-ram", FAIL),
        ("[host]\ndisk_gib = 401", "require-disk", FAIL),
        ('[driver]\nmin = "570.124.06"', "require-driver", PASS),
        ('[driver]\nmin = "570.124.07"', "require-driver", FAIL),
        ('[driver]\nbelow = "570.124.06"', "require-driver", FAIL),
        ('[driver]\nbelow = "571"', "require-driver", PASS),
    ],
)
def test_each_demand_on_both_sides(tmp_path: Path, text: str, check: str, status: str) -> None:
    expected = requirements.read(written(tmp_path, text))
    assert judged(expected, view("h100x8"))[check] == status


def test_a_machine_without_gpus_meets_no_demand_for_them() -> None:
    result = judged(requirements.read("hgx-h100"), view("cpu"))
    assert result["require-gpus"] == FAIL
    assert {result["require-model"], result["require-nvlinks"], result["require-driver"]} == {ERROR}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[gpu]\ncuont = 8", "cuont"),
        ('[gpu]\ncount = "8"', "count"),
        ("gpu = ", "ours.toml"),
        ("gpu = " + "[" * 100_000, "ours.toml: maximum recursion depth"),
        ("#" * 2**20 + "#", "longer than 1 MiB"),
        ('[gpu]\nmodel = "H1000"', "H100"),
        ('[gpu]\nmodel = "NVIDIA GeForce RTX 3080 ..."', "did you mean RTX 3080 or RTX 3080 Ti"),
        ('[driver]\nmin = "new"', "not a version"),
        ('[driver]\nmin = "580"\nbelow = "580"', "no driver is at least 580 and below 580"),
        ("", "contains no requirements"),
        ('name = "ours"\n[gpu]', "contains no requirements"),
        ('[gpu]\nmodel = ""\ncount = 1', "gpu.model is empty"),
    ],
)
def test_a_wrong_file_is_refused_by_place(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(ConfigError) as error:
        requirements.read(written(tmp_path, text))
    assert word in f"{error.value} {error.value.fix}"


def test_a_file_that_is_no_text_is_told_as_that(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_bytes(b"\xff\xfe[gpu]")
    with pytest.raises(ConfigError, match=r"ours\.toml is not UTF-8 text"):
        requirements.read(str(path))


SOUND = builders.machine("h100x8")
SEEN = {
    "torch": "2.8.0+cu128",
    "cuda": "12.8",
    "arch_list": ["sm_90"],
    "device_count": 8,
    "devices": [{"uuid": gpu.uuid} for gpu in SOUND.gpus],
}


def lost(*indices: int, why: Why = "lost") -> Snapshot:
    """Return eight GPUs, of which these have a signal that NVML refuses so."""
    unread = Signal(reason=f"NVML: {why}", why=why)
    return builders.put_gpu(View(SOUND), indices, utilization=unread).snapshot


def judged_without(snapshot: Snapshot, **choice: list[str]) -> tuple[list[OutcomeRow], View]:
    """Return the rows of the node checks that a choice leaves, and the view they judged_without."""
    view = View(snapshot, SEEN, {}, "gpu")
    chosen = [actual for actual in select(discover(), "quick", **choice) if actual.kind == "node"]
    return [builders.row(f.id, kind="node", **fields(decide(f, view))) for f in chosen], view


def exit_code(snapshot: Snapshot, **choice: list[str]) -> int:
    rows, view = judged_without(snapshot, **choice)
    own = lost_gpus_row(view, {row.id: row for row in rows})
    return verdict([*rows, *filter(None, [own])], "gpu").exit_code


@each("choice", [{"skip": ["gpu-lost"]}, {"only": ["ecc"]}, {"only": ["shm"]}])
@each("why", ["lost", "reset-required"])
def test_a_choice_that_leaves_gpu_lost_out_is_no_pass_where_a_gpu_is_lost(
    choice: dict[str, list[str]], why: Why
) -> None:
    assert exit_code(lost(5, why=why), **choice) == 3
    rows, view = judged_without(lost(2, 5, why=why), **choice)
    own = lost_gpus_row(view, {row.id: row for row in rows})
    assert own is not None
    assert [(finding.status, finding.culprit) for finding in own.findings] == [
        (ERROR, f"GPU {index} ({SOUND.gpus[index].uuid})") for index in (2, 5)
    ]
    assert all(f"NVML: {why}" in finding.summary and finding.remedy for finding in own.findings)


def test_a_choice_that_leaves_gpu_lost_out_is_nothing_to_say_where_all_gpus_answer() -> None:
    assert exit_code(SOUND, skip=["gpu-lost"]) == 0
    assert exit_code(SOUND, only=["ecc"]) == 0
    # What a GPU does not offer is not lost.
    assert exit_code(lost(5, why="unsupported"), only=["ecc"]) == 0


def test_a_gpu_that_gives_no_address_has_the_one_that_is_left() -> None:
    view = builders.gpu_view("h100x8")
    buses = [str(gpu.signal("bus_id").value)[4:].lower() for gpu in view.snapshot.gpus]
    view = builders.put(
        view, pci__gpus=[{"bus_id": bus, "driver": "nvidia", "numa_node": 0, "aer": {}} for bus in buses]
    )
    gone = Signal(reason="NVML: GPU is lost", why="lost")
    one = gpu_lost.judge(builders.put_gpu(view, [3], name=gone, bus_id=gone))
    assert one.summary == f"GPU 3 is in NVML's list and does not answer: NVML: GPU is lost; it is at {buses[3]}"
    two = gpu_lost.judge(builders.put_gpu(view, [3, 5], name=gone, bus_id=gone))
    assert f"it is at {buses[3]} or {buses[5]}" in two.summary
