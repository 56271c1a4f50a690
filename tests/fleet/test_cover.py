"""The fewest published cells for a fleet: exact against brute force, and what an operator reads."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.cli import cli
from envcheck.errors import ConfigError
from envcheck.fleet.cover import MOST_KINDS, CoverSet, Score, of_places, smallest_cover, value
from tests.fleet.node_reports import node_report, write

SETS = st.lists(st.builds(CoverSet, st.integers(0, 255), st.tuples(st.integers(0, 3), st.integers(0, 1))), max_size=9)


def brute_force(elements: int, sets: list[CoverSet]) -> tuple[int, list[Score]] | None:
    """Return the least size of a cover and the best value of that size, by trying all."""
    for size in range(len(sets) + 1):
        values = []
        for places in itertools.combinations(range(len(sets)), size):
            covered = 0
            for place in places:
                covered |= sets[place].mask
            if not elements & ~covered:
                values.append(value(places, sets))
        if values:
            return size, max(values)
    return None


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 255), SETS)
def test_the_cover_is_the_smallest_and_of_those_the_best(elements: int, sets: list[CoverSet]) -> None:
    cover = smallest_cover(elements, sets)
    best = brute_force(elements, sets)
    assert (cover is None) == (best is None)
    if cover is not None and best is not None:
        assert (len(cover), value(cover, sets)) == best


def test_forty_kinds_are_covered_at_once() -> None:
    sets = [CoverSet(0b111 << place, (place,)) for place in range(38)]
    cover = smallest_cover((1 << 40) - 1, sets)
    assert cover is not None
    assert len(cover) == 14


def planned(folder: Path, table: str, *words: str) -> tuple[dict[str, Any], int, str]:
    path = folder / "inventory.csv"
    path.write_text(table)
    result = CliRunner().invoke(cli, ["fleet", "plan", str(path), *words, "--json"])
    completed = CliRunner().invoke(cli, ["fleet", "plan", str(path), *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout), result.exit_code, completed.stdout


FLEET = """node,gpu,driver,arch,count
h[1-12],H100,550.54.14,,
l[1-4],L40S,580.65.06,amd64,
t4-rack,T4,418.40.04,,3
"""


def test_the_nodes_share_a_cell_and_those_without_one_have_the_reason(tmp_path: Path) -> None:
    plan, code, text = planned(tmp_path, FLEET, "--torch", ">=2.6")
    assert (code, plan["nodes"], len(plan["cells"])) == (1, 19, 1)
    assert plan["cells"][0]["nodes"] == 16
    [without] = plan["uncovered"]
    assert plan["kinds"][without["kind"]]["names"] == ["t4-rack"]
    assert without["verdict"] == "driver-too-old"
    assert plan["upgrades"][-1]["uncovered"] == 0
    assert text.startswith("1 published cell for 16 of 19 nodes")
    assert "What a newer driver would add" in text
    assert "1 image as before" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_an_inventory_that_cannot_be_read_is_refused(subtests: pytest.Subtests, tmp_path: Path) -> None:
    cases: list[str | bytes] = [
        "",
        "node,gpu\nn1,H100\n",
        "node,gpu,driver\n",
        "node,gpu,driver\nn1,H100\n",
        "node,gpu,driver\nn1,H100,570.124.06,more\n",
        "node,gpu,driver,arch\nn1,H100,570.124.06,sparc\n",
        "node,gpu,driver,count\nn1,H100,570.124.06,-1\n",
        "node,gpu,driver,count\nn1,H100,570.124.06,0\n",
        'node,gpu,driver\n"n1,H100,570',
        "node,gpu,driver\nn[3-1],H100,570.124.06\n",
        b"\xff\xfe\x00",
    ]
    for table in cases:
        with subtests.test(str(table)):
            (tmp_path / "inventory.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
            with pytest.raises(ConfigError):
                of_places([tmp_path / "inventory.csv"])


def test_a_line_that_contradicts_itself_or_another_is_named(subtests: pytest.Subtests, tmp_path: Path) -> None:
    cases: list[tuple[str, str]] = [
        ("node,gpu,driver\nn1,H100,550.54.14\nn1,T4,550.54.14\n", "inventory.csv:3: n1 is in .*inventory.csv:2 too"),
        ("node,gpu,driver,driver\nn1,H100,550.54.14,570.124.06\n", "inventory.csv:1: the columns are"),
        ("node,gpu,driver,count\nn[1-2],H100,550.54.14,5\n", "inventory.csv:2: .* names 2 nodes, and the count is 5"),
        ("node,gpu,driver\nn1,H100,550.54.14\nn2,FooGPU,550.54.14\n", "inventory.csv:3: no GPU named 'FooGPU'"),
        ("node,gpu,driver\nn[1-999999],H100,550.54.14\n", "inventory.csv:2: the host list"),
    ]
    for table, message in cases:
        with subtests.test(str((table, message))):
            (tmp_path / "inventory.csv").write_text(table)
            result = CliRunner().invoke(cli, ["fleet", "plan", str(tmp_path / "inventory.csv"), "--torch", "2.8.0"])
            assert isinstance(result.exception, ConfigError)
            assert re.search(message, str(result.exception))
            assert "--cc" not in str(result.exception)


def test_a_count_that_is_right_and_one_label_for_two_kinds_are_taken(tmp_path: Path) -> None:
    table = "node,gpu,driver,count\nn[1-2],H100,550.54.14,2\nrack,T4,550.54.14,3\nrack,L4,550.54.14,4\n"
    (tmp_path / "inventory.csv").write_text(table)
    assert sorted(of_places([tmp_path / "inventory.csv"]).counts.values()) == [2, 3, 4]


def test_a_gpu_or_driver_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    for line in ("n1,HAL9000,570.124.06", "n1,H100,newest"):
        (tmp_path / "inventory.csv").write_text(f"node,gpu,driver\n{line}\n")
        result = CliRunner().invoke(cli, ["fleet", "plan", str(tmp_path / "inventory.csv")])
        assert isinstance(result.exception, ConfigError)


def test_more_kinds_than_a_plan_takes_are_refused(tmp_path: Path) -> None:
    for count in (MOST_KINDS, MOST_KINDS + 1):
        lines = "".join(f"n{i},H100,570.{i}.06\n" for i in range(100, 100 + count))
        (tmp_path / "inventory.csv").write_text(f"node,gpu,driver\n{lines}")
        result = CliRunner().invoke(cli, ["fleet", "plan", str(tmp_path / "inventory.csv"), "--torch", "2.8.0"])
        assert isinstance(result.exception, ConfigError) == (count > MOST_KINDS)


def test_a_node_in_a_table_and_in_a_report_is_one_node(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("node,gpu,driver\nn[1-3],L40S,535.183.01\n")
    folder = write(tmp_path / "r", node_report("n2"), node_report("n4"))
    inventory = of_places([table, folder])
    assert sorted(inventory.counts.values()) == [2, 2]
    assert sorted(inventory.names.values()) == [["n1", "n3"], ["n2", "n4"]]
    assert inventory.notes == ["n2: the report counts, and not the line of CSV"]
    write(folder, node_report("n1"), node_report("n3"))
    assert [*of_places([table, folder]).counts.values()] == [4]


def test_reports_are_an_inventory(tmp_path: Path) -> None:
    write(tmp_path, node_report("n1"), node_report("n2"), node_report("cpu", "cpu"))
    inventory = of_places([tmp_path])
    [(kind, count)] = inventory.counts.items()
    assert (kind.gpus, kind.driver, count) == (("NVIDIA H200",), "570.124.06", 2)
    assert len(inventory.notes) == 1


def test_a_file_that_is_no_report_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "junk.json").write_text("junk")
    with pytest.raises(ConfigError, match=r"no node with a GPU and a driver in .*: .*junk\.json is not JSON"):
        of_places([tmp_path / "junk.json"])
