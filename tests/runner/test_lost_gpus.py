"""A GPU that the driver lost is never hidden by leaving its check out."""

from envcheck.checks import ERROR, View
from envcheck.checks.node import gpu_lost
from envcheck.node.snapshot import Signal, Snapshot, Why
from envcheck.runner.judging import decide, lost_gpus_row, verdict
from envcheck.runner.outcomes import fields
from envcheck.runner.planning import discover, select
from envcheck.runner.schema import OutcomeRow
from tests import builders
from tests.tables import each

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


def judged(snapshot: Snapshot, **choice: list[str]) -> tuple[list[OutcomeRow], View]:
    """Return the rows of the node checks that a choice leaves, and the view they judged."""
    view = View(snapshot, SEEN, {}, "gpu")
    chosen = [actual for actual in select(discover(), "quick", **choice) if actual.kind == "node"]
    return [builders.row(f.id, kind="node", **fields(decide(f, view))) for f in chosen], view


def exit_code(snapshot: Snapshot, **choice: list[str]) -> int:
    rows, view = judged(snapshot, **choice)
    own = lost_gpus_row(view, {row.id: row for row in rows})
    return verdict([*rows, *filter(None, [own])], "gpu").exit_code


@each("choice", [{"skip": ["gpu-lost"]}, {"only": ["ecc"]}, {"only": ["shm"]}])
@each("why", ["lost", "reset-required"])
def test_a_choice_that_leaves_gpu_lost_out_is_no_pass_where_a_gpu_is_lost(
    choice: dict[str, list[str]], why: Why
) -> None:
    assert exit_code(lost(5, why=why), **choice) == 3
    rows, view = judged(lost(2, 5, why=why), **choice)
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
