"""`dcgmi diag` by a script in its place; its JSON is made after public descriptions of what DCGM 3 and 4 write.

DCGM 3: NVIDIA/DCGM#139 (`gpu_id`), nvvs' own comment in NvvsCommon.h (`gpu_ids`), its test "Deserialize real output"
(nulls in lists, text before the JSON). DCGM 4: its testing of dcgmi (`entity_group`, `entity_id`, `test_summary`),
facebookresearch/gcm#38; severities and error numbers: docs.nvidia.com, DCGM diagnostic errors.
"""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Rank
from envcheck.checks.env import dcgm_diag
from envcheck.node import subprocesses
from tests.builders import gpu_view, put_gpu

RANK = Rank(0, 1, 0, "cuda:0", "nccl", "/nonexistent")


def four(*tests: dict[str, Any], **root: Any) -> dict[str, Any]:
    """Return a document of DCGM 4, with the serial numbers that it tells too."""
    categories = [{"category": "Hardware", "tests": list(tests)}]
    entities = [{"entity_id": 0, "serial_num": "1650000000001"}]
    return {"DCGM Diagnostic": {"test_categories": categories, **root}, "entity_groups": [{"entities": entities}]}


def three(*tests: dict[str, Any] | None) -> dict[str, Any]:
    """Return a document of DCGM 3."""
    categories = [{"category": "Deployment", "tests": list(tests)}, None]
    return {"DCGM GPU Diagnostic": {"test_categories": categories, "GPU Device Serials": {"0": "1650000000001"}}}


def test(name: str, summary: str, *statuses: str, **last: Any) -> dict[str, Any]:
    """Return a test of DCGM 4 on so many GPUs; the last of them says more."""
    rows: list[dict[str, Any]] = [
        {"entity_group": "GPU", "entity_group_id": 1, "entity_id": n, "status": s} for n, s in enumerate(statuses)
    ]
    return {"name": name, "results": [*rows[:-1], {**rows[-1], **last}], "test_summary": {"status": summary}}


test.__test__ = False  # type: ignore[attr-defined]


def warning(text: str, code: int, severity: int) -> list[dict[str, Any]]:
    return [{"warning": text, "error_id": code, "error_category": 10, "error_severity": severity}]


SOUND = four(test("software", "Pass", "Pass", "Pass"), test("memory", "Pass", "Pass", "Pass"))
REMAP = warning("A GPU has a row that could not be remapped. Run a field diagnostic on the GPU.", 43, 2)
LOADED = warning(  # NVIDIA/DCGM#272
    "The memory copy utilization for the GPU: 2 is greater than 10%. This may affect the results of the nvbandwidth"
    " test.",
    101,
    3,
)
HOT = warning("GPU 1 Thermal violations totaling 0.0 seconds started at 30.0 seconds into the test", 54, 2)  # #242
PERSISTENCE = warning("Persistence mode for GPU 1 is disabled.", 29, 5)
OLD = {
    "name": "PCIe",
    "results": [{"gpu_id": "0", "status": "Pass"}, {"gpu_id": "1", "status": "Fail", "warnings": "x"}],
}
LISTED = {"name": "NVML Library", "results": [{"gpu_ids": "0,1", "status": "PASS"}]}


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a script on PATH that prints what it is given, as dcgmi would."""

    def put(output: str, code: int = 0, errors: str = "", more: str = "") -> None:
        (tmp_path / "output").write_text(output)
        (tmp_path / "errors").write_text(errors)
        lines = ["#!/bin/sh", 'test "$1 $2 $4" = "diag -r -j" || exit 99', more]
        lines += [f'cat "{tmp_path}/output"', f'cat "{tmp_path}/errors" >&2', f"exit {code}"]
        (tmp_path / "dcgmi").write_text("\n".join(lines) + "\n")
        (tmp_path / "dcgmi").chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("ENVCHECK_DCGM_DIAG", raising=False)
    return put


@pytest.mark.parametrize(
    ("document", "code", "status", "words"),
    [
        (SOUND, 0, PASS, ["level 2: memory, software"]),
        (three(LISTED, None), 0, PASS, ["NVML Library"]),
        (four(test("memory", "Fail", "Pass", "Fail")), 226, FAIL, ["GPU 1, memory: fail"]),
        (four(test("memory", "Fail", "Pass", "Pass")), 226, FAIL, ["memory: fail"]),
        (three(OLD, LISTED), 1, FAIL, ["GPU 1, PCIe: x"]),
        (four(test("nvbandwidth", "Fail", "Pass", "Fail", warnings=LOADED)), 226, WARN, ["copy utilization"]),
        (four(test("diagnostic", "Fail", "Pass", "Fail", warnings=HOT)), 226, WARN, ["totaling 0.0"]),
        (four(test("diagnostic", "Fail", "Fail", warnings=[*HOT, *REMAP])), 226, FAIL, ["remapped"]),
        # One text of several warnings.
        (four(test("x", "Fail", "Fail", warnings=f"{HOT[0]['warning']}. DBE detected")), 226, FAIL, ["DBE"]),
        # A mild warning beside one that gives no severity.
        (four(test("x", "Fail", "Pass", "Fail", warnings=[*PERSISTENCE, {"warning": "odd"}])), 226, FAIL, ["odd"]),
        (four(test("pcie", "Warn", "Pass", "Warn", warnings=["slow"])), 0, WARN, ["GPU 1, pcie: slow"]),
        (four(test("memory", "Pass", "Pass", "Pass", warnings=REMAP)), 0, WARN, ["remapped"]),
        *(
            (four(test("memory", "Pass", "Pass", "Pass", warnings=warning("odd", 7, severity))), 0, status, words)
            for severity, status, words in (
                (0, PASS, ["level 2"]),  # DCGM_ERROR_NONE
                (1, PASS, ["level 2"]),  # MONITOR
                *((severity, WARN, ["GPU 1, memory: odd (DCGM error 7)"]) for severity in (2, 3, 4, 6)),
            )
        ),
        (four(test("software", "Pass", "Pass"), test("pcie", "Skip", "Skip")), 0, PASS, ["not run here: pcie"]),
        (four(test("pcie", "Skip", "Skip")), 0, SKIP, ["skipped every test"]),
        (SOUND, 1, ERROR, ["code 1, and no test says why"]),
        (four(test("memory", "Pass", "Pass", "Great")), 0, ERROR, ["unknown status 'Great'"]),
        (four(test("memory", "Pass", "Pass"), runtime_error="nvvs was killed"), 1, ERROR, ["nvvs was killed"]),
        (four(), 0, ERROR, ["no test in it"]),
        (four({"name": "memory", "results": []}), 0, ERROR, ["memory has no result"]),
        (four({"name": "memory", "results": {}}), 0, ERROR, ["results is no list"]),
        ({"DCGM Diagnostic": {"tests": []}}, 0, ERROR, ["test_categories is no list"]),
        ({"DCGM Diagnostic": []}, 0, ERROR, ["is in it"]),
    ],
)
def test_each_document_comes_to_its_outcome(
    dcgmi: Callable[..., None], document: Any, code: int, status: str, words: list[str]
) -> None:
    dcgmi("WARNING: this should not happen\n" + json.dumps(document, indent=1) + "\n", code)
    measured = dcgm_diag.measure(RANK)
    outcome = dcgm_diag.judge(gpu_view("h100x8"), [measured])
    assert outcome.status == status, outcome
    sliced = put_gpu(gpu_view("h100x8"), [0], mig_mode="on")
    assert dcgm_diag.judge(sliced, [measured]).status == (SKIP if status == ERROR else status)
    assert [word for word in words if word not in outcome.summary] == []
    assert bool(outcome.remedy) == (status not in (PASS, SKIP))
    assert "1650000000001" not in json.dumps(measured["document"])


def test_the_culprit_is_named_by_uuid_and_the_remedy_is_the_gravest(dcgmi: Callable[..., None]) -> None:
    broken = four(
        test("software", "Fail", "Pass", "Fail", warnings=PERSISTENCE), test("memory", "Fail", "Fail", warnings=REMAP)
    )
    dcgmi(json.dumps(broken), 226)
    view = gpu_view("h100x8")
    outcome = dcgm_diag.judge(view, [dcgm_diag.measure(RANK)])
    assert outcome.status == FAIL
    assert outcome.summary.startswith("GPU 0, memory")
    assert outcome.details["gpus"] == [view.snapshot.gpus[0].uuid]
    assert outcome.remedy.startswith("isolate")


@pytest.mark.parametrize(
    ("output", "code", "errors", "status", "word"),
    [
        ("", 255, "Error: unable to establish a connection to the specified host: localhost", SKIP, "nvidia-dcgm"),
        ("Error: unable to establish a connection to the specified host: localhost", 1, "", SKIP, "nvidia-dcgm"),
        ("", 1, "Error: group is empty", ERROR, "Error: group is empty"),
        ("{ not json }", 0, "", ERROR, "wrote no JSON"),
        ("[1]", 0, "", ERROR, "wrote no JSON"),
        ("", 0, "", ERROR, "nothing"),
    ],
)
def test_no_document_is_never_a_pass(
    dcgmi: Callable[..., None], output: str, code: int, errors: str, status: str, word: str
) -> None:
    dcgmi(output, code, errors)
    outcome = dcgm_diag.judge(gpu_view("h100x8"), [dcgm_diag.measure(RANK)])
    assert outcome.status == status, outcome
    assert word in outcome.summary


def test_another_level_is_asked_for_by_the_environment(
    dcgmi: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVCHECK_DCGM_DIAG", "3")
    dcgmi(json.dumps(SOUND), more='test "$3" = 3 || exit 98')
    assert (dcgm_diag.measure(RANK)["level"], dcgm_diag.measure(RANK)["code"]) == ("3", 0)
    monkeypatch.setenv("ENVCHECK_DCGM_DIAG", "4")
    with pytest.raises(ValueError, match="not one of 1, 2, 3"):
        dcgm_diag.measure(RANK)


def test_one_that_hangs_is_interrupted_and_undecided(
    dcgmi: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcgm_diag, "SECONDS", {"2": 0.3})
    dcgmi(json.dumps(SOUND), more="exec sleep 60")
    began = time.monotonic()
    outcome = dcgm_diag.judge(gpu_view("h100x8"), [dcgm_diag.measure(RANK)])
    assert time.monotonic() - began < 30
    assert outcome.status == ERROR
    assert "did not end in time" in outcome.summary


def test_what_a_program_writes_last_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends just when the time of one look at its pipes is over."""
    communicate = subprocess.Popen.communicate

    def late(process: subprocess.Popen[bytes], timeout: float) -> None:
        monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
        process.wait()
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", late)
    assert subprocesses.run(["echo", "last"], 9.0).output == "last\n"


def test_a_program_that_ignores_the_interrupt_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "deaf"
    script.write_text("#!/bin/sh\ntrap '' INT\nexec sleep 60\n")
    script.chmod(0o755)
    began = time.monotonic()
    assert subprocesses.run([str(script)], 0.2, grace=0.2).code is None
    assert time.monotonic() - began < 30


def test_not_installed_is_a_skip_and_nothing_measured_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert dcgm_diag.judge(gpu_view("h100x8"), [dcgm_diag.measure(RANK)]).status == SKIP
    nothing: list[list[dict[str, Any]]] = [[], [{}], [{"rank": 0, "installed": True}]]
    assert [dcgm_diag.judge(gpu_view("h100x8"), ranks).status for ranks in nothing] == [ERROR] * 3
