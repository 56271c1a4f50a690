"""Judge one combination: a build of torch, GPUs, a driver. Every reason says the numbers it was decided by."""

from __future__ import annotations

from typing import Final, NamedTuple

from envcheck.matrix.facts import Device, Facts, ptx_runs, sass_runs
from envcheck.matrix.model import Build, CudaMinor, Gpu, Matrix, TorchVariant
from envcheck.matrix.versions import branch, key

OK: Final = "ok"
MINOR: Final = "driver-ok-via-minor-compat"
FORWARD: Final = "forward-compat-required"
TOO_OLD: Final = "driver-too-old"
DROPPED: Final = "gpu-dropped-by-driver"
NO_CODE: Final = "arch-not-in-wheel"
TOO_NEW: Final = "gpu-too-new-for-cuda"
NO_PYTHON: Final = "python-unsupported"
NO_WHEEL: Final = "no-wheel"

# From the first thing that can be wrong to nothing wrong; a node of several GPUs gets the earliest of theirs.
ORDER: Final = (NO_WHEEL, NO_PYTHON, TOO_NEW, NO_CODE, DROPPED, TOO_OLD, FORWARD, MINOR, OK)
LEGAL: Final = frozenset({OK, MINOR, FORWARD})

# Stands for the last driver of a branch, which is at least any that a fact names.
_LAST: Final = "999.99"


class Answer(NamedTuple):
    """A verdict, the sentence that says why, and whether every fact under it is well sourced."""

    verdict: str
    reason: str
    verified: bool = True


def driver_verdict(matrix: Matrix, cuda: str, driver: str, datacenter: bool | None) -> Answer:  # noqa: FBT001 (a fact)
    """Return what `driver` means for binaries of a CUDA minor, GPUs aside. `datacenter` None: unknown, so no claim.

    Raises ConfigError for a CUDA minor that is not in the matrix.
    """
    return _cuda_floor(Facts(matrix), cuda, driver, Device("", "", None, datacenter, None, verified=True))


def runs_on(matrix: Matrix, sass: list[str], ptx: list[str], cc: str, cuda: str) -> bool:
    """Return whether code lists (as torch.cuda.get_arch_list() or "9.0") run on a device of capability `cc`."""
    facts = Facts(matrix)
    return any(sass_runs(facts, sm, cc, cuda) for sm in sass) or any(ptx_runs(code, cc) for code in ptx)


def judge_gpu(
    facts: Facts,
    variant: TorchVariant,
    build: Build,
    device: Device | None,
    driver: str | None,
    newest_branch: str | None = None,
) -> Answer:
    """Return the verdict for one GPU (None: any) under `driver` (None: any of `newest_branch` or older)."""
    if variant.cuda is None:
        return Answer(OK, "the cpu variant needs no GPU and no driver")
    if driver is not None or newest_branch is None:
        return _under(facts, variant.cuda, build, device, driver)
    free = _under(facts, variant.cuda, build, device, None)
    best = _under(facts, variant.cuda, build, device, f"{newest_branch}.{_LAST}")
    if best.verdict in (OK, free.verdict):
        return free
    reason = best.reason.replace(f"driver {newest_branch}.{_LAST}", f"the last R{newest_branch}")
    return best._replace(reason=f"branches after R{newest_branch} dropped a GPU of this node; {reason}")


def _under(facts: Facts, cuda: str, build: Build, device: Device | None, driver: str | None) -> Answer:
    answers = [Answer(OK, "", verified=True)]
    if device is not None:
        answers.append(_code(facts, cuda, build, device))
        if driver is not None:
            answers += [_dropped(facts, device, driver), _gpu_floor(facts, device, driver)]
    if driver is None:
        answers.append(_any_driver(facts, cuda))
    else:
        only_ptx = device is not None and not any(sass_runs(facts, sm, device.cc, cuda) for sm in build.sass or [])
        answers.append(_cuda_floor(facts, cuda, driver, device, only_ptx=only_ptx))
    return _first_wrong(answers)


def _first_wrong(answers: list[Answer]) -> Answer:
    for answer in answers:
        if answer.verdict not in LEGAL:
            return answer
    worst = min(answers, key=lambda answer: ORDER.index(answer.verdict))
    reasons = [answer.reason for answer in answers if answer.reason]
    return Answer(worst.verdict, "; ".join(reasons), all(answer.verified for answer in answers))


def _code(facts: Facts, cuda: str, build: Build, device: Device) -> Answer:
    if build.sass is None:
        reason = f"what the {build.arch} wheel was compiled for is not known: not counted on for {device.label}"
        return Answer(NO_CODE, reason, verified=False)
    verified = device.verified and build.sass_verified
    for sm in sorted(build.sass, key=key, reverse=True):
        if sass_runs(facts, sm, device.cc, cuda):
            return Answer(OK, f"its {_sm(sm)} code runs on {_named(device)}", verified)
    if any(ptx_runs(code, device.cc) for code in build.ptx):
        return Answer(OK, f"its PTX is compiled for {_named(device)} by the driver", verified)
    row = facts.capability(device.cc)
    has = " ".join(_sm(sm) for sm in sorted(build.sass, key=key))
    if row is None or key(cuda) < key(row.min_cuda):
        since = f"which needs CUDA {row.min_cuda}" if row else "which no CUDA of the matrix knows"
        reason = f"CUDA {cuda} predates {_named(device)}, {since}; the wheel has {has}"
        return Answer(TOO_NEW, reason, verified and row is not None and row.verified)
    reason = f"the wheel has {has} and no usable PTX: nothing that runs on {_named(device)}"
    return Answer(NO_CODE, reason, verified and facts.can_build(row, cuda))


def _dropped(facts: Facts, device: Device, driver: str) -> Answer:
    known = facts.branch(driver) is not None
    gone = facts.dropped_by(device.architecture)
    if gone is None or key(branch(driver)) < key(gone.branch):
        return Answer(OK, "", known and device.architecture is not None)
    what = f"{device.architecture} ({device.label})"
    reason = f"driver {driver} no longer drives {what}: branches from R{gone.branch} on dropped it"
    return Answer(DROPPED, reason, gone.verified)


def _gpu_floor(facts: Facts, device: Device, driver: str) -> Answer:
    floors, verified = _floors(facts, device)
    if not floors:
        return Answer(OK, "", device.gpu is None)
    listed = sorted(floors, key=key)
    needed = floors.get(branch(driver))
    if needed is None and key(branch(driver)) > key(listed[-1]):
        return Answer(OK, "")
    weak = facts.branch(driver) is None or (not verified and key(branch(driver)) <= key(listed[0]))
    if needed is not None and key(driver) >= key(needed):
        return Answer(OK, "", not weak)
    if needed is None and _before_listed(device, driver, listed[0]):
        return Answer(OK, "", verified=False)
    if needed is None:
        later = [floors[name] for name in listed if key(name) > key(branch(driver))]
        reason = f"no driver of branch R{branch(driver)} drives {device.label}: it needs {later[0]}"
        return Answer(TOO_OLD, reason, not weak)
    return Answer(
        TOO_OLD, f"driver {driver} < {needed}, the first of R{branch(driver)} that drives {device.label}", not weak
    )


def _before_listed(device: Device, driver: str, first: str) -> bool:
    """Return whether `driver` is said to drive the GPU though no list of its branch does: weak, but better than no."""
    lowest = device.gpu.min_driver if device.gpu is not None else None
    return lowest is not None and key(branch(driver)) < key(first) and key(driver) >= key(lowest)


def _floors(facts: Facts, device: Device) -> tuple[dict[str, str], bool]:
    """Return the first driver per branch, and whether that is well sourced."""
    if device.gpu is not None:
        if device.gpu.first_driver:
            return device.gpu.first_driver, device.gpu.driver_verified
        lowest = device.gpu.min_driver or _of_capability(facts, device.cc)
        return ({branch(lowest): lowest} if lowest else {}), device.gpu.driver_verified
    known = [low for gpu in facts.matrix.gpus if gpu.cc == device.cc and (low := _lowest(gpu))]
    least = min(known, key=key) if known else _of_capability(facts, device.cc)
    return ({branch(least): least} if least else {}), False


def _lowest(gpu: Gpu) -> str | None:
    return min(gpu.first_driver.values(), key=key) if gpu.first_driver else gpu.min_driver


def _of_capability(facts: Facts, cc: str) -> str | None:
    row = facts.capability(cc)
    minor = facts.minors.get(row.min_cuda) if row else None
    return minor.native_driver if minor else None


def _any_driver(facts: Facts, cuda: str) -> Answer:
    minor, family = facts.minor(cuda), facts.family(cuda)
    reason = f"CUDA {cuda} runs on drivers >= {family.floor}, without limits >= {minor.native_driver}"
    return Answer(OK, reason, minor.verified and family.verified)


def _cuda_floor(facts: Facts, cuda: str, driver: str, device: Device | None, *, only_ptx: bool = False) -> Answer:
    minor, family = facts.minor(cuda), facts.family(cuda)
    if key(driver) >= key(minor.native_driver):
        return Answer(OK, f"driver {driver} >= {minor.native_driver}, the driver of CUDA {cuda}", minor.verified)
    verified = minor.verified and family.verified
    if only_ptx:
        reason = f"only PTX fits, and driver {driver} < {minor.native_driver} cannot compile that of CUDA {cuda}"
        return Answer(TOO_OLD, reason, verified)
    if key(driver) >= key(family.floor):
        between = f"{family.floor} <= driver {driver} < {minor.native_driver}"
        return Answer(MINOR, f"{between}: CUDA {family.major}.x minor-version compatibility", verified)
    verdict, reason = _below_floor(minor, branch(driver), device.datacenter if device else None)
    below = f"driver {driver} < {family.floor}, the lowest for CUDA {family.major}.x"
    return Answer(verdict, f"{below}{reason}", verified)


def _below_floor(minor: CudaMinor, driver_branch: str, datacenter: bool | None) -> tuple[str, str]:  # noqa: FBT001 (a fact)
    package = f"cuda-compat-{minor.cuda.replace('.', '-')}"
    if driver_branch not in minor.forward_compat_branches:
        listed = ", ".join(f"R{name}" for name in sorted(minor.forward_compat_branches, key=key)) or "none"
        return TOO_OLD, f", and R{driver_branch} is no branch {package} works on ({listed})"
    if datacenter:
        return FORWARD, f": install {package} and put it first on the loader path"
    if datacenter is None:
        return TOO_OLD, f"; {package} works on R{driver_branch}, but only with a data-centre GPU"
    return TOO_OLD, f", and {package} is for data-centre GPUs only"


def _sm(cc: str) -> str:
    return f"sm_{cc.replace('.', '')}"


def _named(device: Device) -> str:
    return device.label if device.gpu is None else f"{device.label} (compute capability {device.cc})"
