"""When the last verdict of a node answers a gate's question, which of two is kept, and the file in which it waits."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import json, structs

from envcheck.fleet import gate
from envcheck.fleet.gate import Boot, GatedEnvironment, GateQuestion, NodeVerdict, fingerprint, this_boot
from envcheck.reports.model import RunReport
from envcheck.runner.schema import TargetFacts
from tests.builders import report, row
from tests.tables import each

PYTHON = GatedEnvironment(kind="python", name="/opt/venv/bin/python", state="ab12")
NOW = Boot(node="n1", boot="b-1", driver="570.124.06", gpus=8, uptime=1000.0)
QUESTION = GateQuestion(subject=PYTHON, level="quick", require_gpu=True, max_age=900.0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def verdict(age: float = 60.0, level: str = "quick", mode: Any = "gpu", status: Any = "pass", **at: Any) -> NodeVerdict:
    boot = structs.replace(NOW, uptime=NOW.uptime - age)
    return NodeVerdict(subject=PYTHON, at=structs.replace(boot, **at), level=level, mode=mode, status=status)


OLD_FAILURE = verdict(level="standard", status="fail", uptime=-90_000.0)


@each(
    "kept, question, why",
    [
        *((verdict(age), QUESTION, "") for age in (0.0, 60.0, 900.0)),
        (verdict(900.1), QUESTION, "900 s old"),
        (verdict(-0.1), QUESTION, "from the future"),
        (verdict(uptime=float("nan")), QUESTION, "from the future"),
        (verdict(boot="b-0"), QUESTION, "booted since"),
        (verdict(driver="535.183.01"), QUESTION, "the driver was 535.183.01"),
        (verdict(driver=""), QUESTION, "the driver was none"),
        (verdict(gpus=7), QUESTION, "7 GPUs"),
        (verdict(node="n2"), QUESTION, "about node n2"),
        (verdict(level="static"), QUESTION, "level is static"),
        (verdict(level="nonsense"), QUESTION, "level is unknown"),
        (verdict(mode="cpu"), QUESTION, "saw no GPU"),
        (verdict(status="error"), QUESTION, "undetermined"),
        (structs.replace(verdict(), subject=structs.replace(PYTHON, state="cd34")), QUESTION, "another environment"),
        (structs.replace(verdict(), subject=structs.replace(PYTHON, name="/other")), QUESTION, "another environment"),
        # A failure answers at every level, also without a GPU, and at a lower one until a run of its own level passes.
        *((verdict(level=one, mode="cpu", status="fail"), QUESTION, "") for one in ("static", "quick", "full")),
        (OLD_FAILURE, QUESTION, ""),
        (OLD_FAILURE, QUESTION._replace(level="standard"), "s old"),
        (verdict(status="fail", uptime=-90_000.0), QUESTION, "s old"),
    ],
)
def test_what_is_fresh_and_of_this_environment_answers(kept: NodeVerdict, question: GateQuestion, why: str) -> None:
    actual = gate.why_unusable(kept, question, NOW)
    assert why in actual
    assert bool(why) == bool(actual)
    nowhere = structs.replace(NOW, boot="")
    assert gate.why_unusable(verdict(boot=""), QUESTION, nowhere), "a kernel that names no boot proves none"


def test_links_that_are_trained_after_a_boot_drain_no_node_until_it_has_settled() -> None:
    training = report(row("nvlink", "fail", kind="node"), row("kernels", "fail", code="gpu.required"))
    ready, broken = training, report(row("nvlink", "fail", kind="node"), row("ecc", "fail", kind="node"))
    training = structs.replace(ready, environment={**ready.environment, "cuinit": 802})
    for run, uptime, status in (
        (training, 120.0, "error"),
        (training, 640.0, "error"),  # it began a minute before
        (training, 700.0, "fail"),
        (broken, 120.0, "fail"),
        (ready, 120.0, "fail"),
    ):
        made = gate.of_report(run, PYTHON, structs.replace(NOW, uptime=uptime))
        assert made is not None
        assert (made.status, made.of_node, made.check) == (status, status == "fail", "nvlink")
        assert made.settling == (status == "error")


def test_a_pass_of_a_lower_level_does_not_hide_what_a_higher_one_found() -> None:
    failed = verdict(level="standard", status="fail")
    assert not gate.replaces(verdict(), failed)
    assert gate.replaces(verdict(level="standard"), failed)
    assert gate.replaces(verdict(level="standard", status="fail"), failed)
    assert not gate.replaces(verdict(status="fail"), failed), "a pass of its level would take back both"
    assert gate.replaces(verdict(boot="b-2"), failed)
    assert gate.replaces(verdict(driver="580.1"), failed)
    assert gate.replaces(verdict(), verdict(level="full"))
    assert gate.replaces(verdict(), None)


def of_report(run: RunReport) -> NodeVerdict:
    made = gate.of_report(run, PYTHON, NOW)
    assert made is not None
    return made


def test_the_verdict_of_a_run_names_the_first_check_that_decided() -> None:
    path = "/opt/x/" + "deep/" * 30
    run = report(
        row("matmul"), row("ecc", "fail", path + 'GPU 3: 2 "x"\n\x1b[31m\u202eerrors', kind="node"), row("ddp", "fail")
    )
    made = of_report(run)
    assert (made.status, made.check, made.level, made.mode) == ("fail", "ecc", "quick", "gpu")
    assert (made.covered[0], made.again, made.of_node) == ("matmul", ("ecc", "ddp"), True)
    assert re.fullmatch(r"envcheck: ecc: \.\.\..*/GPU 3: 2 'x' errors", made.reason), "the end, no codes, no quotes"
    assert len(made.reason) == gate.REASON_LENGTH
    undetermined = of_report(report(row("matmul"), row("nvml", "error")))
    assert (undetermined.status, undetermined.check) == ("error", "nvml")
    assert gate.of_report(report(row("matmul"), ended=""), PYTHON, NOW) is None, "it was cut short"
    for kind, unsure in (("node", True), ("env", False)):
        run = report(row("ddp", "fail"), row("gemm-throughput", "error", kind=kind))
        made = of_report(run)
        assert (made.status, made.of_node, made.node_unsure) == ("fail", False, unsure)


@each(
    "failed, of_node",
    [
        (row("ecc", "fail", kind="node"), True),
        (row("installed-files", "fail"), False),
        (row("image-promises", "fail", kind="node"), False),
        (row("gemm-throughput", "fail"), True),
        (row("shm", "fail"), False),  # of an image: docker run --shm-size
        (row("gpu-visible", "fail", kind="node"), True),
        (row("kernels", "fail", code="gpu.required"), True),
    ],
)
def test_a_fault_is_the_nodes_or_that_of_the_environment_on_it(failed: Any, of_node: Any) -> None:
    run = report(row("requirements", "fail"), failed)
    made = of_report(run)
    assert made.of_node == of_node
    assert made.check == (failed.id if of_node else "requirements"), "what drains is named first"
    cpu_wheel = structs.replace(run, environment={"torch": "2.9.1+cpu", "cuda": None})
    seen = of_node and failed.id not in ("gpu-visible", "kernels")
    assert of_report(cpu_wheel).of_node == seen
    waiting = structs.replace(run, outcomes=[*run.outcomes, row("fabric", "skip", kind="node", code="fabric.shared")])
    assert of_report(waiting).of_node == of_node, "CUDA fails for another reason"
    waiting = structs.replace(waiting, environment={**run.environment, "cuinit": 802})
    assert of_report(waiting).of_node == seen, "no partition of them is active"
    shm = structs.replace(run, target=TargetFacts(kind="python", name="/opt/venv", chosen="--python"))
    assert of_report(shm).of_node == (of_node or failed.id == "shm")


@each(
    "kind, environment, status",
    [
        ("env", {"error": "no torch"}, "error"),
        ("env", {"device_count": 0}, "fail"),
        # NVML needs no torch: a node that shows no GPU is at fault whatever its environment is.
        ("node", {"error": "no torch"}, "fail"),
    ],
)
def test_a_required_gpu_is_undetermined_where_only_a_torch_that_is_not_there_could_see_it(
    kind: Any, environment: dict[str, Any], status: str
) -> None:
    required = structs.replace(row("require-gpu", "fail", "torch sees no GPU"), kind=kind, code="gpu.required")
    run = report(row("shm"), row("requirements", "error", "x" * 90), required, mode="cpu")
    made = of_report(structs.replace(run, environment=environment))
    assert made.status == status
    assert made.decided_by == ("requirements: " + "x" * 90 if status == "error" else "require-gpu: torch sees no GPU")
    assert gate.why_unusable(made, QUESTION._replace(require_gpu=False), NOW)
    assert bool(gate.why_unusable(made, QUESTION, NOW)) == (status == "error")


def test_an_image_by_digest_is_the_same_whatever_the_engine_calls_it() -> None:
    digest = "registry.example/torch@sha256:" + "a" * 64
    assert gate.image_subject(digest, "sha256:1", None) == gate.image_subject(digest, None, None)
    assert gate.image_subject("torch:1", "sha256:1", None) != gate.image_subject("torch:1", "sha256:2", None)
    assert gate.image_subject(digest, None, None) != gate.image_subject(digest, None, "/opt/conda/bin/python")


def test_a_verdict_is_read_as_it_was_kept_and_only_its_user_reads_it() -> None:
    path = gate.keep(verdict(level="standard", status="fail"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert gate.keep(verdict()) == path
    assert gate.read(path) == verdict(level="standard", status="fail"), "what a lower level says does not replace it"


@each(
    "content",
    [
        *(json.encode(verdict())[:length] for length in (0, 1, 30, -1)),
        b"\xff\xfe",
        b"[" * 60_000,
        json.encode(verdict()).replace(b'"pass"', b'"fine"'),
        json.encode(verdict()).replace(b"envcheck/gate/1", b"envcheck/gate/2"),
        json.encode(verdict()).replace(b'"left_out":0', b'"left_out":0,"more":1'),
        json.encode(verdict()) + b" " * (1 << 17) + b"x",
    ],
)
def test_what_is_half_written_or_of_another_version_is_no_verdict(content: bytes) -> None:
    path = gate.keep(verdict())
    path.write_bytes(content)
    assert gate.read(path) is None
    gate.keep(verdict())
    assert gate.read(path) == verdict()


def test_a_link_a_pipe_and_a_file_that_others_may_write_are_no_verdict(tmp_path: Path) -> None:
    path = gate.keep(verdict())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(path.read_bytes())
    path.chmod(0o666)
    assert gate.read(path) is None
    path.unlink()
    path.symlink_to(elsewhere)
    assert gate.read(path) is None
    path.unlink()
    os.mkfifo(path)
    assert gate.read(path) is None


def test_a_whole_run_is_kept_and_one_that_was_cut_short_is_not(home: Path) -> None:
    gate.keep_run(report(row("matmul"), ended=""), None)
    assert not [*home.glob("gate/*")]
    gate.keep_run(report(row("matmul")), None)
    (path,) = home.glob("gate/*")
    kept = gate.read(path)
    assert kept is not None
    assert (kept.status, kept.subject.state) == ("pass", "sha256:1")


def test_an_environment_in_which_a_package_was_installed_is_another_one(tmp_path: Path) -> None:
    packages, python = tmp_path / "venv/lib/python3.11/site-packages", tmp_path / "venv/bin/python"
    packages.mkdir(parents=True)
    python.parent.mkdir()
    python.touch()
    before = fingerprint(python)
    assert fingerprint(python) == before
    (packages / "torch").mkdir()
    assert fingerprint(python) != before


def test_the_driver_and_its_gpus_are_read_off_the_kernel_module(tmp_path: Path) -> None:
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 01:46:33 UTC 2025\n"
    (tmp_path / "version").write_text(line)
    (tmp_path / "gpus/0000:01:00.0").mkdir(parents=True)
    (tmp_path / "gpus/0000:02:00.0").mkdir()
    here = this_boot({"SLURMD_NODENAME": "n7"}, tmp_path)
    assert (here.node, here.driver, here.gpus) == ("n7", "570.124.06", 2)
    assert this_boot({}, tmp_path / "none").driver == ""
