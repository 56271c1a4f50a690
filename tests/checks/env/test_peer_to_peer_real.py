"""The probe of peer-to-peer with real processes of a real torch, and what it makes of the groups after it."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Report = Callable[..., dict[str, Any]]
LIES = ("peers-bring-nothing", "peers-flip-a-bit", "peers-hang", "peers-crash")


@pytest.fixture(scope="module")
def outcomes(
    torch_python: Path, liars: Path, tmp_path_factory: pytest.TempPathFactory, sabotaged: Callable[[str], Any]
) -> Report:
    """Return what runs probes before a real all-reduce of two ranks, and gives the report's rows by id."""

    @functools.cache
    def run(*probes: str) -> dict[str, Any]:
        if probes == LIES:
            shared = json.loads(sabotaged(probes[0]).report.read_text())["outcomes"]
            return {row["id"]: row for row in shared}
        output = tmp_path_factory.mktemp("peers") / "report.json"
        command = [sys.executable, "-m", "envcheck", "--quiet", "run", "--python", str(torch_python), "--nproc", "2"]
        command += ["--checks", str(liars), "--output", str(output)]
        command += [word for check in (*probes, "all-reduce", "tells-environment") for word in ("--only", check)]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, completed.stderr
        return {row["id"]: row for row in json.loads(output.read_text())["outcomes"]}

    return run


@pytest.mark.torch
def test_broken_peer_to_peer_is_left_out_after(outcomes: Report) -> None:
    rows = outcomes(*LIES)
    assert all("NCCL_P2P_DISABLE=1" in rows[probe]["remedy"] for probe in LIES)
    assert [rank["NCCL_P2P_DISABLE"] for rank in rows["tells-environment"]["ranks"]] == ["1", "1"]
    assert rows["all-reduce"]["status"] == "pass"
    assert rows["all-reduce"]["summary"].endswith("; with NCCL_P2P_DISABLE=1")
    assert rows["all-reduce"]["details"]["ran_with"] == ["NCCL_P2P_DISABLE=1"]


@pytest.mark.torch
def test_sound_peer_to_peer_passes_and_changes_nothing_after(outcomes: Report) -> None:
    rows = outcomes("peers-honest")
    assert rows["peers-honest"]["status"] == "pass", rows["peers-honest"]
    assert rows["peers-honest"]["value"] == 0
    assert [rank["NCCL_P2P_DISABLE"] for rank in rows["tells-environment"]["ranks"]] == [None, None]
    assert "ran_with" not in rows["all-reduce"]["details"]
