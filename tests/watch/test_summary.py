"""What a summary says of samples: each goal on both sides, and what slowed the run."""

from envcheck.watch.record import GpuSample, TreeSample, WatchRecord, page, summarize, thinned
from tests.tables import each

GIB = 1 << 30


def gpu(at: float, index: int = 0, **values: object) -> GpuSample:
    usual: dict[str, object] = {
        "utilization": 95.0,
        "memory_used": 40.0 * GIB,
        "memory_total": 80.0 * GIB,
        "power_draw": 600.0,
        "clock_sm": 1900.0,
        "temperature": 60.0,
        "reasons": (),
        "ecc": 0,
    }
    return GpuSample(at=at, uuid=f"GPU-{index}", index=index, **{**usual, **values})  # type: ignore[arg-type]


def watched(gpus: list[GpuSample], cpu: float = 1.0, **values: object) -> WatchRecord:
    """Return a run of ten seconds on four cores, `cpu` of which were busy."""
    tree = [TreeSample(float(at), 2, GIB, at * cpu, at * 1000, 0) for at in range(11)]
    seen = WatchRecord(("python", "train.py"), 1_800_000_000.0, 10.0, 0, 4, gpus, tree, [], [])
    return seen._replace(**values)  # type: ignore[arg-type]


def lines(seen: WatchRecord) -> dict[str, tuple[str, str]]:
    return {line.what: (line.status, line.text) for line in summarize(seen)}


@each(("percent", "status"), [(80.0, "good"), (79.9, "low")])
def test_utilization_is_held_against_80_percent(percent: float, status: str) -> None:
    assert lines(watched([gpu(at, utilization=percent) for at in range(10)]))["utilization"][0] == status


@each(("used", "status"), [(64.0, "good"), (64.1, "low")])
def test_free_memory_at_the_fullest_moment_is_held_against_20_percent(used: float, status: str) -> None:
    samples = [gpu(at, memory_used=(used if at == 5 else 10) * GIB) for at in range(10)]
    assert lines(watched(samples))["memory"][0] == status


def test_a_sound_run_is_not_said_to_be_slowed() -> None:
    assert set(lines(watched([gpu(at, index) for at in range(10) for index in (0, 1)]))) == {
        "utilization",
        "memory",
        "processes",
        "disks",
    }


def test_what_slowed_the_run_is_named() -> None:
    hot = [gpu(at, reasons=("hardware thermal slowdown",) if at > 4 else ()) for at in range(10)]
    assert lines(watched(hot))["clocks"] == ("low", "GPU 0: hardware thermal slowdown in 50% of the samples")
    idle = [gpu(at, index, utilization=95.0 * (index == 0)) for at in range(10) for index in (0, 1)]
    assert lines(watched(idle))["idle"][1].startswith("GPU 1 did nothing")
    uneven = [gpu(at, index, utilization=95.0 - 30 * index) for at in range(10) for index in (0, 1)]
    assert lines(watched(uneven))["uneven"][1].startswith("65 to 95 %")
    errors = [gpu(at, ecc=at // 5) for at in range(10)]
    assert lines(watched(errors))["memory errors"][1] == "GPU 0: 1 uncorrected ECC error"
    xid = {"code": 79, "bus_id": "0000:01:00", "text": "GPU has fallen off the bus", "age": 3.0}
    assert "Xid 79 on 0000:01:00" in lines(watched([gpu(0.0)], xids=[xid]))["Xid"][1]


@each(("cpu", "why"), [(3.9, "data loading on the CPU"), (1.0, "more DataLoader workers")])
def test_gpus_that_wait_are_explained_by_the_cores(cpu: float, why: str) -> None:
    seen = watched([gpu(at, utilization=5.0 if at % 3 == 0 else 99.0) for at in range(10)], cpu=cpu)
    assert why in lines(seen)["waiting"][1]


def test_what_a_gpu_does_not_offer_is_no_goal_that_is_met() -> None:
    bare = [GpuSample(at=float(at), uuid="GPU-0", index=0) for at in range(5)]
    seen = watched(bare)
    assert lines(seen)["utilization"][0] == "unknown"
    assert "memory" not in lines(seen)


def test_the_page_shows_each_series_and_no_markup_of_the_command() -> None:
    seen = watched([gpu(float(at)) for at in range(5)], command=("sh", "-c", "<script>alert(1)</script>"))
    text = page(seen)
    assert text.count("<figure") == 8
    assert "<script" not in text
    assert len(thinned([(float(at), 1.0) for at in range(10_000)])) <= 400
