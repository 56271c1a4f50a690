"""The log as metrics: what a line means, what garbage does, and that no rotation loses or doubles one."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.mirrors.site import exporter
from envcheck.mirrors.site.exporter import CACHES, OUTCOMES, PARTS, Exporter, Follower, Totals, gauges, parse, text
from tests.mirrors.site.upstreams import get

# As nginx 1.22 wrote them: a whole file, one that its upstream broke off, one whose client went away.
WHOLE = {"part": "files", "status": 200, "bytes": 20000000, "seconds": 0.038, "cache": "MISS", "complete": "OK"}
WHOLE |= {"method": "GET", "promised": "20000000"}
TRUNCATED = {**WHOLE, "bytes": 8390608}
ABORTED = {**WHOLE, "bytes": 224792, "complete": ""}


def line(**changes: Any) -> str:
    return json.dumps({**WHOLE, **changes})


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "ok"),
        (TRUNCATED, "truncated"),
        (ABORTED, "client_abort"),
        ({"status": 499, "bytes": 0, "complete": ""}, "client_abort"),
        ({"status": 502, "bytes": 157}, "error"),
        ({"status": 502, "bytes": 157, "complete": ""}, "error"),
        ({"status": 504}, "error"),
        ({"status": 404}, "client_error"),
        ({"status": 400}, "client_error"),
        ({"status": 401}, "refused"),
        ({"status": 429}, "refused"),
        ({"status": 206, "bytes": 100, "promised": "100"}, "ok"),
        ({"status": 304, "bytes": 0}, "ok"),
        ({"method": "HEAD", "bytes": 0}, "ok"),
        ({"promised": ""}, "ok"),
        ({"part": "pypi-index", "promised": "9" * 30}, "ok"),
    ],
)
def test_a_line_says_what_became_of_its_request(changes: dict[str, Any], outcome: str) -> None:
    actual = parse(line(**changes))
    assert actual is not None
    assert actual.outcome == outcome


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "x",
        "[]",
        "{}",
        "null",
        "[" * 100_000,
        line(part="elsewhere"),
        line(part=["files"]),
        line(status="200"),
        line(status=True),
        line(bytes=-1),
        line(bytes=1e3),
        line(bytes=2**64),
        line(seconds=-0.1),
        '{"part":"files","status":200,"bytes":1,"seconds":NaN}',
        '{"part":"files","status":200,"bytes":1,"seconds":Infinity}',
        line(seconds=None),
    ],
)
def test_garbage_is_counted_and_nothing_else(garbage: str) -> None:
    totals, untouched = Totals(), Totals()
    totals.add([garbage])
    assert (totals.lines, totals.unreadable) == (1, 1)
    assert (totals.requests, totals.sent) == (untouched.requests, untouched.sent)


LINES = st.fixed_dictionaries(
    {
        "part": st.sampled_from(PARTS),
        "status": st.integers(100, 599),
        "bytes": st.integers(0, 10**12),
        "seconds": st.floats(0, 1e6),
        "cache": st.sampled_from([*CACHES, "", "odd"]),
        "complete": st.sampled_from(["OK", ""]),
        "method": st.sampled_from(["GET", "HEAD", "POST"]),
        "promised": st.one_of(st.just(""), st.integers(0, 10**12).map(str)),
    }
)


@given(st.lists(LINES), st.lists(st.text()))
def test_every_line_is_counted_once_and_bytes_are_kept(lines: list[dict[str, Any]], garbage: list[str]) -> None:
    totals = Totals()
    totals.add([*map(json.dumps, lines), *(f"!{one}" for one in garbage)])
    assert totals.lines == len(lines) + len(garbage)
    assert totals.unreadable == len(garbage)
    assert totals.requests.total() == totals.cached.total() == len(lines)
    assert totals.sent.total() == sum(one["bytes"] for one in lines)
    assert totals.moved.total() <= totals.sent.total()
    assert totals.downloads.total() <= len(lines)
    assert {outcome for _, outcome in totals.requests} == set(OUTCOMES)


@given(st.text())
def test_no_text_is_an_accident(one: str) -> None:
    assert parse(one) is None or isinstance(json.loads(one), dict)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["write", "part", "rotate", "read"]), st.integers(1, 4)), max_size=30))
def test_no_rotation_loses_or_doubles_a_line(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    path = tmp_path_factory.mktemp("log") / "access.json"
    follower = Follower(path)
    written: list[str] = []
    seen: list[str] = []
    out = path.open("a")
    for number, (step, count) in enumerate(steps):
        if step == "rotate":
            out.close()
            seen += follower.lines()  # as often as it is asked between two rotations
            path.rename(path.with_name(f"old-{number}"))
            out = path.open("a")
        elif step == "read":
            seen += follower.lines()
        else:
            lines = [f"{number}-{k}" for k in range(count)]
            written += lines
            for one in lines:
                out.write(one[:2])
                out.flush()
                seen += follower.lines() if step == "part" else []
                out.write(f"{one[2:]}\n")
            out.flush()
    seen += follower.lines()
    out.close()
    follower.close()
    assert seen == written


def test_a_line_written_to_the_old_file_after_its_rename_is_read(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    follower = Follower(path)
    assert list(follower.lines()) == []
    with path.open("a") as old:
        old.write("a\n")
        old.flush()
        assert list(follower.lines()) == ["a"]
        path.rename(tmp_path / "access.json.1")
        old.write("b\n")
        old.flush()
        assert list(follower.lines()) == ["b"]
        path.write_text("c\n")
        assert list(follower.lines()) == ["c"]
    path.write_text("")  # copytruncate
    assert list(follower.lines()) == []
    path.write_text("d\n")
    assert list(follower.lines()) == ["d"]
    follower.close()


def test_state_of_the_site_is_told_and_what_is_not_there_is_absent(tmp_path: Path) -> None:
    assert gauges(tmp_path) == {}
    for name in ("cache", "state/sync"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "state/sync/main").touch()
    (tmp_path / "state/audit.json").write_text('{"time": 5, "files": 3, "poisoned": 1}')
    data = gauges(tmp_path)
    assert data["sync_success_timestamp_seconds"][1] == {'name="main"': (tmp_path / "state/sync/main").stat().st_mtime}
    assert data["audit_poisoned_files"][1] == {"": 1.0}
    assert 0 < data["storage_available_bytes"][1][""] <= data["storage_size_bytes"][1][""]
    (tmp_path / "state/audit.json").write_text("{}")
    assert "audit_poisoned_files" not in gauges(tmp_path)


@pytest.mark.promtool
def test_promtool_finds_nothing_to_say(tmp_path: Path, promtool: str) -> None:
    for name in ("cache", "state/sync"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "state/sync/main").touch()
    (tmp_path / "state/audit.json").write_text('{"time": 5, "files": 3, "poisoned": 1}')
    totals = Totals()
    totals.add([line(), line(**TRUNCATED), "x"])
    result = text(totals, gauges(tmp_path))
    completed = subprocess.run(
        [promtool, "check", "metrics"], input=result, capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stdout + completed.stderr) == (0, "")
    assert 'envcheck_mirror_downloads_total{outcome="truncated"} 1\n' in result


def test_it_is_served_on_loopback(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/access.json").write_text(line() + "\n")
    with exporter.server(tmp_path, "127.0.0.1", 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{running.server_address[1]}"
        status, body, headers = get(f"{base}/metrics")
        assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b'envcheck_mirror_requests_total{part="files",outcome="ok"} 1\n' in body
        assert get(f"{base}/")[0] == 404
        running.shutdown()
    assert Exporter(tmp_path).text() == body.decode()


def test_a_copy_of_it_runs_anywhere(tmp_path: Path) -> None:
    source = Path(exporter.__file__).read_text()
    for node in ast.walk(ast.parse(source, feature_version=(3, 10))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names}
    (tmp_path / "exporter.py").write_text(source)
    command = [sys.executable, "-I", "-S", str(tmp_path / "exporter.py"), "--help"]
    assert "metrics" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
