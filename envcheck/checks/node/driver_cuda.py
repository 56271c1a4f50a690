"""The wheel brings its CUDA, the machine brings its driver, and nobody compared the two.

Seen in the wild: "the NVIDIA driver on your system is too old" minutes into a job; CUDA 13 wheels on R570 nodes; images
with cuda-compat on a GeForce, where cuInit ends in error 804. A driver may be older than the CUDA of a wheel within its
family (minor-version compatibility), and on data-centre GPUs older still with cuda-compat.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, undecided, warned, worst
from envcheck.checks.readings import cuda_init_errors, gpu_readings, matrix_facts
from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.matrix.resolver.verdict import FORWARD, MINOR, OK, TOO_OLD, Verdict, driver_verdict
from envcheck.node.snapshot import Gpu

CHECK = Check(
    promise="the driver runs the CUDA that torch carries",
    level="quick",
    gpus=1,
    signals=("driver.version",),
)

_MISFITS = (803, 804)
SOURCE = "matrix.yaml: cuda.minors, cuda.families (NVIDIA CUDA release notes and compatibility guide)"


def judge(view: View) -> Outcome:
    """Compare the driver with the floor of torch's CUDA; below it, and with cuda-compat, only what works counts."""
    cuda, driver = matrix_facts.wheel_cuda(view), str(view.snapshot.signal("driver.version").value)
    if cuda is None:
        return skipped(
            "this torch carries no CUDA (see gpu-visible)" if view.environment else "no torch to compare with",
            code="torch.no-cuda" if view.environment else "torch.none",
        )
    if matrix_facts.jetson(view):
        return skipped(
            f"Jetson: driver {driver} and CUDA come with JetPack, and its torch is built for them",
            code="driver-cuda.jetson",
        )
    unfit = _unfit(view, cuda, driver)
    try:
        answers = _answers(view, cuda, driver)
    except (ConfigError, ValueError) as error:
        text, fix = f"driver {driver}, CUDA {cuda}: {error}", "refresh matrix.yaml: `envcheck matrix check`"
        findings = [*unfit, undecided(text, fix=fix, code="driver-cuda.unknown")]
        return worst(findings, findings[0])
    if unfit:
        # Whether cuda-compat helps is unknown while another libcuda is in its place.
        answers = [device_answer for device_answer in answers if device_answer.answer.name == TOO_OLD]
    findings = [*unfit, *(_finding(view, cuda, driver, device_answer) for device_answer in answers)]
    return worst(findings, findings[0])


class _Comparison(NamedTuple):
    """What the driver means for one GPU; `gpu` is None where it means the same for all."""

    gpu: Gpu | None
    answer: Verdict


def _answers(view: View, cuda: str, driver: str) -> list[_Comparison]:
    """Return one answer for the node, or one for each GPU where a rule for data-centre GPUs tells them apart."""
    matrix = matrix_facts.matrix(view)
    each = [
        _Comparison(gpu, driver_verdict(matrix, cuda, driver, matrix_facts.is_datacenter(view, _name(gpu))))
        for gpu in view.snapshot.gpus
        if not gpu_readings.lost(gpu)
    ]
    if len({device_answer.answer.name for device_answer in each}) > 1:
        return each
    return [_Comparison(None, driver_verdict(matrix, cuda, driver, matrix_facts.datacenter(view)))]


def _name(gpu: Gpu) -> str:
    return str(gpu.signal("name").value)


def _finding(view: View, cuda: str, driver: str, judged: _Comparison) -> Outcome:
    answer = judged.answer
    if answer.name in (OK, MINOR):
        note = ": new PTX-only features need the newer driver" if answer.name == MINOR else ""
        return passed(f"{answer.reason}{note}", value=driver, limit=_limit(view, cuda), verdict=answer.name)
    outcome = _below(view, cuda, driver, answer, _seen(view, judged.gpu))
    if judged.gpu is None:
        return dataclasses.replace(outcome, culprit=f"driver {driver}" if outcome.code else "")
    label = gpu_readings.label(judged.gpu)
    return dataclasses.replace(
        outcome,
        summary=f"{label} ({_name(judged.gpu)}): {outcome.summary}",
        culprit=gpu_readings.culprit(view, label),
        details={**outcome.details, "gpus": [judged.gpu.uuid]},
    )


def _seen(view: View, gpu: Gpu | None) -> int | None:
    """Return how many of the GPUs in question torch sees; None where it was not asked."""
    count = view.environment.get("device_count")
    named = [str(device["uuid"]) for device in view.environment.get("devices") or [] if device.get("uuid")]
    if gpu is None or not count or not named:
        return count
    return int(gpu.uuid in named)


def _unfit(view: View, cuda: str, driver: str) -> list[Outcome]:
    """Return the failure of a libcuda that does not go with this driver or GPU, whatever the tables say."""
    code, cause = cuda_init_errors.code(view), cuda_init_errors.known(view)
    if cause is None or code not in _MISFITS:
        return []
    loaded = view.environment.get("libcuda")
    where = f" ({loaded})" if loaded else ""
    limit = Limit(0, "", "CUDA driver API: cuInit returns CUDA_SUCCESS", "equal")
    summary = f"cuInit: error {code}, {cause.name}: {cause.means}{where}; driver {driver}, torch's CUDA {cuda}"
    culprit = str(loaded or "libcuda")
    return [
        failed(
            summary,
            fix=cause.fix,
            value=code,
            limit=limit,
            libcuda=loaded,
            code="driver-cuda.libcuda",
            culprit=culprit,
        )
    ]


def _limit(view: View, cuda: str) -> Limit:
    facts = matrix_facts.matrix(view).cuda
    family = next(row for row in facts.families if row.major == cuda.partition(".")[0])
    return Limit(family.floor, "driver version", SOURCE)


def _below(view: View, cuda: str, driver: str, answer: Verdict, visible: int | None) -> Outcome:
    floor = _limit(view, cuda)
    compat = f"cuda-compat-{cuda.replace('.', '-')}"
    install = f"install {compat} and put its directory first in LD_LIBRARY_PATH, or a driver >= {floor.value}"
    upgrade = f"install a driver >= {floor.value}, or a wheel this driver runs: `envcheck resolve --driver {driver}`"
    judged: dict[str, Any] = {"value": driver, "limit": floor, "verdict": answer.name, "devices_torch_sees": visible}
    if answer.name == FORWARD and visible:
        loaded = view.environment.get("libcuda")
        how = f"with {loaded}" if loaded else f"so {compat} is loaded"
        why = f"{answer.reason}; torch sees {counted(visible, 'GPU')}, {how}"
        return passed(why, **judged)
    code = "driver-cuda.too-old"
    if answer.name == FORWARD and visible is None:
        return warned(f"runs with {compat} only: {answer.reason}", fix=install, code=code, **judged)
    if answer.name == FORWARD:
        return failed(f"{compat} is not loaded: {answer.reason}", fix=install, code=code, **judged)
    if visible:
        why = f"torch sees {counted(visible, 'GPU')} though by every table it should not: {answer.reason}"
        return warned(why, fix=upgrade, code=code, **judged)
    return failed(answer.reason, fix=upgrade, code=code, **judged)
