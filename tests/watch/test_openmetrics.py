"""The series as the reference parser of OpenMetrics reads them: every sample, with its time, and nothing else."""

from __future__ import annotations

import pytest
from msgspec import structs
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from envcheck.printable import printable
from envcheck.watch.outputs import openmetrics
from envcheck.watch.record import WatchRecord
from tests.watch.test_summary import GIB, gpu, watched

HOSTILE = 'GPU-"\\n\n\x1b[31m{}'

Series = dict[tuple[str, str], list[tuple[float, float]]]


def parsed(seen: WatchRecord) -> tuple[dict[str, str], Series]:
    """Return the type of each family, and by sample name and GPU the times with the values."""
    types, series = {}, Series()
    for family in text_string_to_metric_families(openmetrics(seen)):
        types[family.name] = family.type
        for sample in family.samples:
            assert sample.timestamp is not None
            at = float(sample.timestamp) - seen.started
            series.setdefault((sample.name, sample.labels.get("gpu", "")), []).append((round(at, 3), sample.value))
    return types, series


def test_every_sample_arrives_with_its_time() -> None:
    types, series = parsed(watched([gpu(0.5), gpu(0.5, 1, clock_sm=None), gpu(1.5, utilization=20.0)]))
    assert series["envcheck_watch_gpu_utilization_ratio", "0"] == [(0.5, pytest.approx(0.95)), (1.5, 0.2)]
    assert series["envcheck_watch_gpu_memory_used_bytes", "1"] == [(0.5, 40.0 * GIB)]
    assert ("envcheck_watch_gpu_sm_clock_hertz", "1") not in series, "a value that a GPU does not offer has no sample"
    assert series["envcheck_watch_cpu_seconds_total", ""] == [(float(at), float(at)) for at in range(11)]
    assert series["envcheck_watch_exit_code", ""] == [(10.0, 0.0)]
    assert types["envcheck_watch_cpu_seconds"] == "counter"
    assert {kind for name, kind in types.items() if "gpu" in name} == {"gauge"}


def test_a_counter_never_falls_and_hostile_names_stay_one_label() -> None:
    seen = watched([structs.replace(gpu(0.5), uuid=HOSTILE)])
    fallen = [*seen.tree[:3], seen.tree[3]._replace(cpu=0.0), *seen.tree[4:]]
    _, series = parsed(seen._replace(tree=fallen))
    families = text_string_to_metric_families(openmetrics(seen))
    uuids = {sample.labels["uuid"] for family in families for sample in family.samples if "uuid" in sample.labels}
    assert uuids == {printable(HOSTILE)}
    assert [value for _, value in series["envcheck_watch_cpu_seconds_total", ""]][:5] == [0.0, 1.0, 2.0, 2.0, 4.0]
