"""The wheel brings its CUDA, the machine brings its driver, and nobody compared the two.

A driver may be older than the CUDA of a wheel within its family (minor-version compatibility), and on data-centre GPUs
older still with cuda-compat, which ends in error 804 on a GeForce.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

from envcheck.checks import Check, Limit, Outcome, View, failed, matrix_facts, passed, skipped, undecided, warned, worst
from envcheck.checks.gpu_readings import culprit, label, lost
from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.matrix.facts.lookup import driver_floor
from envcheck.matrix.resolver.verdict import FORWARD, MINOR, OK, TOO_OLD, Verdict, driver_verdict
from envcheck.node.snapshot import Gpu

CHECK = Check("the driver runs the CUDA that torch carries", "quick", gpus=1, signals=("driver.version",))

_MISFITS = (803, 804)
_STARTED = Limit(0, "", "CUDA driver API: cuInit returns CUDA_SUCCESS", "equal")
SOURCE = "matrix.yaml: cuda.minors, cuda.families (NVIDIA CUDA release notes and compatibility guide)"


def judge(view: View) -> Outcome:
    """Compare the driver with the floor of torch's CUDA; below it, and with cuda-compat, only what works counts."""
    cuda, driver = matrix_facts.wheel_cuda(view), str(view.snapshot.signal("driver.version").value)
    if cuda is None and view.environment:
        return skipped("this torch carries no CUDA (see gpu-visible)", code="torch.no-cuda")
    if cuda is None:
        return skipped("no torch to compare with", code="torch.none")
    if matrix_facts.jetson(view):
        text = f"Jetson: driver {driver} and CUDA come with JetPack, and its torch is built for them"
        return skipped(text, code="driver-cuda.jetson")
    unfit = _unfit(view, cuda, driver)
    try:
        answers = _answers(view, cuda, driver)
    except (ConfigError, ValueError) as error:
        text, fix = f"driver {driver}, CUDA {cuda}: {error}", "refresh matrix.yaml: `envcheck matrix check`"
        findings = [*unfit, undecided(text, fix=fix, code="driver-cuda.unknown")]
        return worst(findings, findings[0])
    if unfit:
        # Whether cuda-compat helps is unknown while another libcuda is in its place.
        answers = [(gpu, answer) for gpu, answer in answers if answer.name == TOO_OLD]
    findings = [*unfit, *(_finding(view, cuda, driver, gpu, answer) for gpu, answer in answers)]
    return worst(findings, findings[0])


def _answers(view: View, cuda: str, driver: str) -> list[tuple[Gpu | None, Verdict]]:
    """Return one answer for the node (None), or one for each GPU where a rule for data-centre GPUs tells them apart."""
    matrix = matrix_facts.matrix(view)
    each: list[tuple[Gpu | None, Verdict]] = [
        (gpu, driver_verdict(matrix, cuda, driver, matrix_facts.is_datacenter(view, str(gpu.signal("name").value))))
        for gpu in view.snapshot.gpus
        if not lost(gpu)
    ]
    if len({answer.name for _, answer in each}) > 1:
        return each
    return [(None, driver_verdict(matrix, cuda, driver, matrix_facts.datacenter(view)))]


def _finding(view: View, cuda: str, driver: str, gpu: Gpu | None, answer: Verdict) -> Outcome:
    if answer.name in (OK, MINOR):
        note = ": new PTX-only features need the newer driver" if answer.name == MINOR else ""
        return passed(f"{answer.reason}{note}", value=driver, limit=_limit(view, cuda), verdict=answer.name)
    outcome = _below(view, cuda, driver, answer, _seen(view, gpu))
    if gpu is None:
        return dataclasses.replace(outcome, culprit=f"driver {driver}" if outcome.code else "")
    return dataclasses.replace(
        outcome,
        summary=f"{label(gpu)} ({gpu.signal('name').value}): {outcome.summary}",
        culprit=culprit(gpu),
        details={**outcome.details, "gpus": [gpu.uuid]},
    )


def _seen(view: View, gpu: Gpu | None) -> int | None:
    count = view.environment.get("device_count")
    named = [str(device["uuid"]) for device in view.environment.get("devices") or [] if device.get("uuid")]
    return count if gpu is None or not count or not named else int(gpu.uuid in named)


def _unfit(view: View, cuda: str, driver: str) -> list[Outcome]:
    """Return the failure of a libcuda that does not go with this driver or GPU, whatever the tables say."""
    code, cause, loaded = init_code(view), init_error(view), view.environment.get("libcuda")
    if cause is None or code not in _MISFITS:
        return []
    where = f" ({loaded})" if loaded else ""
    summary = f"cuInit: error {code}, {cause.name}: {cause.means}{where}; driver {driver}, torch's CUDA {cuda}"
    about: dict[str, Any] = {"value": code, "limit": _STARTED, "libcuda": loaded, "culprit": str(loaded or "libcuda")}
    return [failed(summary, fix=cause.fix, code="driver-cuda.libcuda", **about)]


def _limit(view: View, cuda: str) -> Limit:
    return Limit(driver_floor(matrix_facts.matrix(view), cuda), "driver version", SOURCE)


def _below(view: View, cuda: str, driver: str, answer: Verdict, visible: int | None) -> Outcome:
    floor, compat = _limit(view, cuda), f"cuda-compat-{cuda.replace('.', '-')}"
    install = f"install {compat} and put its directory first in LD_LIBRARY_PATH, or a driver >= {floor.value}"
    upgrade = f"install a driver >= {floor.value}, or a wheel this driver runs: `envcheck resolve --driver {driver}`"
    judged: dict[str, Any] = {"value": driver, "limit": floor, "verdict": answer.name, "devices_torch_sees": visible}
    code, sees = "driver-cuda.too-old", f"torch sees {counted(visible or 0, 'GPU')}"
    if answer.name == FORWARD and visible:
        loaded = view.environment.get("libcuda")
        how = f"with {loaded}" if loaded else f"so {compat} is loaded"
        return passed(f"{answer.reason}; {sees}, {how}", **judged)
    if answer.name == FORWARD and visible is None:
        return warned(f"runs with {compat} only: {answer.reason}", fix=install, code=code, **judged)
    if answer.name == FORWARD:
        return failed(f"{compat} is not loaded: {answer.reason}", fix=install, code=code, **judged)
    if visible:
        return warned(f"{sees} though by every table it should not: {answer.reason}", fix=upgrade, code=code, **judged)
    return failed(answer.reason, fix=upgrade, code=code, **judged)


class CudaInitError(NamedTuple):
    """A return code of cuInit by its name in cuda.h (CUresult), what it means on a node, and the remedy."""

    name: str
    means: str
    fix: str


_TABLE = json.loads(Path(__file__).with_name("cuinit.json").read_text(encoding="utf-8"))
CODES = {int(code): CudaInitError(**row) for code, row in _TABLE["codes"].items()}


def init_code(view: View) -> int | None:
    """Return cuInit's code as the worker asked for it, else the one that torch's error text is of; None for neither."""
    text = str(view.environment.get("device_error") or "")
    # What cudaGetErrorString says, and torch with it; the runtime numbers 802 to 804 as the driver does.
    said = (number for words, number in _TABLE["texts"].items() if words in text)
    return view.environment.get("cuinit") or next(said, None)


def init_error(view: View) -> CudaInitError | None:
    """Return what is known of the code that cuInit ended with; None where it did not fail, or nobody knows it."""
    return CODES.get(init_code(view) or 0)
