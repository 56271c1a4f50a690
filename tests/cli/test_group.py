"""`envcheck fleet group` as a user starts it: what it says of its environment, and of a group that does not form."""

import json
import os
import subprocess
import sys
from pathlib import Path

from envcheck.fleet.group.meeting import free_ports
from tests.tables import each

NODE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "NODE_NAME": "n2"}


def group(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    launchers = ("SLURM", "MASTER", "RANK", "WORLD", "LOCAL_", "NODE_NAME", "OMPI_", "PMI_")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    command = [sys.executable, "-m", "envcheck", "fleet", "group", "--python", sys.executable, *options]
    return subprocess.run(command, env={**outside, **environment}, capture_output=True, text=True, check=False)


def test_what_cannot_be_is_one_line() -> None:
    node = {**NODE, "MASTER_PORT": "4711"}
    cases: list[tuple[list[str], dict[str, str], str]] = [
        (["--only", "nosuch"], node, "no check 'nosuch'"),
        (["--python", "nosuch/python"], node, "no Python at nosuch/python"),
        (["-o", "nosuch/x.json"], node, "cannot write to nosuch"),
        ([], {**node, "RANK": "2"}, "contradict"),
        ([], {**node, "MASTER_PORT": "0"}, "MASTER_PORT='0'"),
    ]
    for options, environment, words in cases:
        refused = group(*options, **environment)
        assert (refused.returncode, refused.stderr.count("\n"), words in refused.stderr) == (2, 1, True), refused.stderr


@each("rank, name, why", [("0", "n1", "missing: number 1"), ("1", "n2", "cannot connect to the first node")])
def test_a_group_that_does_not_form_is_undetermined_and_says_who_is_missing(
    tmp_path: Path, rank: str, name: str, why: str
) -> None:
    port = str(free_ports(1)[0])
    node = {**NODE, "RANK": rank, "NODE_NAME": name, "MASTER_PORT": port}
    ended = group("--wait", "1s", "-o", f"{tmp_path / name}/", **node)
    assert ended.returncode == 3, ended.stderr
    (file,) = (tmp_path / name).iterdir()
    assert file.name.startswith(name)
    report = json.loads(file.read_text())
    (outcome,) = report["outcomes"]
    assert (report["verdict"]["status"], outcome["id"], outcome["code"]) == (
        "error",
        "group-formed",
        "group.not-formed",
    )
    assert why in outcome["summary"]
    assert outcome["summary"].split(":")[0] in " ".join(ended.stdout.split())
