"""What every command has in common: help, one line for bad input, the exit code of its error."""

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.cli import cli, line_and_code
from envcheck.cli.commands import resolve
from envcheck.cli.shared.process import LONGEST_LINE, last_line, print_json, stopping
from envcheck.matrix.resolver.query import Query
from tests.processes import ran, typed

Run = Callable[..., tuple[int, str, str]]


def process(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return typed(*args, env={**os.environ, **env}, errors="replace")


def test_what_is_not_there_ends_with_2_in_every_command(run: Run, tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    torch = ["resolve --torch 9.9 --no-here", "resolve --torch 9.9 --no-here --json", "matrix show --torch 9.9"]
    cell = [f"{name} torch9.9.9-cpu-py311" for name in ("images", "images sbom", "build", "render", "lock", "fetch")]
    file = [f"report {name}" for name in ("show", "judge", "redact", "convert --format junit")]
    file += ["run --dry-run --baseline", "run --dry-run --requirements", "run --dry-run --python", "fleet report"]
    file += ["mirror doctor", "mirror show", "resolve --from", "matrix wheel"]
    other = ["checks nope", "run --only nope", "schema nope", "resolve --gpu nope", "mirror show nope", "nope"]
    codes = {line: run(*line.split())[0] for line in [*torch, *cell, *(f"{name} {none}" for name in file), *other]}
    assert {line: code for line, code in codes.items() if code != 2} == {}
    # It is there, and cannot run: the answer to another question.
    assert run("resolve", "--torch", "2.8", "--cuda", "12.1", "--no-here")[0] == 1
    assert run("images", "--gpu", "V100", "--driver", "590.44.01")[0] == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("output", ["/dev/full", "/dev/null"])
def test_a_verdict_stays_where_the_output_is_full(tmp_path: Path, output: str) -> None:
    with Path(output).open("w") as stdout:
        command = [sys.executable, "-m", "envcheck", "resolve", "--gpu", "H100", "--driver", "384.81", "--json"]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert (b"no space left" in done.stderr) == (output == "/dev/full")


def test_a_path_that_is_not_utf_8_is_escaped_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"path": "out\udcff", "at": dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)})
    assert json.loads(capsys.readouterr().out) == {"path": "out\udcff", "at": "2026-01-02T00:00:00Z"}


def test_inside_an_image_what_only_a_host_can_do_is_one_line(tmp_path: Path) -> None:
    for name in ("jinja2", "uv"):
        (tmp_path / name).mkdir()
        missing = f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')"
        (tmp_path / name / "__init__.py").write_text(missing, encoding="utf-8")
    done = process("build", "torch2.13.0-cpu-py311", "--engine", "docker", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2, done.stderr
    assert done.stderr == "envcheck: inside an image envcheck only validates; run this command on the host\n"


def test_the_readme_has_a_line_for_every_command() -> None:
    readme = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")
    assert [name for name in cli.described if f"| `envcheck {name}` |" not in readme] == []


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_a_stream_that_is_closed_or_full_changes_nothing_of_the_result(closed: str) -> None:
    command = f"exec '{sys.executable}' -m envcheck mirror show none {closed}"
    completed = ran(["sh", "-c", command])
    assert (completed.returncode, completed.stderr) == (0, "")
    assert bool(completed.stdout) == (">&-" not in closed.split())
    wrong = ran(["sh", "-c", command.replace("none", "nowhere")])
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


@pytest.mark.parametrize("name", ["random", "colorsys"])
def test_a_file_that_hides_a_module_of_python_is_named_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("nothing = None\n")
    command = [sys.executable, "-m", "envcheck", "run", "--level", "static", "--dry-run"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    completed = ran(command, cwd=tmp_path, env=environment)
    assert (completed.returncode, completed.stderr.count("\n")) == (2, 1), completed.stderr
    assert f"{tmp_path / name}.py hides Python's own module {name}" in completed.stderr


def test_what_a_server_or_file_calls_itself_does_not_steer_the_terminal() -> None:
    text = last_line("x: unknown field \x1b]0;t\x07\x9b31m \u202egpj.exe\r\n\tand a line of its own: é 中")
    assert text == "x: unknown field ?]0;t??31m ?gpj.exe?\n\tand a line of its own: é 中"


def test_a_line_that_quotes_a_whole_file_is_cut() -> None:
    text = last_line(f"r.json: {'no field ' * 50_000}; give the file")
    assert text.startswith("r.json: no field ")
    assert text.endswith("no field ; give the file")
    assert len(text) == LONGEST_LINE
    assert last_line("x " * (LONGEST_LINE // 2)) == "x " * (LONGEST_LINE // 2)


def test_what_no_command_expects_is_one_line_with_a_file_of_details(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(resolve, "normalized", lambda _query: 1 // 0)
    code, output, line = run("resolve", "--no-here")
    (details,) = tmp_path.glob("envcheck-error-*.txt")
    assert (code, output, line.count("\n")) == (3, "", 1)
    assert "internal error: ZeroDivisionError" in line
    assert str(details) in line
    assert "resolve --no-here" in details.read_text()
    assert "Traceback" in details.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_with_its_number(run: Run, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    stop = threading.Event()

    def interrupted(_query: object) -> None:
        with stopping(stop):
            os.kill(os.getpid(), number)
            threading.Event().wait(5)

    monkeypatch.setattr(resolve, "normalized", interrupted)
    inherited = signal.signal(number, signal.default_int_handler)  # whoever runs the tests may ignore it, as nohup does
    try:
        code, output, line = run("resolve", "--no-here")
    finally:
        signal.signal(number, inherited)
    assert (code, output, line.strip()) == (128 + number, "", "envcheck: interrupted")
    assert stop.wait(5)


def test_a_key_that_ends_envcheck_while_it_is_imported_shows_no_traceback(tmp_path: Path) -> None:
    tmp_path.joinpath("click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # whoever runs this may ignore it
    code = f"{start}; from envcheck.__main__ import main; main()"
    done = ran([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_what_the_parent_ignored_or_blocked_hides_no_exit_code() -> None:
    def left_so() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    shell = r"grep -q 'SigBlk:\s*0*$' /proc/self/status && exit 7"
    command = [sys.executable, "-m", "envcheck", "watch", "sh", "-c", shell]
    done = subprocess.run(command, preexec_fn=left_so, capture_output=True, check=False)
    assert done.returncode == 7, done.stderr


def test_a_wrong_value_of_the_environment_is_named_by_its_variable() -> None:
    for name in ("ENVCHECK_QUIET", "ENVCHECK_RESOLVE_GPUS"):
        done = process("resolve", **{name: "maybe"})
        assert (done.returncode, f"(from the variable {name})" in done.stderr) == (2, True), done.stderr


def test_no_memory_is_no_internal_error() -> None:
    line, code = line_and_code(MemoryError())
    assert (code, "internal error" in line, "ulimit -v" in line) == (3, False, True)


def test_a_signal_that_is_ignored_stays_ignored_as_under_nohup(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def hung_up(query: Query) -> Query:
        os.kill(os.getpid(), signal.SIGHUP)
        return query

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr(resolve, "normalized", hung_up)
        assert run("resolve", "--no-here")[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)
