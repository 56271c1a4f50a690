"""What a rank finds in its environment: torchrun's names, and every choice of the user's own."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.runner.execute import Run
from envcheck.runner.local_python import PACKAGE, ChosenPython, LocalPython
from envcheck.runner.worker import rank_group
from tests.tables import each


def test_a_rank_is_told_what_torchrun_would_tell_it() -> None:
    data = rank_group.environment(1, 2, 4711, {})
    assert data["GLOO_SOCKET_IFNAME"] == "lo"
    assert {k: data[k] for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert (data["MASTER_ADDR"], data["MASTER_PORT"]) == ("127.0.0.1", "4711")


def test_a_users_own_choice_is_what_is_tested() -> None:
    data = rank_group.environment(0, 2, 1, {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "7", "RANK": "5"})
    assert "GLOO_SOCKET_IFNAME" not in data
    assert "OMP_NUM_THREADS" not in data
    assert data["RANK"] == "0"


@pytest.mark.parametrize("spawn", [False, True], ids=["fork", "spawn"])
def test_ranks_meet_on_one_free_port_alone_in_an_empty_directory(
    add: Callable[..., Path], run_site: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, *, spawn: bool
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("PYTHONPATH", f"{PACKAGE.parent}{os.pathsep}/somewhere")
    add(
        "meets",
        """
        env = {k: v for k, v in os.environ.items() if k.startswith(("MASTER", "TORCHELASTIC", "NCCL", "PYTHONPATH"))}
        own = [p for p in sys.path if os.path.isdir(os.path.join(p, "envcheck"))]
        listed = [sorted(os.listdir(p)) for p in own]
        return {"env": env, "cwd": os.getcwd(), "scratch": rank.scratch, "listed": listed, "read": sys.stdin.read()}
        """,
    )
    # Not this interpreter: envcheck may well be installed in its environment.
    bare = LocalPython(ChosenPython(Path(sys.base_prefix, "bin", "python3"), "--python"))
    first, second = run_site(spawn=spawn, target=bare).outcomes["meets"].ranks
    assert first == second
    assert first["env"].pop("MASTER_PORT").isdigit()
    assert first["env"] == {"MASTER_ADDR": "127.0.0.1", "NCCL_DEBUG": "INFO", "PYTHONPATH": "/somewhere"}
    assert first["cwd"] == os.path.realpath(first["scratch"])
    # Of envcheck's own site-packages and checkout nothing else can be imported.
    assert first["listed"] == [["envcheck"]]
    assert first["read"] == ""


@each(("value", "count"), [("4", 4), ("4,2", 4), (" 3 ", 3), ("", 0), ("0", 0), ("abc", 0), ("-1", 0), ("9" * 5000, 0)])
def test_threads_are_chosen_as_openmp_reads_them(value: str, count: int) -> None:
    assert rank_group.chosen_threads({"OMP_NUM_THREADS": value}) == count
