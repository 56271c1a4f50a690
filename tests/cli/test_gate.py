"""`envcheck fleet gate`: exit codes, the drain, and that a fresh verdict starts nothing."""

import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from envcheck.cli import Settings
from envcheck.cli.commands import gate as command_module
from envcheck.errors import UnavailableError
from envcheck.fleet import gate as verdicts
from envcheck.fleet.gate import GatedEnvironment, NodeVerdict, fingerprint, this_boot
from envcheck.safe_files import others_may_change
from tests.builders import report, row
from tests.tables import each

PYTHON = Path(sys.executable)
SUBJECT = GatedEnvironment(kind="python", name=sys.executable, state=fingerprint(PYTHON))


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("envcheck.fleet.gate.run_checks", lambda *_, **__: pytest.fail("a run was started"))
    monkeypatch.setattr("envcheck.safe_files.others_may_change", lambda _: "")


def keep(status: Any, **facts: Any) -> None:
    made = NodeVerdict(subject=SUBJECT, at=this_boot(), level="standard", mode="cpu", status=status)
    verdicts.keep(structs.replace(made, **facts))


def typed(*arguments: str) -> Result:
    settings = Settings(None, verbose=False, quiet=False)
    return CliRunner().invoke(command_module.command, arguments, obj=settings)


def gate(*arguments: str) -> Result:
    result = typed("--python", sys.executable, *arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def scontrol(at: Path, body: str = 'echo "$@" >> "${0%/*}/calls"', reasons: dict[str, str] | None = None) -> Path:
    """Put Slurm's two programs on PATH, for 20 nodes of one partition; return where scontrol notes its arguments."""
    lines = [f"n{number}|gpu*|idle|none" for number in range(1, 21) if f"n{number}" not in (reasons or {})]
    lines += [f"{name}|gpu*|drained|{reason}" for name, reason in (reasons or {}).items()]
    (at / "nodes").write_text("\n".join(lines) + "\n")
    (at / "calls").unlink(missing_ok=True)
    for name, script in {"scontrol": body, "sinfo": 'cat "${0%/*}/nodes"'}.items():
        (at / name).write_text(f"#!/bin/sh\n{script}\n")
        (at / name).chmod(0o755)
    return at / "calls"


def test_a_fresh_verdict_decides_and_only_a_failure_drains_with_its_reason(tmp_path: Path) -> None:
    calls = scontrol(tmp_path)
    keep("pass")
    result = gate("--drain")
    assert (result.exit_code, result.output.partition(",")[0]) == (0, "n7 may take work: standard passed")
    keep("fail", check="gpu-visible", summary="7 of 8 GPUs", of_node=True)
    assert gate().exit_code == 1
    assert not calls.exists(), "a pass, or no --drain, calls nothing"
    result = gate("--drain")
    assert (result.exit_code, result.output) == (1, "envcheck: gpu-visible: 7 of 8 GPUs\n")
    assert calls.read_text() == "update nodename=n7 state=drain reason=envcheck: gpu-visible: 7 of 8 GPUs\n"


def test_an_environments_fault_refuses_work_and_drains_no_node(tmp_path: Path) -> None:
    calls = scontrol(tmp_path)
    found = {"check": "installed-files", "summary": "torch/nn/modules/linear.py is not the one that was installed"}
    keep("fail", **found)
    assert gate().exit_code == 1
    result = gate("--drain")
    assert (result.exit_code, "warning: n7 may take work; this environment fails" in result.stderr) == (0, True)
    keep("fail", **found, node_unsure=True)
    for policy, code in (("refuse", 3), ("admit", 0)):
        result = gate("--drain", "--on-error", policy)
        assert (result.exit_code, "undetermined: a check of the node gave no answer" in result.stderr) == (code, True)
    assert not calls.exists()


def test_without_slurms_tools_a_failed_check_still_refuses_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    keep("fail", check="ecc", summary="2 errors", of_node=True)
    result = gate("--drain", "--on-error", "admit")
    assert (result.exit_code, result.stdout) == (1, "envcheck: ecc: 2 errors\n")
    assert "warning: n7 is not drained: sinfo is not on PATH" in result.stderr


@each(
    "reasons, percent, words",
    [
        ({"n1": "envcheck: ecc: 2 errors"}, "10", ""),
        ({"n1": "envcheck: ecc: 2 errors", "n2": "envcheck: xid: 79"}, "10", "2 of the 20 nodes of partition gpu"),
        ({"n1": "maintenance", "n2": "a fan"}, "0", ""),
        ({"n7": "maintenance"}, "10", "it is drained already: maintenance"),
        ({"n7": "envcheck: ecc: 1 error", "n1": "envcheck: xid: 79", "n2": "envcheck: xid: 79"}, "10", None),
    ],
)
def test_no_more_of_a_partition_is_drained_than_the_limit(
    tmp_path: Path, reasons: dict[str, str], percent: str, words: str | None
) -> None:
    calls = scontrol(tmp_path, reasons=reasons)
    keep("fail", check="ecc", summary="2 errors", of_node=True)
    result = gate("--drain", "--max-drained", percent)
    assert (result.exit_code, (words or "") in result.stderr) == (0 if words else 1, True)
    assert calls.exists() == (words == ""), "what envcheck drained stays as it is"


@each("reason, states", [("envcheck: ecc: 2 errors", ["drain", "resume"]), ("a fan", ["drain"])])
def test_of_many_that_fail_in_one_moment_those_over_the_limit_take_it_back(
    tmp_path: Path, reason: str, states: list[str]
) -> None:
    others = "\n".join(f"n{number}|gpu*|drained|envcheck: ecc: 2 errors" for number in (1, 2, 3))
    after = f'sed -i "s/^n7|.*/n7|gpu*|drained|{reason}/" "${{0%/*}}/nodes"\necho "{others}" >> "${{0%/*}}/nodes"'
    calls = scontrol(tmp_path, f'echo "$@" >> "${{0%/*}}/calls"\n{after}')
    keep("fail", check="ecc", summary="2 errors", of_node=True)
    assert gate("--drain").exit_code == 0
    assert [line.split()[2] for line in calls.read_text().splitlines()] == [f"state={state}" for state in states]


def test_without_a_fresh_verdict_a_prolog_starts_no_check_and_admits() -> None:
    keep("pass", at=structs.replace(this_boot(), boot="another"))
    result = gate("--kept-only", "--on-error", "admit")
    assert (result.exit_code, "the node was booted since; " in result.stderr) == (0, True)
    assert gate("--kept-only", "--level", "full").exit_code == 3


@each("status, code", [("pass", 0), ("fail", 1), ("skip", 3)])
def test_after_a_repair_what_failed_runs_again_and_the_node_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Any, code: int
) -> None:
    asked: list[Any] = []

    def run(_target: object, level: str, budget: float | None, **more: Any) -> Any:
        asked.append((level, budget, more["only"]))
        return report(row("ecc", status, "2 errors", kind="node"), row("open-files"), mode="cpu")

    monkeypatch.setattr("envcheck.fleet.gate.run_checks", run)
    noted = scontrol(tmp_path, reasons={"n7": "envcheck: ecc: 2 errors", "n8": "envcheck: xid: 79"})
    keep("fail", check="ecc", summary="2 errors", of_node=True, again=("ecc",), level="quick")
    result = typed("--recheck")
    assert (result.exit_code, asked) == (code, [("quick", None, ("ecc",))]), result.output
    called = noted.read_text() if noted.exists() else ""
    assert called == ("" if code else "update nodename=n7 state=resume\n"), "only a pass resumes"
    assert gate("--kept-only").exit_code == bool(code), "the gate goes by the new verdict; no answer takes nothing back"


@each(
    "found, code",
    [
        ([row("ecc", "skip", kind="node"), row("installed-files", "fail")], 3),
        ([row("ecc", kind="node"), row("installed-files", "fail"), row("lost-gpus", "error", kind="node")], 3),
        ([row("ecc", "skip", kind="node"), row("xid", "fail", kind="node")], 1),
        ([row("ecc", kind="node"), row("installed-files", "fail")], 0),
    ],
)
def test_an_environments_fault_is_no_answer_to_one_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[Any], code: int
) -> None:
    monkeypatch.setattr("envcheck.fleet.gate.run_checks", lambda *_, **__: report(*found, mode="cpu"))
    noted = scontrol(tmp_path, reasons={"n7": "envcheck: ecc: 2 errors"})
    keep("fail", check="ecc", summary="2 errors", of_node=True, again=("ecc",))
    result = typed("--recheck")
    assert (result.exit_code, noted.exists()) == (code, not code), result.output


@each("of_node, code", [(False, 0), (True, 3)])
def test_an_environment_that_is_gone_holds_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, of_node: bool, code: int
) -> None:
    monkeypatch.setattr("envcheck.fleet.gate.run_checks", lambda *_, **__: report(row("ecc"), mode="cpu"))
    noted = scontrol(tmp_path, reasons={"n7": "envcheck: ecc: 2 errors"})
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / str(of_node)))
    gone = GatedEnvironment(kind="python", name="/gone/bin/python", state="1")
    keep("fail", check="xid", subject=gone, of_node=of_node, again=("xid",))
    assert "no Python at /gone/bin/python" in str(typed("--recheck").exception)
    keep("fail", check="ecc", of_node=True, again=("ecc",))
    result = typed("--recheck")
    assert (result.exit_code, noted.exists()) == (code, not code), result.output
    assert f"; delete {verdicts.path_of('n7', gone)}" in result.stderr


@each("reason", ["maintenance", "none"])
def test_a_node_that_envcheck_did_not_drain_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    found = report(row("ecc"), row("installed-files", "fail"), mode="cpu")  # the environment's fault holds no node
    monkeypatch.setattr("envcheck.fleet.gate.run_checks", lambda *_, **__: found)
    noted = scontrol(tmp_path, reasons={"n7": reason})
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / reason))
    assert "no verdict of n7 is kept in " in str(typed("--recheck").exception)
    keep("fail", check="ecc", again=("ecc",))
    result = typed("--recheck")
    assert (result.exit_code, "not resumed: it is drained" in result.output, noted.exists()) == (0, True, False)


def test_in_a_pod_a_failure_marks_the_node_and_a_pass_takes_that_back(monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[tuple[str, str, str]] = []

    def mark(verdict: NodeVerdict, _environ: object) -> str:
        marks.append((verdict.at.node, verdict.check, verdict.status))
        return "403"

    monkeypatch.setattr("envcheck.fleet.kubernetes_node.mark", mark)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("NODE_NAME", "n7")
    keep("fail", check="ecc", summary="2 errors", of_node=True)
    monkeypatch.delenv("SLURMD_NODENAME")
    assert gate().exit_code == 1
    assert marks == [], "without --drain nothing is called"
    result = gate("--drain")
    assert (result.exit_code, result.stdout) == (1, "envcheck: ecc: 2 errors\n")
    assert "warning: n7 is not drained: 403" in result.stderr
    keep("pass")
    result = gate("--drain")
    assert (result.exit_code, marks) == (0, [("n7", "ecc", "fail"), ("n7", "", "pass")])
    assert "warning: n7 is not marked as fit: 403" in result.stderr
    found = report(row("ecc", kind="node"), row("installed-files", "fail"), mode="gpu")
    monkeypatch.setattr("envcheck.fleet.gate.run_checks", lambda *_, **__: found)
    keep("fail", check="ecc", summary="2 errors", of_node=True, again=("ecc",))
    assert "n7 passed again (ecc); not resumed: 403" in typed("--recheck").output
    assert marks[2:] == [("n7", "installed-files", "pass")], "an environment's fault marks no node"


def test_a_pod_does_not_start_while_links_train_and_slurms_prolog_admits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = report(row("nvlink", "fail", kind="node"))
    monkeypatch.setattr("envcheck.fleet.gate.run_checks", lambda *_, **__: found)
    monkeypatch.setattr("envcheck.fleet.gate._SETTLED", math.inf)
    assert gate("--on-error", "admit").exit_code == 0
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("NODE_NAME", "n7")
    monkeypatch.delenv("SLURMD_NODENAME")
    result = typed("--python", sys.executable, "--on-error", "admit")
    assert isinstance(result.exception, UnavailableError), "its container is tried again"


def test_while_users_hold_the_gpus_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    keep("fail", check="ecc")
    for held, code in (("4711 (python) held 70.0 GiB on GPU 3", 0), ("", 1)):
        monkeypatch.setattr("envcheck.fleet.gate.gpu_users", lambda held=held: held)
        assert gate("--idle-only").exit_code == code


@each("body", ["sleep 60", "echo down >&2; exit 1"])
def test_a_controller_that_does_not_answer_is_said_and_goes_by_on_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr("envcheck.fleet.slurm_node.SECONDS", 0.3)
    scontrol(tmp_path, body)
    keep("fail", check="ecc", summary="2 errors", of_node=True)
    for policy, code in (("refuse", 3), ("admit", 0)):
        result = gate("--drain", "--on-error", policy)
        assert (result.exit_code, "n7 is not drained: scontrol: " in result.stderr) == (code, True)


def test_what_cannot_be_judged_is_no_failure_and_drains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = scontrol(tmp_path)
    monkeypatch.setattr("envcheck.fleet.gate.run_checks", lambda *_, **__: time.sleep(60))
    hangs = ["--budget", "1s", "--drain"], 3, "undetermined: the run did not end within its budget of 1 s"
    wrong = ["--python", "/no/such/python"], 2, "wrong configuration: no Python at /no/such/python"
    for words, code, message in (hangs, wrong):
        for policy in ("refuse", "admit"):
            result = gate(*words, "--on-error", policy)
            assert (result.exit_code, message in result.stderr) == (code if policy == "refuse" else 0, True)
    assert not calls.exists()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), "no alarm is left behind"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_runs_nothing_that_another_user_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envcheck.safe_files.others_may_change", others_may_change)
    (tmp_path / "env" / "bin").mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python"
    python.symlink_to("/usr/bin/python3")
    assert others_may_change(python) == ""
    for mode, owner, why in (
        (0o777, 0, f"{python.parent} may be written by others"),
        (0o755, 4711, f"{tmp_path / 'env'} belongs to user 4711"),
    ):
        python.parent.chmod(mode)
        os.chown(tmp_path / "env", owner, 0)
        assert others_may_change(python) == why
        result = gate("--python", str(python), "--drain")
        assert (result.exit_code, f"wrong configuration: {why}, and root would run it" in result.stderr) == (2, True)


@each("name", ["n[1-9]", "ALL", "all", "a,b", "..", "", "-n7", "n7 state=idle"])
def test_only_one_node_by_its_name_is_drained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    calls = scontrol(tmp_path)
    monkeypatch.setenv("SLURMD_NODENAME", name)
    monkeypatch.setattr("platform.node", lambda: name)
    keep("fail", check="ecc", summary="2 errors", of_node=True)
    result = gate("--drain")
    assert (result.exit_code, "is not drained: this is no name of one node" in result.stderr) == (1, True)
    monkeypatch.delenv("SLURMD_NODENAME")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("NODE_NAME", name)
    monkeypatch.setattr("envcheck.fleet.kubernetes_node.mark", lambda *_, **__: pytest.fail("a node was marked"))
    keep("fail", check="ecc", summary="2 errors", of_node=True)
    result = gate("--drain")
    assert (result.exit_code, "is not drained: this is no name of one node" in result.stderr) == (1, True)
    assert not calls.exists()


@each("error", [KeyError("facts"), OSError(28, "No space left on device"), OSError(13, "no right")])
def test_an_internal_error_is_no_failure_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    calls = scontrol(tmp_path)

    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("envcheck.fleet.gate.run_checks", broken)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for policy, code in (("refuse", 2 if isinstance(error, PermissionError) else 3), ("admit", 0)):
        result = gate("--drain", "--on-error", policy)
        assert (result.exit_code, len(result.stderr.splitlines())) == (code, 1)
    assert not calls.exists()


def test_a_stale_verdict_is_replaced_by_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[float] = []

    def run(_target: object, _level: str, budget: float, **_: object) -> Any:
        runs.append(budget)
        return report(row("matmul", "error", "no answer"), row("ddp"), mode="cpu")

    monkeypatch.setattr("envcheck.fleet.gate.run_checks", run)
    keep("pass", at=structs.replace(this_boot(), boot="another"))
    result = gate("--budget", "20s")
    assert (result.exit_code, runs) == (3, [20.0])
    assert "undetermined: matmul: no answer; see with `envcheck run` what to do" in result.stderr
    assert gate().exit_code == 3, "an undetermined verdict is not believed a second time"
    assert len(runs) == 2
