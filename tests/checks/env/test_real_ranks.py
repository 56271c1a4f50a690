"""What honest ranks of a real torch come to, in groups of two to four, and after what breaks peer-to-peer.

How ranks lie is in tests/faults.
"""

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.runner.planning import discover
from tests.processes import checked, ran

Outcomes = Callable[[str], dict[str, Any]]
HONEST = (
    *("kernels", "amp", "ddp", "all-reduce", "all-reduce-bandwidth", "shm", "collectives", "checkpoint", "dataloader"),
    *("trainer", "fingerprint", "compiled", "fsdp", "straggler", "memory-patterns", "fp8-training"),
)
SPEEDS = ("all-reduce-bandwidth", "collective-bandwidth")
ON_GPUS_ONLY = ("sustained-gemm", "training-load")
OF_RANKS = [f.id for f in discover() if f.kind == "env" and f.check.ranks == 0 and not f.check.gpus]
# Tried with two ranks: each rank works by itself.
ALONE = ("amp", "fp8-training", "kernels", "memory-patterns")
# More ranks than cores: what is timed may come to any verdict.
TIMED = ("straggler",)
# Where a share that does not divide evenly, or a third one's, can be lost.
OF_THREE = ("all-reduce", "collectives", "ddp", "fsdp")
GROUPS = {4: [i for i in OF_RANKS if i not in ALONE], 3: [*OF_THREE]}
LIES = ("peers-bring-nothing", "peers-flip-a-bit", "peers-hang", "peers-crash")

# A machine that gives the same bits on all ranks and in all repeats, and others in its next round.
OTHER_BITS_LATER = '''"""Other bits from the second round on."""
import os
from envcheck.checks.env import fingerprint
from envcheck.checks.support import training as _replicas
CHECK, judge = fingerprint.CHECK, fingerprint.judge
def measure(rank):
    honest, later = _replicas.digest, os.path.exists("{mark}" + str(rank.rank))
    _replicas.digest = lambda torch, tensors: ("later" if later else "") + honest(torch, tensors)
    measured = fingerprint.measure(rank)
    open("{mark}" + str(rank.rank), "w").close()
    return measured
'''


def only(*checks: str) -> list[str]:
    return [word for check in checks for word in ("--only", check)]


@pytest.mark.torch
@pytest.mark.parametrize("check", HONEST)
def test_an_honest_environment_passes(outcomes: Outcomes, check: str) -> None:
    row = outcomes(check)
    if check == "fp8-training" and row["status"] == "skip":
        assert "on a CPU" in row["summary"]
        return
    assert row["status"] == "pass", row
    assert row["value"] is not None


@pytest.mark.torch
@pytest.mark.parametrize("check", SPEEDS)
def test_honest_ranks_report_what_they_measured_and_are_not_judged_on_a_cpu(outcomes: Outcomes, check: str) -> None:
    actual = outcomes(check)
    assert (actual["status"], actual["limit"]) == ("pass", None), actual
    assert "over gloo" in actual["summary"]
    assert "reported, not judged" in actual["summary"]
    assert 0 <= actual["value"] < 1000


@pytest.mark.torch
@pytest.mark.parametrize("check", ON_GPUS_ONLY)
def test_what_a_cpu_cannot_show_is_skipped_with_its_reason(outcomes: Outcomes, check: str) -> None:
    assert outcomes(check)["status"] == "skip"
    assert "GPU" in outcomes(check)["summary"]


@pytest.mark.torch
def test_every_collective_has_its_curve_its_latency_and_the_seconds_of_each_rank(outcomes: Outcomes) -> None:
    details = outcomes("collective-bandwidth")["details"]
    assert {"all-gather", "reduce-scatter", "all-to-all", "broadcast", "send/recv"} == {*details["curves"]}
    for name, curve in details["curves"].items():
        assert [point["bytes"] for point in curve] == [1 << 20, 1 << 22, 1 << 24], name
        assert all(len(point["rank_seconds"]) == 2 and point["busbw"] > 0 for point in curve), name
        assert [at["bytes"] for at in details["latency"][name]] == [8, 512, 4096, 32768]
        assert all(0 < at["p50"] <= at["p99"] for at in details["latency"][name])
    [*one] = outcomes("all-reduce-bandwidth")["details"]["curve"]
    assert all(point["busbw"] == pytest.approx(point["algbw"]) for point in one)


@pytest.mark.torch
def test_a_loader_in_the_64_mb_that_docker_gives_fails_with_the_remedy(torch_python: Path, tmp_path: Path) -> None:
    shrink = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh")
    if not shutil.which("unshare") or subprocess.run([*shrink, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small /dev/shm over its own")
    done, rows = checked(torch_python, tmp_path / "report.json", *only("dataloader"), before=shrink)
    row = rows["dataloader"]
    assert (done.returncode, row["status"]) == (1, "fail"), row
    assert "the loader broke" in row["summary"]
    assert "--shm-size" in row["remedy"]


@pytest.mark.torch
def test_a_repeated_run_compares_the_bits_of_its_rounds(torch_python: Path, tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "other_bits_later.py").write_text(OTHER_BITS_LATER.format(mark=str(tmp_path / "mark")))
    output, site = tmp_path / "report.json", ("--checks", str(tmp_path))
    done, rows = checked(torch_python, output, *site, *only("other-bits-later"), "--nproc", "2", "--repeat", "2")
    row = rows["other-bits-later"]
    assert (done.returncode, row["status"]) == (1, "fail"), row
    assert "rank 0 on cpu, rank 1 on cpu gave other bits than in the rounds before" in row["summary"]
    repeated = [sys.executable, "-m", "envcheck", "report", "judge", str(output), *site]
    assert ran(repeated).returncode == 1


@pytest.fixture(scope="module")
def groups(torch_python: Path, once: Callable[..., Path]) -> Callable[[int], dict[str, Any]]:
    """Return what runs the checks in so many ranks, once for all: the outcomes by id."""

    def get(ranks: int) -> dict[str, Any]:
        options = [*only(*GROUPS[ranks]), "--nproc", str(ranks)]
        directory = once(f"{ranks}-ranks", lambda made: checked(torch_python, made / "report.json", *options))
        return {row["id"]: row for row in json.loads((directory / "report.json").read_bytes())["outcomes"]}

    return get


@pytest.mark.torch
@pytest.mark.timeout(900)  # the first one waits for the run of all checks
@pytest.mark.parametrize(("ranks", "check"), [(ranks, check) for ranks, checks in GROUPS.items() for check in checks])
def test_a_check_of_ranks_passes_in_larger_groups(
    groups: Callable[[int], dict[str, Any]], ranks: int, check: str
) -> None:
    row = groups(ranks)[check]
    allowed = {"pass", "warn", "fail"} if check in TIMED else {"pass"}
    assert row["status"] in allowed, row["summary"]
    assert [entry["rank"] for entry in row["ranks"]] == [*range(ranks)]
    assert {entry["world"] for entry in row["ranks"]} == {ranks}


@pytest.fixture(scope="module")
def probed(
    torch_python: Path, liars: Path, tmp_path_factory: pytest.TempPathFactory, sabotaged: Callable[[str], Any]
) -> Callable[..., dict[str, Any]]:
    """Return what runs probes before a real all-reduce of two ranks, and gives the report's rows by id."""

    @functools.cache
    def get(*probes: str) -> dict[str, Any]:
        if probes == LIES:
            shared = json.loads(sabotaged(probes[0]).report.read_text())["outcomes"]
            return {row["id"]: row for row in shared}
        output, options = tmp_path_factory.mktemp("peers") / "report.json", ("--nproc", "2", "--checks", str(liars))
        done, rows = checked(torch_python, output, *options, *only(*probes, "all-reduce", "tells-environment"))
        assert done.returncode == 0
        return dict(rows)

    return get


@pytest.mark.torch
def test_broken_peer_to_peer_is_left_out_after_and_a_sound_one_changes_nothing(
    probed: Callable[..., dict[str, Any]],
) -> None:
    rows = probed(*LIES)
    assert all("NCCL_P2P_DISABLE=1" in rows[probe]["remedy"] for probe in LIES)
    assert [rank["NCCL_P2P_DISABLE"] for rank in rows["tells-environment"]["ranks"]] == ["1", "1"]
    assert rows["all-reduce"]["status"] == "pass"
    assert rows["all-reduce"]["summary"].endswith("; with NCCL_P2P_DISABLE=1")
    assert rows["all-reduce"]["details"]["ran_with"] == ["NCCL_P2P_DISABLE=1"]
    rows = probed("peers-honest")
    assert (rows["peers-honest"]["status"], rows["peers-honest"]["value"]) == ("pass", 0), rows["peers-honest"]
    assert [rank["NCCL_P2P_DISABLE"] for rank in rows["tells-environment"]["ranks"]] == [None, None]
    assert "ran_with" not in rows["all-reduce"]["details"]


def test_a_sites_own_checks_are_found_by_a_relative_path(liars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(liars.parent)
    assert "drifts" in {actual.id for actual in discover(Path(liars.name))}
