"""When the last verdict of a node answers a gate's question, and which of two verdicts is kept."""

import re
from typing import Any

from msgspec import structs

from envcheck.fleet import gate
from envcheck.fleet.gate import Boot, GatedEnvironment, GateQuestion, NodeVerdict
from tests.builders import report, row
from tests.tables import each

PYTHON = GatedEnvironment(kind="python", name="/opt/venv/bin/python", state="ab12")
NOW = Boot(node="n1", boot="b-1", driver="570.124.06", gpus=8, uptime=1000.0)
QUESTION = GateQuestion(subject=PYTHON, level="quick", require_gpu=True, max_age=900.0)


def verdict(age: float = 60.0, level: str = "quick", mode: Any = "gpu", status: Any = "pass", **at: Any) -> NodeVerdict:
    boot = structs.replace(NOW, uptime=NOW.uptime - age)
    return NodeVerdict(subject=PYTHON, at=structs.replace(boot, **at), level=level, mode=mode, status=status)


@each("age", [0.0, 60.0, 900.0])
def test_a_fresh_pass_answers(age: float) -> None:
    assert gate.why_unusable(verdict(age), QUESTION, NOW) == ""


@each(
    "kept, why",
    [
        (verdict(900.1), "900 s old"),
        (verdict(-0.1), "from the future"),
        (verdict(uptime=float("nan")), "from the future"),
        (verdict(boot="b-0"), "booted since"),
        (verdict(driver="535.183.01"), "the driver was 535.183.01"),
        (verdict(driver=""), "the driver was none"),
        (verdict(gpus=7), "7 GPUs"),
        (verdict(node="n2"), "about node n2"),
        (verdict(level="static"), "level is static"),
        (verdict(level="nonsense"), "level is unknown"),
        (verdict(mode="cpu"), "saw no GPU"),
        (verdict(status="error"), "undetermined"),
        (structs.replace(verdict(), subject=structs.replace(PYTHON, state="cd34")), "another environment"),
        (structs.replace(verdict(), subject=structs.replace(PYTHON, name="/other")), "another environment"),
    ],
)
def test_what_is_not_fresh_or_of_something_else_does_not_answer(kept: NodeVerdict, why: str) -> None:
    assert why in gate.why_unusable(kept, QUESTION, NOW)


def test_a_kernel_that_names_no_boot_proves_none() -> None:
    nameless = structs.replace(NOW, boot="")
    assert gate.why_unusable(verdict(boot=""), QUESTION, nameless)


@each("level", ["static", "quick", "standard", "full"])
def test_a_failure_answers_at_every_level_also_without_a_gpu(level: str) -> None:
    assert gate.why_unusable(verdict(level=level, mode="cpu", status="fail"), QUESTION, NOW) == ""


def test_a_failure_of_a_higher_level_answers_until_a_run_of_that_level_passes() -> None:
    failed = verdict(level="standard", status="fail", uptime=-90_000.0)
    assert gate.why_unusable(failed, QUESTION, NOW) == ""
    assert "s old" in gate.why_unusable(failed, QUESTION._replace(level="standard"), NOW)
    assert "s old" in gate.why_unusable(verdict(status="fail", uptime=-90_000.0), QUESTION, NOW)


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


def test_the_verdict_of_a_run_names_the_first_check_that_decided() -> None:
    run = report(row("matmul"), row("ecc", "fail", "GPU 3: 2 uncorrected\nerrors " + "x" * 90), row("ddp", "fail"))
    made = gate.of_report(run, PYTHON, NOW)
    assert made is not None
    assert (made.status, made.check, made.level, made.mode) == ("fail", "ecc", "quick", "gpu")
    assert re.fullmatch(r"envcheck: ecc: GPU 3: 2 uncorrected errors x+\.\.\.", made.reason)
    assert len(made.reason) == len("envcheck: ecc: ") + gate.SUMMARY_LENGTH


def test_an_error_is_undetermined_and_a_run_that_was_cut_short_is_no_verdict() -> None:
    undetermined = gate.of_report(report(row("matmul"), row("nvml", "error")), PYTHON, NOW)
    assert undetermined is not None
    assert (undetermined.status, undetermined.check) == ("error", "nvml")
    assert gate.of_report(report(row("matmul"), ended=""), PYTHON, NOW) is None


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
    made = gate.of_report(structs.replace(run, environment=environment), PYTHON, NOW)
    assert made is not None
    assert made.status == status
    assert made.decided_by == ("requirements: " + "x" * 90 if status == "error" else "require-gpu: torch sees no GPU")
    optional = QUESTION._replace(require_gpu=False)
    assert gate.why_unusable(made, optional, NOW)
    assert bool(gate.why_unusable(made, QUESTION, NOW)) == (status == "error")


def test_what_a_check_says_cannot_steer_a_terminal_or_close_a_quote() -> None:
    assert gate.one_line('\x1b[31mred\x1b[0m "a"\n\tb\u202ec') == "red 'a' bc"


def test_an_image_by_digest_is_the_same_whatever_the_engine_calls_it() -> None:
    digest = "registry.example/torch@sha256:" + "a" * 64
    assert gate.image_subject(digest, "sha256:1", None) == gate.image_subject(digest, None, None)
    assert gate.image_subject("torch:1", "sha256:1", None) != gate.image_subject("torch:1", "sha256:2", None)
    assert gate.image_subject(digest, None, None) != gate.image_subject(digest, None, "/opt/conda/bin/python")
