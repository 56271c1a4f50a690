"""GPUs that should reach each other: what is a fault, what is by design, and who else was there."""

import itertools
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Check, Limit, passed, too_slow, warned
from envcheck.checks.node import gpu_in_use, iommu, p2p_status
from envcheck.runner import judging
from tests.builders import check_module, gpu_view, put, put_gpu
from tests.tables import each


def pairs(count: int = 4, **odd: Any) -> list[dict[str, Any]]:
    """Return the matrix of so many GPUs, over PCIe; `odd` is of the last pair."""
    sound = {"read": "ok", "write": "ok", "nvlink": "not supported", "path": "PIX"}
    module = [{"a": a, "b": b, **sound} for a, b in itertools.combinations(range(count), 2)]
    return [*module[:-1], {**module[-1], **odd}]


@each(
    "matrix, status, message",
    [
        (pairs(), PASS, "every pair has it (6 pairs): 6 over PCIe"),
        (pairs(nvlink="ok"), PASS, "1 over NVLink, 5 over PCIe"),
        (pairs(read="not supported"), WARN, "GPU 2 - GPU 3 (not supported)"),
        # Across the sockets it has none where below a switch it has: another kind of path.
        (pairs(write="topology not supported", path="SYS"), PASS, "5 of 6 pairs with it"),
        # GPUs 0, 1, 2 and 7 of a DGX-1, whose NVLinks are a hybrid cube mesh.
        ([{**p, "nvlink": "ok"} if p["b"] < 3 else p for p in pairs()], PASS, "3 over NVLink, 3 over PCIe"),
        ([{**p, "read": "chipset not supported"} for p in pairs()], SKIP, "chipset not supported"),
    ],
)
def test_a_pair_is_held_against_its_links_and_its_like(matrix: list[dict[str, Any]], status: str, message: str) -> None:
    outcome = p2p_status.judge(put(gpu_view("v100x4"), gpu__p2p=matrix))
    assert (outcome.status, message in outcome.summary) == (status, True), outcome
    if status in (WARN, FAIL):
        assert len(outcome.details["gpus"]) == 2


def test_each_gpu_behind_the_iommu_is_a_finding_unless_it_reaches_no_other_over_the_bus() -> None:
    view = gpu_view("v100x4")
    for index in range(4):
        view = put_gpu(view, [index], bus_id=f"00000000:1{index}:00.0")
    groups = {f"0000:1{index}:00.0": "DMA" if index else "identity" for index in range(4)}
    # GPU 3 has NVLinks to all others, so nothing of it goes over the bus.
    linked = [{**pair, "nvlink": "ok"} if pair["b"] == 3 else pair for pair in pairs()]
    outcome = iommu.judge(put(view, pci__iommu=groups, host__hypervisor=False, gpu__p2p=linked))
    assert [finding.culprit.split(" (")[0] for finding in outcome.findings] == ["GPU 1", "GPU 2"]
    uuids = [gpu.uuid for gpu in view.snapshot.gpus]
    assert (outcome.status, outcome.details["gpus"]) == (WARN, uuids[1:3])
    assert all(finding.remedy and finding.limit for finding in outcome.findings)
    alone = put(view, pci__iommu={"0000:13:00.0": "DMA"}, host__hypervisor=False, gpu__p2p=linked)
    assert iommu.judge(alone).status == PASS


def test_who_is_on_a_gpu_is_named_from_the_limits_on() -> None:
    def summary_of(**signals: Any) -> tuple[str, str]:
        outcome = gpu_in_use.judge(put_gpu(gpu_view("h100x8"), [3], **signals))
        return outcome.status, outcome.summary

    assert summary_of(memory_used=2 << 30, utilization=10)[0] == PASS
    both = [{"pid": 7, "memory": 1}, {"pid": 8, "memory": 9}]
    status, summary = summary_of(memory_used=(2 << 30) + 1, processes=both)
    assert (status, "GPU 3: 8, 7" in summary) == (WARN, True)
    status, summary = summary_of(utilization=11, processes=[{"pid": 7, "memory": None, "name": "python"}])
    assert (status, "7 (python) kept it 11 % busy on GPU 3" in summary) == (WARN, True)
    status, summary = summary_of(processes=[{"pid": 7, "memory": 1 << 20, "name": "Xorg"}])
    assert (status, "processes below the limit: GPU 3 7 (Xorg)" in summary) == (PASS, True)


SPEED = Limit(300, "GB/s", "somebody who measured it")
SLOW = too_slow("slow", fix="look at the links", value=9, unit="GB/s", limit=SPEED, code="speed.slow")
LOW = warned("low", fix="look at the links", value=290, unit="GB/s", limit=SPEED, code="speed.low")
FINE = passed("fine", value=400, unit="GB/s", limit=SPEED)
FAST = check_module(performance=True)


def test_a_speed_that_falls_short_beside_somebody_elses_work_is_not_told() -> None:
    free = gpu_view("h100x8")
    taken = put_gpu(free, [3], memory_used=70 << 30, processes=[{"pid": 4711, "name": "python"}])
    outcome = judging.excuse_busy(SLOW, judging.Evidence(FAST, taken, {}))
    assert outcome.status == ERROR
    assert outcome.summary == "measured while 4711 (python) held 70.0 GiB on GPU 3: slow"
    assert outcome.remedy
    assert judging.excuse_busy(LOW, judging.Evidence(FAST, taken, {})).status == WARN
    assert "4711 (python)" in judging.excuse_busy(LOW, judging.Evidence(FAST, taken, {})).summary
    assert judging.excuse_busy(SLOW, judging.Evidence(FAST, free, {})) == SLOW
    assert judging.excuse_busy(FINE, judging.Evidence(FAST, taken, {})) == FINE
    # What is wrong is wrong beside anybody.
    right = FAST._replace(check=Check(promise="p", level="quick"))
    assert judging.excuse_busy(SLOW, judging.Evidence(right, taken, {})) == SLOW


def test_only_who_is_on_the_gpu_that_is_blamed_is_an_excuse() -> None:
    taken = put_gpu(gpu_view("h100x8"), [3], utilization=99)
    uuids = [gpu.uuid for gpu in taken.snapshot.gpus]

    def excused(**details: Any) -> bool:
        slow = too_slow("slow", fix="look", value=9, unit="GB/s", limit=SPEED, **details)
        return judging.excuse_busy(slow, judging.Evidence(FAST, taken, {})).status == ERROR

    assert [excused(device=uuids[3]), excused(device=uuids[4])] == [True, False]
    assert [excused(gpus=uuids[2:4]), excused(gpus=uuids[4:6])] == [True, False]
    # A run on other GPUs than the tenant's is its own.
    seen = gpu_view("h100x8", devices=[{"uuid": uuids[0]}])
    beside = put_gpu(seen, [3], utilization=99)
    assert judging.excuse_busy(SLOW, judging.Evidence(FAST, beside, {})) == SLOW
