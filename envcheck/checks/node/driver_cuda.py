"""The wheel brings its CUDA, the machine brings its driver, and nobody compared the two.

Seen in the wild: "the NVIDIA driver on your system is too old" minutes into a job; CUDA 13 wheels on R570 nodes; images
with cuda-compat on a GeForce, where cuInit ends in error 804. A driver may be older than the CUDA of a wheel within its
family (minor-version compatibility), and on data-centre GPUs older still with cuda-compat.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, undecided, warned
from envcheck.checks.node import _cuinit, _facts
from envcheck.errors import ConfigError
from envcheck.matrix.verdict import FORWARD, MINOR, OK, Answer, driver_verdict

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
    cuda, driver = _facts.wheel_cuda(view), str(view.snapshot.signal("driver.version").value)
    if cuda is None:
        return skipped(
            "this torch carries no CUDA (see gpu-visible)" if view.environment else "no torch to compare with"
        )
    unfit = _unfit(view, cuda, driver)
    if unfit is not None:
        return unfit
    try:
        answer = driver_verdict(_facts.matrix(view), cuda, driver, _facts.datacenter(view))
    except (ConfigError, ValueError) as error:
        return undecided(f"driver {driver}, CUDA {cuda}: {error}", fix="refresh matrix.yaml: `envcheck matrix check`")
    if answer.verdict in (OK, MINOR):
        note = ": new PTX-only features need the newer driver" if answer.verdict == MINOR else ""
        return passed(f"{answer.reason}{note}", value=driver, limit=_limit(view, cuda), verdict=answer.verdict)
    return _below(view, cuda, driver, answer)


def _unfit(view: View, cuda: str, driver: str) -> Outcome | None:
    """Return the failure of a libcuda that does not go with this driver or GPU, whatever the tables say."""
    code, known = _cuinit.code(view), _cuinit.known(view)
    if known is None or code not in _MISFITS:
        return None
    loaded = view.environment.get("libcuda")
    where = f" ({loaded})" if loaded else ""
    limit = Limit(0, "", "CUDA driver API: cuInit returns CUDA_SUCCESS", "equal")
    told = f"cuInit: error {code}, {known.name}: {known.means}{where}; driver {driver}, torch's CUDA {cuda}"
    return failed(told, fix=known.fix, value=code, limit=limit, libcuda=loaded)


def _limit(view: View, cuda: str) -> Limit:
    facts = _facts.matrix(view).cuda
    family = next(row for row in facts.families if row.major == cuda.partition(".")[0])
    return Limit(family.floor, "driver version", SOURCE)


def _below(view: View, cuda: str, driver: str, answer: Answer) -> Outcome:
    seen = view.environment.get("device_count")
    floor = _limit(view, cuda)
    compat = f"cuda-compat-{cuda.replace('.', '-')}"
    install = f"install {compat} and put its directory first in LD_LIBRARY_PATH, or a driver >= {floor.value}"
    upgrade = f"install a driver >= {floor.value}, or a wheel this driver runs: `envcheck resolve --driver {driver}`"
    judged: dict[str, Any] = {"verdict": answer.verdict, "devices_torch_sees": seen}
    if answer.verdict == FORWARD and seen:
        loaded = view.environment.get("libcuda")
        how = f"with {loaded}" if loaded else f"so {compat} is loaded"
        why = f"{answer.reason}; torch sees {seen} GPU(s), {how}"
        return passed(why, value=driver, limit=floor, **judged)
    if answer.verdict == FORWARD and seen is None:
        return warned(f"runs with {compat} only: {answer.reason}", fix=install, value=driver, limit=floor, **judged)
    if answer.verdict == FORWARD:
        return failed(f"{compat} is not loaded: {answer.reason}", fix=install, value=driver, limit=floor, **judged)
    if seen:
        why = f"torch sees {seen} GPU(s) though by every table it should not: {answer.reason}"
        return warned(why, fix=upgrade, value=driver, limit=floor, **judged)
    return failed(answer.reason, fix=upgrade, value=driver, limit=floor, **judged)
