"""`envcheck run`, `checks` and `report`, as typed: exit codes, what is on stdout, and nothing run unasked."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import site_check
from tests.processes import ran, typed

Envcheck = Callable[..., "subprocess.CompletedProcess[str]"]
Add = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Envcheck:
    def start(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
        (tmp_path / "cwd").mkdir(exist_ok=True)
        return typed(*argv, cwd=tmp_path / "cwd", env={**kept, **environ})

    return start


@pytest.fixture
def add(tmp_path: Path) -> Add:
    def write(name: str, outcome: str, *, measure: str = "return {}", options: str = "") -> None:
        options = f"ranks=1, timeout=20, {options}"
        site_check(tmp_path / "site" / "env" / f"{name}.py", outcome, measure, options=options)

    return write


def own(tmp_path: Path, *only: str) -> list[str]:
    """Return the arguments of a run of these checks of the site, in this interpreter."""
    chosen = [word for name in only for word in ("--only", name)]
    return ["run", "--python", sys.executable, "--checks", str(tmp_path / "site"), *chosen]


@pytest.mark.parametrize(
    ("outcome", "code", "last"),
    [
        ("passed('fine')", 0, "PASS: 1 promise proved on CPU; no GPU was tested"),
        ("failed('not fine', fix='mend it')", 1, "FAIL: mine (on CPU; no GPU was tested)"),
        ("warned('hm', fix='look')", 3, "UNDETERMINED: nothing passed (on CPU; no GPU was tested)"),
        ("skipped('not here')", 3, "UNDETERMINED: nothing passed (on CPU; no GPU was tested)"),
        ("1 / 0", 3, "UNDETERMINED: mine (on CPU; no GPU was tested)"),
    ],
)
def test_the_exit_code_and_the_last_words_say_the_same(
    run: Envcheck, add: Add, tmp_path: Path, outcome: str, code: int, last: str
) -> None:
    add("mine", outcome)
    done = run(*own(tmp_path, "mine"))
    assert done.returncode == code
    _, message = done.stdout.split("report: envcheck-report.json\n")
    assert " ".join(message.split()).startswith(last.replace("MINED:", "MINED (neither pass nor fail):"))
    assert json.loads((tmp_path / "cwd" / "envcheck-report.json").read_text())["verdict"]["exit_code"] == code
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80
    assert done.stderr == ""
    quiet = run("--quiet", *own(tmp_path, "mine"))
    assert quiet.stdout.splitlines() == [last]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_is_told_that_it_runs_what_another_user_may_change(run: Envcheck, add: Add, tmp_path: Path) -> None:
    add("mine", "passed('fine')")
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)
    os.chown(tmp_path / "env", 4711, 0)
    argv = own(tmp_path, "mine")
    argv[argv.index(sys.executable)] = str(tmp_path / "env" / "bin" / "python")
    done = run(*argv, "--dry-run")
    assert f"{tmp_path / 'env'} belongs to user 4711, and root runs it; run as that user" in done.stderr


def test_json_is_alone_on_stdout_and_the_same_as_in_the_file(run: Envcheck, add: Add, tmp_path: Path) -> None:
    add("mine", "passed('fine', value=ranks[0]['x'], unit='s')", measure="print('{}'); return {'x': 2.5}")
    files = ["--output", str(tmp_path / "mine.json"), "--junit", str(tmp_path / "mine.xml")]
    done = run(*own(tmp_path, "mine"), "--json", *files)
    assert '<testsuite name="envcheck standard"' in (tmp_path / "mine.xml").read_text()
    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "mine.json").read_text())
    assert (report["schema"], report["outcomes"][0]["value"]) == ("envcheck/report/1", 2.5)
    assert report["target"]["name"] == sys.executable
    assert "1 check of level standard" in done.stderr
    shown = run("report", "show", str(tmp_path / "mine.json"))
    assert "PASS: 1 promise proved" in shown.stdout


@pytest.mark.parametrize("how", [("--redact",), ("--redact-key", "k"), ()])
def test_a_redacted_run_writes_no_name_not_even_on_its_way(
    run: Envcheck, add: Add, tmp_path: Path, how: tuple[str, ...]
) -> None:
    output = tmp_path / "shared.json"
    add("first", "failed('in ' + ranks[0]['at'], fix='move it')", measure="return {'at': '/home/adalovelace/data'}")
    look = """
    import os, time
    told = ""
    while "move it" not in told:
        time.sleep(0.05)
        told = open(os.environ["REPORT"]).read() if os.path.exists(os.environ["REPORT"]) else ""
    return {"leak": told.count("adalovelace")}
    """
    add("second", "passed('looked', value=ranks[0]['leak'])", measure=look)
    files = ("--output", str(output), "--html", str(tmp_path / "page.html"), "--summary", str(tmp_path / "steps.md"))
    done = run(*own(tmp_path, "first", "second"), *files, *how, "--json", REPORT=str(output))
    assert done.returncode == 1, done.stderr
    written = [done.stdout, *(path.read_text() for path in map(Path, files[1::2]))]
    assert ["adalovelace" in text for text in written] == [not how] * 4
    outcomes = {o["id"]: o for o in json.loads(done.stdout)["outcomes"]}
    assert outcomes["first"]["status"] == "fail"
    assert (outcomes["second"]["value"] == 0) == bool(how), outcomes["second"]
    assert json.loads(done.stdout) == json.loads(output.read_text())


def with_disk_of(size: str, small: Path) -> list[str]:
    """Return what runs a command that alone sees a file system of this size at `small`, or skip."""
    small.mkdir()
    mount = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs {small} && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small file system")
    return mount


@pytest.mark.parametrize("size", ["8k", "96k"])
def test_a_full_disk_for_temporary_files_is_named_by_every_check_it_takes(add: Add, tmp_path: Path, size: str) -> None:
    small = tmp_path / "small"
    mount = with_disk_of(size, small)
    names = [f"mine{number}" for number in range(16)]
    for name in names:
        add(name, "passed('fine')")
    argv = [sys.executable, "-m", "envcheck", *own(tmp_path, *names), "--level", "static", "--json"]
    completed = ran([*mount, *argv], env={**os.environ, "TMPDIR": str(small)})
    if not completed.stdout:
        *_, line = completed.stderr.splitlines()
        assert line.startswith("envcheck: no writable directory for temporary files: No space left")
        assert (completed.returncode, "Traceback" in completed.stderr) == (2, False)
        return
    assert (completed.returncode, "Traceback" in completed.stderr) == (3, False), completed.stderr
    lost = [o for o in json.loads(completed.stdout)["outcomes"] if o["status"] != "pass"]
    assert lost
    for outcome in lost:
        assert outcome["status"] == "error"
        assert "No space left on device" in outcome["summary"], outcome


def test_a_disk_that_is_full_takes_the_report_and_not_the_run(add: Add, tmp_path: Path) -> None:
    small = tmp_path / "small"
    mount = with_disk_of("4k", small)
    add("mine", "passed('fine')")
    argv = [sys.executable, "-m", "envcheck", *own(tmp_path, "mine"), "--output", str(small / "report.json")]
    completed = ran([*mount, *argv, "--level", "static"])
    assert completed.returncode == 3
    assert "PASS" not in completed.stdout
    why = "UNDETERMINED (neither pass nor fail): every check that ran is sound, but the report could not be written"
    assert why in " ".join(completed.stdout.split())
    why = f"{small / 'report.json'}: no space left on device; free space, or give --output another file"
    assert completed.stderr == f"envcheck: {why}\n"


@pytest.mark.parametrize("option", ["--html", "--summary"])
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["terminal", "json"])
def test_nothing_is_called_a_pass_before_all_files_are_written(
    run: Envcheck, add: Add, tmp_path: Path, option: str, more: tuple[str, ...]
) -> None:
    add("mine", "passed('fine')")
    done = run(*own(tmp_path, "mine"), option, "/dev/full", *more)
    assert done.returncode == 3
    line = f"envcheck: /dev/full: no space left on device; free space, or give {option} another file"
    assert line in done.stderr
    assert "PASS:" not in done.stdout
    assert '"status": "error"' in done.stdout or not more


@pytest.mark.parametrize(("outcome", "code"), [("passed('fine')", 3), ("failed('bad', fix='mend it')", 1)])
@pytest.mark.parametrize("more", ["", "--json", "--dry-run"])
def test_a_standard_output_that_is_full_is_one_line_and_no_pass(
    add: Add, tmp_path: Path, outcome: str, code: int, more: str
) -> None:
    add("mine", outcome)
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "envcheck", "--quiet", *own(tmp_path, "mine"), *more.split()]
        completed = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert completed.returncode == (3 if more == "--dry-run" else code)
    [line] = completed.stderr.splitlines()
    assert line.lower() == "envcheck: standard output: no space left on device; free space, or send it elsewhere"


def test_a_launchers_nonsense_is_a_warning_before_the_run(run: Envcheck, add: Add, tmp_path: Path) -> None:
    add("mine", "passed('fine')")
    for rank, told in (("9", ["envcheck: warning: "]), ("0", [])):
        done = run("--quiet", *own(tmp_path, "mine"), RANK=rank, WORLD_SIZE="1")
        assert ([line[:19] for line in done.stderr.splitlines()], done.returncode) == (told, 0)
        assert ("torchrun contradict each other: rank 9 of 1" in done.stderr) == bool(told)


def test_each_of_several_nodes_prints_one_line(run: Envcheck, add: Add, tmp_path: Path) -> None:
    add("mine", "failed('not fine', fix='mend it')")
    step = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "2"}
    step |= {"SLURM_NNODES": "4", "SLURM_STEP_NUM_NODES": "4", "SLURM_TASKS_PER_NODE": "1(x4)", "SLURMD_NODENAME": "n3"}
    done = run(*own(tmp_path, "mine"), "--output", "reports/", **step)
    assert done.stdout == "n3: FAIL: mine (on CPU; no GPU was tested); reports/n3.json\n", done.stderr
    again = run(*own(tmp_path, "mine"), "--output", "again/", "--baseline", "reports/n3.json", **step)
    assert [line.partition(": ")[0] for line in again.stdout.splitlines()] == ["n3", "n3"], again.stdout
    secret = run(*own(tmp_path, "mine"), "--output", f"{tmp_path}/treasure/", "--redact", **step)
    assert "FAIL: " in secret.stdout
    assert "treasure" not in secret.stdout
    assert "why       not fine" in run("--verbose", *own(tmp_path, "mine"), "--output", "reports/", **step).stdout


def test_a_dry_run_says_what_it_would_do_and_does_nothing(run: Envcheck, add: Add, tmp_path: Path) -> None:
    add("mine", "passed('fine')", measure=f"open({str(tmp_path / 'ran')!r}, 'w'); return {{}}", options="seconds=70")
    done = run(*own(tmp_path, "mine"), "--dry-run")
    assert done.returncode == 0
    assert "about 70 s" in " ".join(done.stdout.split())
    assert "it holds" in done.stdout
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "cwd" / "envcheck-report.json").exists()


def test_a_dry_run_says_how_much_of_a_run_that_was_cut_short_is_done(run: Envcheck, add: Add, tmp_path: Path) -> None:
    add("good", "passed('fine')")
    add("later", "passed('fine')")
    words, cut = [*own(tmp_path, "good", "later"), "--output", "cut.json"], tmp_path / "cwd/cut.json"
    assert run(*words).returncode == 0
    report = json.loads(cut.read_bytes())
    report |= {"ended": "", "outcomes": [row for row in report["outcomes"] if row["id"] == "good"]}
    cut.write_text(json.dumps(report))
    done = run(*words, "--resume", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "continuing cut.json: 1 of 2 checks done" in done.stdout
    assert json.loads(cut.read_bytes()) == report


def test_require_gpu_without_torch_is_undetermined_and_says_why(run: Envcheck, add: Add, tmp_path: Path) -> None:
    add("plain", "passed('fine')")
    add("on_gpu", "passed('fine')", options="gpus=1")
    assert run(*own(tmp_path, "plain", "on-gpu")).returncode == 0
    done = run(*own(tmp_path, "plain", "on-gpu"), "--require-gpu")
    assert done.returncode == 3
    assert "require-gpu why torch cannot be imported" in " ".join(done.stdout.split())


def test_an_environment_without_torch_is_never_a_pass(run: Envcheck) -> None:
    for options in (["--only", "shm"], ["--budget", "0.3s"], ["--level", "static", "--skip", "shm"]):
        done = run("run", "--python", sys.executable, *options)
        assert done.returncode == 3, done.stdout
        assert "torch cannot be imported" in " ".join(done.stdout.split())


def test_a_timeout_replaces_a_checks_own(run: Envcheck, add: Add, tmp_path: Path) -> None:
    add("slow", "passed('fine')", measure="import time; time.sleep(600)")
    done = run(*own(tmp_path, "slow"), "--timeout", "0.5")
    assert done.returncode == 3
    assert "still running after 0.5 s" in done.stdout


def test_a_budget_names_what_did_not_fit_and_the_exit_code_is_that_of_what_ran(
    run: Envcheck, add: Add, tmp_path: Path
) -> None:
    add("good", "passed('fine')", options="seconds=0.1")
    add("dear", "passed('never')", measure=f"open({str(tmp_path / 'begun')!r}, 'w')", options="seconds=500")
    planned = " ".join(run(*own(tmp_path), "--budget", "1m", "--only", "dear", "--dry-run").stdout.split())
    assert "0 expected to fit into 60 s" in planned
    assert "dear quick left out it holds" in planned
    done = run(*own(tmp_path, "good", "dear"), "--budget", "60s")
    text = " ".join(done.stdout.split())
    assert done.returncode == 0
    assert "skip dear: left out: planned for 500 s" in text
    assert not (tmp_path / "begun").exists()
    assert "; 1 check left out by the budget" in text
    nothing = run(*own(tmp_path, "dear"), "--budget", "60s")
    assert nothing.returncode == 3


def test_a_repeated_run_shows_its_spread_and_what_it_took(run: Envcheck, add: Add, tmp_path: Path) -> None:
    add("mine", "passed('fine', value=2.5, unit='s')")
    done = run("--verbose", *own(tmp_path, "mine"), "--repeat", "2")
    text = " ".join(done.stdout.split())
    assert "2 times, under a second" in text
    assert "mine 2 pass 2.5 / 2.5 / 2.5 s" in text
    assert " s: starting Python and torch" in text
    report = json.loads((tmp_path / "cwd" / "envcheck-report.json").read_text())
    assert report["outcomes"][0]["spread"]["values"] == [2.5, 2.5]
    assert report["outcomes"][0]["planned"] == 0.1
    assert report["timing"]["taken"] >= report["timing"]["starting"] > 0


def test_what_an_image_comes_without_is_not_needed_to_validate_it() -> None:
    """pyproject.toml's group `image` is all there is in one."""
    absent = ("docker", "jinja2", "requests", "urllib3", "uv")
    program = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); from envcheck.cli import main; main()"
    commands = [["run", "--dry-run"], ["checks"], ["schema", "report"], ["report", "judge", "none.json"]]
    commands += [["fleet", "gate", "--help"], ["resolve", "--json"], ["matrix", "show"]]
    commands += [["mirror", "list"], ["mirror", "list", "--json"]]
    for words in commands:
        completed = ran([sys.executable, "-c", program, *words])
        assert "inside an image" not in completed.stderr
        assert completed.returncode == (2 if words[-1] == "none.json" else 0), completed.stderr


@pytest.mark.parametrize("words", [["run", "--dry-run"], ["matrix", "show"]])
def test_nobody_who_reads_is_no_failed_check(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "envcheck", *words]
    completed = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (completed.returncode, completed.stderr) == (141, b"")


def test_where_nothing_can_be_written_it_still_runs_and_says_so(add: Add, tmp_path: Path) -> None:
    add("mine", "passed('fine')")
    completed = typed(*own(tmp_path, "mine"), cwd="/proc")
    assert completed.returncode == 0
    assert "no report written" in completed.stdout


@pytest.mark.parametrize("words", ["envcheck run --only my-", "envcheck run --skip my-", "envcheck checks my-"])
def test_a_shell_is_offered_the_checks_that_begin_so(run: Envcheck, add: Add, tmp_path: Path, words: str) -> None:
    add("my_one", "passed('fine')")
    add("my_other", "passed('fine')")
    command, incomplete = words.rsplit(" ", 1)
    first, _, remaining = command.removeprefix("envcheck ").partition(" ")
    typed = f"envcheck {first} --checks {tmp_path / 'site'} {remaining}".split()

    def offered(word: str) -> set[str]:
        environ = {"_ENVCHECK_COMPLETE": "bash_complete", "COMP_CWORD": str(len(typed))}
        return set(run(COMP_WORDS=" ".join([*typed, word]), **environ).stdout.split())

    assert offered(incomplete) == {"plain,my-one", "plain,my-other"}
    assert {"plain,ddp", "plain,shm"} <= offered("")
    (tmp_path / "site" / "env" / "my_one.py").write_text("no check")
    assert offered(incomplete) == {"plain,my-other"}


@pytest.mark.torch
def test_a_foreign_environment_passes_its_quick_level_and_nothing_is_installed_in_it(
    run: Envcheck, torch_python: Path
) -> None:
    before = sorted(torch_python.parents[1].rglob("*"))
    # On a machine with a GPU this torch, which has no CUDA, is rightly refused by one check.
    done = run("run", "--python", str(torch_python), "--level", "quick", "--skip", "gpu-visible", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["mode"] == "cpu"
    statuses = {o["id"]: o["status"] for o in report["outcomes"]}
    assert statuses["kernels"] == statuses["shared-libraries"] == statuses["requirements"] == "pass"
    assert sorted(torch_python.parents[1].rglob("*")) == before
