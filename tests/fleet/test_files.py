"""What is read of a fleet's files: each comes to a report or to one line, whatever is in it."""

import contextlib
import json
import os
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.errors import ConfigError
from envcheck.fleet.files import LONGEST, read_files
from envcheck.fleet.hostlist import MOST, fold, is_name, natural, unfold
from envcheck.fleet.one_report import read
from tests.fleet.node_reports import node_report, outcome_of, write
from tests.tables import each, one_line

SOUND = json.dumps(node_report("n17")).encode()
HEAD = b'{"schema": "envcheck/report/1", '


@given(
    st.one_of(
        st.integers(0, len(SOUND) - 1).map(lambda length: SOUND[:length]),
        st.integers(0, 9).map(lambda length: b"\0" * length),
        st.sampled_from(
            [HEAD + b'"started": 5}', HEAD + b'"outcomes": ' + b"[" * 100_000, b"\xef\xbb\xbf" + HEAD + b"\xff"]
        ),
        st.just(SOUND.replace(b"envcheck/report/1", b"envcheck/report/2", 1)),
    )
)
def test_what_a_run_left_unfinished_is_undetermined_in_one_line(content: bytes) -> None:
    with pytest.raises(ConfigError, match=one_line("")):
        read(content, "n17")


@each(
    "content, note",
    [
        (b"[]", "is not a report of envcheck"),
        (b"null", "is not a report of envcheck"),
        (b'{"name": "x", "schema": "else"}', "is not a report of envcheck"),
        (b'{"schema": "https://json.schemastore.org/package"}', "is not a report of envcheck"),
        (b'{"a": NaN}', "is not JSON"),
        (b"\xff\xfe{}", "is not JSON"),
        (b"[" * 100_000, "is not a report of envcheck"),
    ],
)
def test_a_file_of_something_else_is_one_line_and_no_node(tmp_path: Path, content: bytes, note: str) -> None:
    (tmp_path / "package.json").write_bytes(content)
    [file] = read_files([tmp_path])
    assert (file.node, file.report, file.note) == ("", None, note)


def test_a_file_that_cannot_be_read_is_of_the_node_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "envcheck-report-n17.json").write_bytes(SOUND[:999])
    with (tmp_path / "n1.json").open("wb") as file:
        file.truncate(LONGEST + 1)
    torn, long = read_files([tmp_path])
    assert (torn.node, torn.report, long.node, long.report) == ("n17", None, "n1", None)
    assert "is a report that is cut off or damaged" in torn.note
    assert "16 MiB" in long.note


PRINTED = json.dumps(node_report("n17"), indent=1).encode() + b"\n"


@each(
    "log",
    [
        PRINTED,
        b"a warning\n" + PRINTED,
        b'{"level": "info"}\n' + PRINTED + b"done\n",
        b"a warning\n" + PRINTED + b'{"level": "info"}\n}\n',
        b"a warning\r\n" + PRINTED.replace(b"\n", b"\r\n") + b"done\r\n",
    ],
)
def test_a_report_is_read_among_other_lines_of_a_log(log: bytes) -> None:
    found = read(log, "pod")
    assert (found.node, found.status) == ("n17", "pass")


@each("log", [b"a warning\n" + PRINTED[:-3], PRINTED + PRINTED, b"a\n" + PRINTED + b"b\n" + PRINTED])
def test_a_part_of_a_report_or_two_of_them_are_none(log: bytes) -> None:
    with pytest.raises(ConfigError, match="is cut off or damaged"):
        read(log, "pod")


@each(
    "status, outcome, changes",
    [
        ("pass", {"added": 1}, {"added": {"later": [1]}, "timing": None}),  # another version's fields
        ("fail", {"status": "fail"}, {}),
        ("error", {"status": "error"}, {}),
        *(("error", {"value": value}, {}) for value in ("nan", "NaN", "Infinity", "1e999", 10**400)),
        ("error", {}, {"ended": ""}),
        ("error", {}, {"ended": "2020-01-01T00:00:00+00:00"}),
        ("error", {}, {"started": "yesterday"}),
        ("error", {}, {"outcomes": []}),
        ("error", {}, {"verdict": {"status": "pass", "exit_code": 1}}),
    ],
)
def test_a_verdict_of_pass_that_something_contradicts_is_no_pass(
    status: str, outcome: dict[str, Any], changes: dict[str, Any]
) -> None:
    report = node_report("n1")
    outcome_of(report, "gemm-throughput").update(outcome)
    actual = read(json.dumps(report | changes).encode(), "n1")
    assert (actual.status, bool(actual.why)) == (status, status != "pass")


@each("part, name, value", [("place", "nodes", "4"), ("place", "node", ["n"]), ("target", "image_id", ["sha256:1"])])
def test_a_field_of_another_kind_is_named(part: str, name: str, value: object) -> None:
    report = node_report("")
    (report if part == "target" else report["host"])[part][name] = value
    with pytest.raises(ConfigError, match=rf"missing or wrong field at `\$.*\.{part}\.{name}"):
        read(json.dumps(report).encode(), "n1")


def test_a_number_that_no_machine_has_is_one_line() -> None:
    for signal in ("host.memory_total", "host.cpus"):
        report = node_report("n1")
        report["snapshot"]["signals"][signal] = {"value": 10**400}
        with contextlib.suppress(ConfigError):
            assert read(json.dumps(report).encode(), "n1").node == "n1"


def test_links_and_pipes_neither_hang_nor_loop(tmp_path: Path) -> None:
    write(tmp_path / "r", node_report("n1"))
    (tmp_path / "r/loop").symlink_to(tmp_path)
    (tmp_path / "r/self.json").symlink_to("self.json")
    (tmp_path / "r/gone.json").symlink_to("nowhere")
    (tmp_path / "r/same.json").symlink_to("n1.json")
    os.mkfifo(tmp_path / "r/pipe.json")
    files = {Path(file.path).name: file for file in read_files([tmp_path / "r"])}
    assert {name for name, file in files.items() if file.report is None} == {"self.json", "gone.json", "pipe.json"}
    assert files["same.json"].report is files["n1.json"].report
    assert abs(files["gone.json"].modified - files["n1.json"].modified) < 3600, "a link's age is its own"


def test_a_node_is_called_as_its_launcher_calls_it(tmp_path: Path) -> None:
    slurm, local, nameless = node_report("vm"), node_report("localhost"), node_report("")
    slurm["host"]["place"] |= {"launcher": "slurm", "node": "n4", "nodes": 4}
    local["host"]["place"] |= {"launcher": "a later one", "rank": None, "node_rank": 3, "nodes": 4}
    redacted = node_report("host-1")  # without a key, as every report's first host is called
    for gpu in redacted["snapshot"]["gpus"]:
        gpu["uuid"] = "GPU-00000000-0000-0000-0000-000000000001"
    for name, report in {"a": slurm, "b": local, "envcheck-report-n9": nameless, "one": redacted}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(report))
    assert sorted(file.node for file in read_files([tmp_path])) == ["n4", "n9", "node-3", "one"]


WORD = st.text(string.ascii_lowercase + "-._", min_size=0, max_size=4)
NUMBER = st.one_of(st.integers(0, 130).map(str), st.integers(0, 130).map(lambda n: str(n).zfill(3)))
NAME = st.tuples(st.sampled_from("abz09"), WORD, NUMBER, WORD).map("".join)


@given(st.lists(NAME, min_size=1, max_size=60))
def test_a_folded_list_unfolds_to_the_same_names(names: list[str]) -> None:
    folded = fold(names)
    assert sorted(unfold(folded)) == sorted(set(names))
    assert fold(reversed(names)) == folded


def test_what_scontrol_reads_and_writes() -> None:
    read = {
        "n[1-3,5]": ["n1", "n2", "n3", "n5"],
        "n[08-11]": ["n08", "n09", "n10", "n11"],
        "r[1-2]n[01-02]-ib": ["r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"],
        "a, b\nc,,a": ["a", "b", "c"],
    }
    assert {text: unfold(text) for text in read} == read
    assert fold(["n10", "n2", "n1", "n3", "login"]) == "login,n[1-3,10]"
    assert fold(["n098", "n099", "n100", "n7"]) == "n[7,098-100]"
    assert sorted(["n10", "n2", "n1", "m"], key=natural) == ["m", "n1", "n2", "n10"], "as people count"


@each("text", ["n[1-3", "n]1", "n[3-1]", "n[]", "n[a-b]", "n[1-2-3]", "$(reboot)", "n[[1]]", "a;b", "-x", "", ", "])
def test_what_is_not_a_host_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        unfold(text)


def test_a_list_of_more_names_than_any_fleet_is_refused_at_once() -> None:
    assert len(unfold(f"n[1-{MOST}]")) == MOST
    for text in (f"n[1-{MOST + 1}]", "n[1-999999999999]", "a[1-999]b[1-999]"):
        with pytest.raises(ConfigError, match="more than"):
            unfold(text)


@each("name", ["<b>", "a,b", "a b", "n[1]", "", "x" * 254, "n\n1", "ñ1", "\u0661"])
def test_a_name_that_a_host_list_cannot_hold_is_refused(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(ConfigError):
        fold([name])
