"""`envcheck fleet report` as an operator uses them."""

import datetime as dt
import json
import random
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from tests.fleet.node_reports import ENDED, failing, node_report, outcome_of, write
from tests.tables import each

OLD = "999999h"


def run(*words: str) -> Result:
    result = CliRunner().invoke(cli, ["fleet", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def answer(folder: Path, *words: str) -> tuple[dict[str, Any], int]:
    result = run("report", str(folder), "--max-age", OLD, "--json", *words)
    return json.loads(result.stdout), result.exit_code


def fleet(folder: Path, count: int = 12) -> dict[str, dict[str, Any]]:
    """Return the reports of a sound fleet by node: a little noise in the speed, nothing else."""
    noise = random.Random(7)  # noqa: S311 (a test's noise)
    folder.mkdir(exist_ok=True)
    return {f"n{i}": node_report(f"n{i}", gemm_throughput=700 * noise.gauss(1, 0.005)) for i in range(1, count + 1)}


def test_a_sound_fleet_is_used_whole(tmp_path: Path) -> None:
    result, code = answer(write(tmp_path, *fleet(tmp_path).values()), "--expect", "n[1-12]", "--strict")
    assert (code, result["verdict"]["good"], result["nodes"]["pass"]) == (0, "n[1-12]", 12)
    assert (result["drift"], result["outliers"], result["notes"], result["unread"]) == ([], [], [], [])


def test_each_fault_is_named_and_its_node_not_used(tmp_path: Path) -> None:
    nodes = fleet(tmp_path, 20)
    uuid = nodes["n3"]["snapshot"]["gpus"][0]["uuid"]
    failing(nodes["n3"], culprit=f"GPU 0 ({uuid})")
    outcome_of(nodes["n5"], "gemm-throughput")["value"] = 550.0
    nodes["n7"]["snapshot"]["signals"]["host.kernel"]["value"] = "5.15.0-1061"
    future = dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=2)
    nodes["n8"]["ended"] = future.isoformat()
    nodes.pop("n9")
    write(tmp_path, *nodes.values())
    (tmp_path / "n10.json").write_text((tmp_path / "n10.json").read_text()[:1000])
    result, code = answer(tmp_path, "--expect", "n[1-20]")
    assert code == 1
    assert result["nodes"] == {"pass": 16, "fail": ["n3"], "error": ["n8", "n10"], "missing": ["n9"], "stale": []}
    assert result["verdict"]["blame"] == [
        {"kind": "gpu", "who": uuid, "node": "n3", "by": ["gemm-throughput [speed.slow]"]}
    ]
    assert result["verdict"]["good"] == "n[1-2,4-7,11-20]"
    [drift] = result["drift"]
    assert (drift["signal"], drift["others"]) == ("host.kernel", {"5.15.0-1061": ["n7"]})
    slow = next(row for row in result["outliers"] if row["check"] == "gemm-throughput")
    assert (slow["node"], slow["value"], slow["unit"]) == ("n5", 550.0, "TFLOP/s")
    assert slow["z"] < -8
    assert answer(tmp_path, "--strict")[0]["verdict"]["good"] == "n[1-2,4,6,11-20]"


@each(
    "state, code, change",
    [
        ("missing", 3, None),
        ("stale", 3, {"started": "2001-01-01T00:00:00+00:00", "ended": "2001-01-01T00:00:00+00:00"}),
        ("error", 3, {"ended": ""}),
        ("fail", 1, {"verdict": {"status": "fail"}}),
    ],
)
def test_the_exit_code_says_what_is_wrong(tmp_path: Path, state: str, code: int, change: dict[str, Any] | None) -> None:
    folder = write(tmp_path / state, node_report("n1"), *([] if change is None else [node_report("n2") | change]))
    result = run("report", str(folder), "--max-age", "90000h", "--expect", "n1,n2", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["nodes"][state], document["verdict"]["good"]) == (code, ["n2"], "n1")


def test_nodes_of_other_kinds_are_compared_with_their_own(tmp_path: Path) -> None:
    nodes = fleet(tmp_path)
    for node in ("n1", "n2", "n3"):
        for gpu in nodes[node]["snapshot"]["gpus"]:
            gpu["signals"]["name"]["value"] = "NVIDIA L40S"
            gpu["signals"]["memory_total"]["value"] = 48 << 30
        outcome_of(nodes[node], "gemm-throughput")["value"] = 300.0
    write(tmp_path, *nodes.values())
    result, code = answer(tmp_path, "--strict")
    assert (code, [group["nodes"] for group in result["groups"]]) == (0, [9, 3])


def test_a_stale_report_is_no_outlier_too(tmp_path: Path) -> None:
    nodes = fleet(tmp_path)
    for name in ("started", "ended"):
        nodes["n1"][name] = (dt.datetime.fromisoformat(nodes["n1"][name]) - dt.timedelta(hours=48)).isoformat()
    hours = int((time.time() - ENDED) / 3600) + 24
    result, code = answer(write(tmp_path, *nodes.values()), "--max-age", f"{hours}h")
    assert (code, result["nodes"]["stale"], result["outliers"]) == (3, ["n1"], [])


HOSTILE = '<script>alert(1)</script>"&\x1b[31m\u202e'


GROUP = {"run": "7.0", "nodes": ["n1", "n2", "n3"], "ranks": [1, 1, 1]}
# The recorded run ended at 04:50:18.
LATER = {"started": "2026-11-23T05:04:00+00:00", "ended": "2026-11-23T05:06:00+00:00"}
BEFORE = {"started": "2026-11-23T04:33:00+00:00", "ended": "2026-11-23T04:35:00+00:00"}


def grouped(folder: Path, *, beside: bool = True) -> Path:
    """Write what a group of three leaves whose n3 was killed: n1 was disturbed by it, and n2's run was cut short."""
    group = GROUP | {"later": 1}
    killed = {"id": "collectives", "kind": "env", "status": "error", "code": "process.lost"}
    killed |= {"summary": "rank 2 (n3) was ended by SIGKILL", "culprit": "rank 2 (n3)"}
    disturbed = killed | {"code": "group.other-node", "summary": "the group was disturbed by n3", "culprit": ""}
    for name, found in {"group": killed, "n1": disturbed, "n2": disturbed}.items():
        document = node_report(name, "cpu") | {"group": group | {"node": "" if name == "group" else name}}
        document["outcomes"].append(found)
        document["verdict"] |= {"status": "error", "exit_code": 3}
        if name == "n2":
            document["outcomes"].append(killed | {"id": "node-links", "culprit": ""})
        write(folder / ("r" if beside or name != "group" else "elsewhere"), document)
    return folder


def test_a_groups_report_names_the_killed_nodes_rank_and_the_others_stay_usable(tmp_path: Path) -> None:
    write(tmp_path / "before", node_report("n3", "cpu"))
    result, code = answer(grouped(tmp_path), "--expect", "n[1-3]")
    assert (code, result["nodes"]["pass"], result["nodes"]["error"]) == (3, 1, ["n2", "n3"])
    assert result["reasons"]["n3"] == "group.json says of it: collectives: rank 2 (n3) was ended by SIGKILL"
    assert result["verdict"]["good"] == "n1", "n2 has trouble of its own"
    lines = run("report", str(tmp_path), "--max-age", OLD).stdout
    assert ("group.json says of it" in lines, "ignored" in lines) == (True, False)
    own = node_report("n3", "cpu") | {"group": GROUP | {"node": "n3"}}
    own["verdict"]["status"] = "error"
    write(tmp_path / "r", own | {"ended": ""})
    failed = json.loads((tmp_path / "r/n1.json").read_text())
    write(tmp_path / "r", failing(failed, "requirements"))
    found = answer(tmp_path)[0]
    assert found["reasons"]["n3"] == "collectives: rank 2 (n3) was ended by SIGKILL"
    assert found["nodes"]["fail"] == ["n1"]
    assert answer(grouped(tmp_path / "alone", beside=False))[0]["nodes"]["pass"] == 0, "another group's"


def of_member(folder: Path, node: str, **changes: Any) -> None:
    """Change the report of a node of `grouped`."""
    path = folder / f"r/{node}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_disturbed_node_on_which_nothing_was_measured_does_not_pass(tmp_path: Path) -> None:
    disturbed = json.loads((grouped(tmp_path) / "r/n1.json").read_text())["outcomes"][-1]
    met = {"id": "group-formed", "kind": "env", "status": "pass"}
    sound, odd = {"id": "a", "kind": "env", "status": "pass"}, {"id": "b", "kind": "env", "status": "warn"}
    for passed, others, changes in (
        (1, [met, sound], {}),
        (0, [met], {}),
        (0, [met, sound, odd | {"value": "nan"}], {}),
        (0, [met, sound], {"ended": "2001-01-01T00:00:00+00:00"}),
    ):
        of_member(grouped(tmp_path), "n1", outcomes=[*others, disturbed], **changes)
        assert answer(tmp_path)[0]["nodes"]["pass"] == passed, (others, changes)


def test_a_member_that_reported_elsewhere_is_not_lost(tmp_path: Path) -> None:
    alone = {"outcomes": [{"id": "ecc", "kind": "node", "status": "fail"}]}
    of_member(grouped(tmp_path), "n1", group={**GROUP, "node": "n3"}, host={"name": "n3"}, **alone)
    (tmp_path / "n3").mkdir()
    (tmp_path / "r/n1.json").rename(tmp_path / "n3/n3.json")
    result, code = answer(tmp_path)
    assert (code, result["nodes"]["fail"]) == (1, ["n3"])


def test_a_groups_report_judges_the_runs_of_its_own_time(tmp_path: Path) -> None:
    grouped(tmp_path)
    write(tmp_path / "later", node_report("n3", "cpu") | LATER)
    nodes = answer(tmp_path)[0]["nodes"]
    assert (nodes["pass"], nodes["error"]) == (2, ["n2"]), "n3 was run again, and the copy of group.json is new"
    of_member(tmp_path, "n1", **LATER)
    assert answer(tmp_path)[0]["nodes"]["pass"] == 1, "n1 was disturbed in another run of the same name"
    (tmp_path / "later/n3.json").unlink()
    write(tmp_path / "before", node_report("n3", "cpu") | BEFORE | {"group": {**GROUP, "node": "n3"}})
    assert "n3" in answer(tmp_path)[0]["nodes"]["error"], "its pass is of another run"


def test_a_group_whose_names_are_pseudonyms_blames_no_node(tmp_path: Path) -> None:
    grouped(tmp_path)
    names = {"nodes": ["host-1", "host-2", "host-3"]}
    of_member(tmp_path, "group", group=GROUP | names, boot="boot-1")
    assert "host-3" not in answer(tmp_path)[0]["reasons"]
    of_member(tmp_path, "group", boot="0b1c")
    assert "host-3" in answer(tmp_path)[0]["reasons"], "nodes may be called so"


def test_metrics_of_all_nodes_are_one_file(tmp_path: Path) -> None:
    nodes = fleet(tmp_path, 3)
    failing(nodes["n2"])
    nodes["n2"]["host"]["name"] = 'n"2'
    write(tmp_path / "r", *nodes.values())
    told = tmp_path / "fleet.prom"
    run("report", str(tmp_path / "r"), "--max-age", OLD, "--expect", "n1,n3,n9", "--prometheus", str(told))
    lines = told.read_text().splitlines()
    for line in (
        'envcheck_fleet_nodes{state="pass"} 2.0',
        'envcheck_fleet_nodes{state="stale"} 0.0',
        'envcheck_fleet_node_state{node="n\\"2",state="fail"} 1.0',
        'envcheck_fleet_node_state{node="n9",state="missing"} 1.0',
        'envcheck_fleet_node_check{node="n\\"2",check="gemm-throughput",status="fail",code="speed.slow"} 1.0',
    ):
        assert lines.count(line) == 1, line
    assert sum(line.startswith("envcheck_fleet_node_run_end_timestamp_seconds{") for line in lines) == 3
    assert (
        shutil.which("promtool") is None
        or not subprocess.run(["promtool", "check", "metrics"], input=told.read_bytes(), check=False).returncode
    )


def test_markup_in_names_stays_text(tmp_path: Path) -> None:
    report = node_report("n1")
    report["host"]["name"] = HOSTILE
    report["snapshot"]["signals"]["host.kernel"]["value"] = HOSTILE
    report["environment"]["torch"] = "<b>"
    failing(report, culprit=HOSTILE)
    (tmp_path / "n1.json").write_text(json.dumps(report))
    other = node_report("n3")
    other["outcomes"].remove(outcome_of(other, "all-reduce"))
    write(tmp_path, node_report("n2"), other)
    (tmp_path / "<img src=x>.json").write_text("{")
    result = run("report", str(tmp_path), "--html", str(tmp_path / "f.html"), "--max-age", OLD)
    page = (tmp_path / "f.html").read_text()
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "FAIL: 2 of 4 nodes passed, 1 failed, 1 undetermined"
    assert max(map(len, lines)) <= 80
    for text in (page, result.stdout):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    columns = re.findall(r'class="turned"><span>([^<]*)</span>', page)
    assert columns[2:] == ["driver-branch", "gemm-throughput", "all-reduce"], "what came to no pass is first"
    assert "use now: n[2-3]" in result.stdout


def test_every_file_comes_to_a_node_or_to_one_line(tmp_path: Path) -> None:
    write(tmp_path / "r", *fleet(tmp_path, 3).values())
    (tmp_path / "r/copy.json").write_bytes((tmp_path / "r/n1.json").read_bytes())
    for name, content in {"junk": "hello", "package": "{}", "n4": "", "fleet": '{"schema":"envcheck/fleet/1"}'}.items():
        (tmp_path / f"r/{name}.json").write_text(content)
    (tmp_path / "empty").mkdir()
    places = [str(tmp_path / "r"), str(tmp_path / "empty")]
    lines = run("report", *places, "--max-age", OLD).stdout
    for line in (
        "n4: n4.json is empty",
        "junk.json is not JSON: ignored",
        "package.json is not a report of envcheck: ignored",
        "fleet.json is a document envcheck/fleet/1, not of one node: ignored",
        "empty: no *.json in it; write reports with `envcheck run --output DIR/`",
    ):
        # A long path is broken in the middle of a line.
        assert "".join(lines.split()).count("".join(line.split())) == 1, line
    assert lines.startswith("UNDETERMINED: 3 of 4 nodes passed, 1 undetermined\n")
    result = run("report", places[1])
    assert (result.exit_code, "use now: no node" in result.stdout) == (3, True), "no report at all"


def test_a_node_without_a_gpu_and_a_gpu_in_two_nodes_are_noted(tmp_path: Path) -> None:
    nodes = fleet(tmp_path, 4)
    nodes["n2"]["snapshot"]["gpus"] = []
    nodes["n4"]["snapshot"]["gpus"] = nodes["n3"]["snapshot"]["gpus"]
    uuid = nodes["n3"]["snapshot"]["gpus"][0]["uuid"]
    notes = answer(write(tmp_path, *nodes.values()))[0]["notes"]
    assert notes == [
        "no GPU on n2, and 3 other nodes have one: `envcheck run --require-gpu` fails without",
        f"{uuid} is in the reports of n3, n4: it was moved, or a report is a copy",
    ]
    for name in ("n1", "n2", "n3", "n4"):
        nodes[name]["snapshot"]["gpus"] = []
    assert answer(write(tmp_path, *nodes.values()))[0]["notes"] == [], "a fleet without GPUs lacks none"


def test_the_history_says_how_often_and_for_what(tmp_path: Path) -> None:
    uuid = node_report("n1")["snapshot"]["gpus"][0]["uuid"]
    for day, broken in enumerate([True, False, True]):
        report = node_report("n1")
        report["started"] = report["ended"] = f"2026-11-2{day}T09:00:00+00:00"
        if broken:
            failing(report, culprit=f"GPU 0 ({uuid})")
            failing(report, "ecc")
        write(tmp_path / f"r/{day}", report, node_report("n2"))
    text = run("report", str(tmp_path), "--history", "n1").stdout
    assert text.startswith("n1: failed in 2 of 3 runs\n2026-11-22T09:00:00+00:00 n1 ")
    assert text.count("gemm-throughput [speed.slow]") == text.count("ecc [speed.slow]") == 2
    assert max(map(len, text.splitlines())) <= 80
    write(tmp_path / "r/3", node_report("n1.site"))
    for name in ("n1", "N1", "n1.site"):
        assert run("report", str(tmp_path), "--history", name).stdout.startswith(f"{name}: failed in 2 of 4 runs\n")
    (tmp_path / "r/3/n1.site.json").unlink()
    text = run("report", str(tmp_path), "--history", uuid[:16]).stdout
    assert text.startswith(f"{uuid[:16]}: failed in 2 of 3 runs\n")
    assert "ecc" not in text
    nobody = CliRunner().invoke(cli, ["fleet", "report", str(tmp_path), "--history", "n9"]).exception
    assert "there is no report of 'n9'" in str(nobody)


def test_wrong_usage_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "reps", node_report("n1"))
    before = (tmp_path / "reps/n1.json").read_bytes()
    cases = {
        "reps --html reps/n1.json": "--html reps/n1.json would be read as a report",
        "reps --expect ,": "the host list ',' names no node",
        "reps --prometheus reps/n1.json": "--prometheus reps/n1.json would be read as a report",
        "reps --html x --prometheus ./x": "--html and --prometheus are both x",
        "gone": "gone: no such file or directory",
    }
    for words, message in cases.items():
        assert message in str(CliRunner().invoke(cli, ["fleet", "report", *words.split()]).exception)
    assert [path.name for path in tmp_path.iterdir()] == ["reps"]
    assert (tmp_path / "reps/n1.json").read_bytes() == before
