"""`envcheck fleet group` as a user starts it: what it says of its environment, and of a group that does not form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envcheck.fleet.group.meeting import free_ports

NODE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "NODE_NAME": "n2"}


def group(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    launchers = ("SLURM", "MASTER", "RANK", "WORLD", "LOCAL_", "NODE_NAME", "OMPI_", "PMI_")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    command = [sys.executable, "-m", "envcheck", "fleet", "group", "--python", sys.executable, *options]
    return subprocess.run(command, env={**outside, **environment}, capture_output=True, text=True, check=False)


def test_what_the_environment_says_is_printed() -> None:
    shown = group("--dry-run", **NODE, MASTER_PORT="4711")
    assert shown.stdout == "n2 is number 1 of 2 nodes; they meet at 127.0.0.1 port 4711\n"


def test_a_dry_run_refuses_what_the_run_would(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--only", "nosuch"], "no check 'nosuch'"),
        (["--python", "nosuch/python"], "no Python at nosuch/python"),
        (["--nproc", "1025"], "--nproc"),
        (["-o", "nosuch/x.json"], "cannot write to nosuch"),
    ]
    for options, words in cases:
        with subtests.test(str((options, words))):
            refused = group("--dry-run", *options, **NODE, MASTER_PORT="4711")
            assert refused.returncode == 2, refused.stdout
            assert words in refused.stderr


def test_a_group_that_does_not_form_is_undetermined_and_says_who_is_missing(
    subtests: pytest.Subtests, tmp_path: Path
) -> None:
    cases: list[tuple[str, str]] = [("0", "n1"), ("1", "n2")]
    for rank, name in cases:
        with subtests.test(str((rank, name))):
            port = str(free_ports(1)[0])
            ended = group(
                "--wait",
                "1s",
                "-o",
                f"{tmp_path / name}/",
                **{**NODE, "RANK": rank, "NODE_NAME": name, "MASTER_PORT": port},
            )
            assert ended.returncode == 3, ended.stderr
            (file,) = (tmp_path / name).iterdir()
            assert file.name.startswith(name)
            report = json.loads(file.read_text())
            assert report["verdict"]["status"] == "error"
            (outcome,) = report["outcomes"]
            assert (outcome["id"], outcome["code"]) == ("group-formed", "group.not-formed")
            assert ("missing: number 1" if rank == "0" else "cannot connect to the first node") in outcome["summary"]
            assert outcome["summary"].split(":")[0] in " ".join(ended.stdout.split())


def test_an_environment_that_lies_is_one_line(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"RANK": "2"}, "contradict"),
        ({"RANK": "one"}, "RANK='one'"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT='0'"),
    ]
    for environment, words in cases:
        with subtests.test(str((environment, words))):
            ended = group(**{**NODE, **environment})
            assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
            assert words in ended.stderr
