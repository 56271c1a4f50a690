"""The fewest published cells for a fleet: exact against brute force, and what an operator reads."""

import functools
import itertools
import json
import operator
import re
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.cli import cli
from envcheck.errors import ConfigError
from envcheck.fleet.cover import CoverSet, of_places, smallest_cover, value
from tests.fleet.node_reports import node_report, write

SETS = st.lists(st.builds(CoverSet, st.integers(0, 255), st.tuples(st.integers(0, 3), st.integers(0, 1))), max_size=9)


def brute_force(sets: list[CoverSet]) -> tuple[int, tuple[list[tuple[int, ...]], list[int]]]:
    """Return the least size of a cover of all and the best value of that size, by trying all."""
    everything = functools.reduce(operator.or_, (one.mask for one in sets), 0)
    for size in range(len(sets) + 1):
        values = [
            value(places, sets)
            for places in itertools.combinations(range(len(sets)), size)
            if functools.reduce(operator.or_, (sets[place].mask for place in places), 0) == everything
        ]
        if values:
            return size, max(values)
    raise AssertionError


@settings(max_examples=150, deadline=None)
@given(SETS)
def test_the_cover_is_the_smallest_and_of_those_the_best(sets: list[CoverSet]) -> None:
    cover = smallest_cover(sets)
    assert (len(cover), value(cover, sets)) == brute_force(sets)


def test_forty_kinds_are_covered_at_once() -> None:
    assert len(smallest_cover([CoverSet(0b111 << place, (place,)) for place in range(38)])) == 14


def planned(folder: Path, table: str, *words: str) -> tuple[dict[str, Any], int, str]:
    path = folder / "inventory.csv"
    path.write_text(table)
    result = CliRunner().invoke(cli, ["fleet", "plan", str(path), *words, "--json"])
    completed = CliRunner().invoke(cli, ["fleet", "plan", str(path), *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout), result.exit_code, completed.stdout


FLEET = """node,gpu,driver,arch
h[1-12],H100,550.54.14,
l[1-4],L40S,580.65.06,amd64
t[1-3],T4,418.40.04,
"""


def test_the_nodes_share_a_cell_and_those_without_one_have_the_reason(tmp_path: Path) -> None:
    plan, code, text = planned(tmp_path, FLEET, "--torch", ">=2.6")
    assert (code, plan["nodes"], len(plan["cells"])) == (1, 19, 1)
    assert plan["cells"][0]["nodes"] == 16
    [without] = plan["uncovered"]
    assert plan["kinds"][without["kind"]]["names"] == ["t1", "t2", "t3"]
    assert without["verdict"] == "driver-too-old"
    assert text.startswith("1 published cell for 16 of 19 nodes")
    assert max(map(len, text.splitlines())) <= 80
    pull = f"on h[1-12],l[1-4]: envcheck pull {plan['cells'][0]['cell']} --from REPOSITORY"
    assert pull in " ".join(text.split()), "what each kind of nodes pulls"


def test_a_branch_is_a_driver_and_the_plan_says_where_cuda_compat_goes(tmp_path: Path) -> None:
    table = "node,gpu,driver\nn[1-2],H100,535\nn3,A100,535.104.05\n"
    plan, code, text = planned(tmp_path, table, "--torch", "2.10.0", "--cuda", "13.0")
    assert (code, plan["notes"][0].partition(":")[0]) == (0, "--driver 535 is a branch")
    assert "install cuda-compat-13-0 on n[1-3] and put it first on the loader path" in " ".join(text.split())
    (tmp_path / "empty.txt").touch()
    told = str(CliRunner().invoke(cli, ["fleet", "plan", str(tmp_path / "empty.txt")]).exception)
    assert ("is empty; write a header" in told, "on this node" in told) == (True, False)


def test_sixty_kinds_take_no_two_seconds_of_cpu(tmp_path: Path) -> None:
    gpus = ("H100", "A100", "L40S", "T4", "V100", "RTX 4090", "H200", "B200", "A10", "L4")
    drivers = ("525.60.13", "535.183.01", "550.54.14", "560.28.03", "570.124.06", "580.65.06")
    kinds = [f"k{number},{gpu},{driver}" for number, (gpu, driver) in enumerate(itertools.product(gpus, drivers))]
    (tmp_path / "t.csv").write_text("\n".join(["node,gpu,driver", *kinds]))
    began = time.process_time()
    done = CliRunner().invoke(cli, ["fleet", "plan", str(tmp_path / "t.csv"), "--json"])
    assert time.process_time() - began < 2
    assert len(json.loads(done.stdout)["kinds"]) == 60


def test_a_gpu_that_nobody_knows_is_a_row_and_kinds_that_the_same_cells_cover_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "node,gpu,driver\nx1,FooGPU,570.1.06\n" + "".join(f"n{i},H100,570.{i}.06\n" for i in range(100, 160))
    plan, code, text = planned(tmp_path, table, "--torch", ">=2.6")
    assert (code, len(plan["kinds"]), [cell["nodes"] for cell in plan["cells"]]) == (1, 61, [60])
    [without] = plan["uncovered"]
    assert (without["verdict"], plan["kinds"][without["kind"]]["names"]) == ("unknown-gpu", ["x1"])
    assert "unknown-gpu: no GPU named 'FooGPU' in the matrix" in " ".join(text.split())
    monkeypatch.setattr("envcheck.fleet.cover.MOST_KINDS", 0)
    table = str(tmp_path / "inventory.csv")
    assert "1 kinds of nodes" in str(CliRunner().invoke(cli, ["fleet", "plan", table]).exception)


def test_an_inventory_that_cannot_be_understood_is_refused_with_its_line(tmp_path: Path) -> None:
    head, table = "node,gpu,driver\n", tmp_path / "inventory.csv"
    cases: dict[str, tuple[str | bytes, str]] = {
        "empty": ("", "csv:1: the columns are"),
        "a column is missing": ("node,gpu\nn1,H100\n", "csv:1: the columns are"),
        "a column twice": ("node,gpu,driver,driver\nn1,H100,550.54.14,570.124.06\n", "csv:1: the columns are"),
        "no node": (head, "no node with a GPU and a driver"),
        "a field is missing": (f"{head}n1,H100\n", "csv:2: a line needs"),
        "a field too many": (f"{head}n1,H100,570.124.06,more\n", "csv:2: a line needs"),
        "no architecture": ("node,gpu,driver,arch\nn1,H100,570.124.06,sparc\n", "csv:2: 'sparc'"),
        "no driver": (f"{head}n1,H100,newest\n", "csv:2: 'newest' is not a driver"),
        "an open quotation": (f'{head}"n1,H100,570', "not CSV"),
        "no host list": (f"{head}n[3-1],H100,570.124.06\n", "csv:2: '3-1'"),
        "a long host list": (f"{head}n[1-999999],H100,550.54.14\n", "csv:2: the host list"),
        "a node twice": (f"{head}n1,H100,550.54.14\nn1,T4,550.54.14\n", "csv:3: n1 is in .*csv:2 too"),
        "no text": (b"\xff\xfe\x00", "not CSV"),
    }
    failures = {}
    for name, (content, message) in cases.items():
        table.write_bytes(content if isinstance(content, bytes) else content.encode())
        error = CliRunner().invoke(cli, ["fleet", "plan", str(table), "--torch", "2.8.0"]).exception
        if not (isinstance(error, ConfigError) and re.search(message, str(error)) and "--cc" not in str(error)):
            failures[name] = error
    assert failures == {}


def test_a_node_in_a_table_and_in_a_report_is_what_its_report_says(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("node,gpu,driver\nn[1-3],L40S,535.183.01\n")
    group = node_report("group") | {"group": {"run": "7.0", "nodes": ["n2", "n4"], "ranks": [1, 1]}}
    reports = write(tmp_path / "r", node_report("n2"), node_report("n4"), node_report("cpu", "cpu"), group)
    kinds, notes = of_places([table, reports])
    assert [(kind.gpus, kind.names) for kind in kinds] == [(["L40S"], ["n1", "n3"]), (["NVIDIA H200"], ["n2", "n4"])]
    assert len(notes) == 1
    (tmp_path / "junk.json").write_text("junk")
    with pytest.raises(ConfigError, match=r"no node with a GPU and a driver in .*: .*junk\.json is not JSON"):
        of_places([tmp_path / "junk.json"])
