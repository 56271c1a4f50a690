"""Groups of three and four real ranks over gloo: what two of them cannot get wrong, chunks and neighbours, is there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.runner.planning import discover

OF_RANKS = [f.id for f in discover() if f.kind == "env" and f.check.ranks == 0 and not f.check.gpus]
# Tried with two ranks: each rank works by itself.
ALONE = ("amp", "fp8-training", "kernels", "memory-patterns")
# More ranks than cores: what is timed may come to any verdict.
TIMED = ("straggler",)
# Where a share that does not divide evenly, or a third one's, can be lost.
OF_THREE = ("all-reduce", "collectives", "ddp", "fsdp")
GROUPS = {4: [i for i in OF_RANKS if i not in ALONE], 3: [*OF_THREE]}


@pytest.fixture(scope="module")
def outcomes(torch_python: Path, once: Callable[..., Path]) -> Callable[[int], dict[str, Any]]:
    """Return what runs the checks in so many ranks, once for all: the outcomes by id."""

    def run(directory: Path, ranks: int) -> None:
        command = [sys.executable, "-m", "envcheck", "--quiet", "run", "--python", str(torch_python)]
        command += ["--nproc", str(ranks), "--output", str(directory / "report.json")]
        only = [word for identity in GROUPS[ranks] for word in ("--only", identity)]
        subprocess.run([*command, *only], capture_output=True, check=False)

    def get(ranks: int) -> dict[str, Any]:
        directory = once(f"{ranks}-ranks", lambda made: run(made, ranks))
        return {row["id"]: row for row in json.loads((directory / "report.json").read_bytes())["outcomes"]}

    return get


@pytest.mark.torch
@pytest.mark.timeout(900)  # the first one waits for the run of all checks
@pytest.mark.parametrize(("ranks", "check"), [(ranks, check) for ranks, checks in GROUPS.items() for check in checks])
def test_a_check_of_ranks_passes_in_larger_groups(
    outcomes: Callable[[int], dict[str, Any]], ranks: int, check: str
) -> None:
    row = outcomes(ranks)[check]
    allowed = {"pass", "warn", "fail"} if check in TIMED else {"pass"}
    assert row["status"] in allowed, row["summary"]
    assert [entry["rank"] for entry in row["ranks"]] == [*range(ranks)]
    assert {entry["world"] for entry in row["ranks"]} == {ranks}
