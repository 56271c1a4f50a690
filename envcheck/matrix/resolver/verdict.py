"""Judge one combination of a torch build, GPUs and a driver. Every reason gives the numbers that decided it."""

from typing import Final, NamedTuple

from envcheck.matrix.facts.lookup import Device, Facts, ptx_runs, sass_runs
from envcheck.matrix.facts.model import Build, CudaFamily, CudaMinor, Matrix, TorchVariant, branch, key

OK: Final = "ok"
MINOR: Final = "driver-ok-via-minor-compat"
FORWARD: Final = "forward-compat-required"
TOO_OLD: Final = "driver-too-old"
DROPPED: Final = "gpu-dropped-by-driver"
NO_CODE: Final = "arch-not-in-wheel"
TOO_NEW: Final = "gpu-too-new-for-cuda"
NO_PYTHON: Final = "python-unsupported"
NO_WHEEL: Final = "no-wheel"

# The worst verdict first; a node with several GPUs gets the worst of theirs.
ORDER: Final = (NO_WHEEL, NO_PYTHON, TOO_NEW, NO_CODE, DROPPED, TOO_OLD, FORWARD, MINOR, OK)
LEGAL: Final = frozenset({OK, MINOR, FORWARD})

# The minor version of the last driver of a branch: at least that of any driver in the matrix.
_LAST: Final = "999.99"
# The lowest compute capability in the support matrices of NVIDIA's cuDNN, by its first release without older ones.
_CUDNN_NEEDS: Final = (("9.11", "7.5"), ("9.0", "5.0"))


Weak = tuple[str, ...]


class Verdict(NamedTuple):
    """The name of a verdict, the sentence that says why, and the names of the weakly sourced facts that it uses."""

    name: str
    reason: str
    weak: Weak = ()

    @property
    def verified(self) -> bool:
        """Whether every fact under the verdict is well sourced."""
        return not self.weak


def unless(verified: bool, name: str) -> Weak:  # noqa: FBT001 (a fact)
    """Return the name of a fact as weak, unless it is verified."""
    return () if verified else (name,)


def union(*weak: Weak) -> Weak:
    """Return all names once, in the order in which they first appear."""
    return tuple(dict.fromkeys(name for names in weak for name in names))


def driver_verdict(matrix: Matrix, cuda: str, driver: str, datacenter: bool | None) -> Verdict:  # noqa: FBT001 (a fact)
    """Return the verdict on `driver` for a CUDA minor, whatever the GPU. Raises ConfigError for an unknown minor."""
    return _cuda_floor(Facts(matrix), cuda, driver, Device("", "", None, datacenter, None, verified=True))


def runs_on(matrix: Matrix, sass: list[str], ptx: list[str], cc: str, cuda: str) -> bool:
    """Return whether a wheel with this code (as torch.cuda.get_arch_list() or "9.0") runs on a device of `cc`."""
    facts = Facts(matrix)
    return any(sass_runs(facts, sm, cc, cuda) for sm in sass) or any(ptx_runs(code, cc) for code in ptx)


def judge_gpu(
    facts: Facts,
    variant: TorchVariant,
    build: Build,
    device: Device | None,
    driver: str | None,
    newest_branch: str | None = None,
    dropped: str = "",
) -> Verdict:
    """Return the verdict for one GPU (None: any) under `driver` (None: any of `newest_branch`, or older).

    Later branches no longer drive the GPUs `dropped`.
    """
    if variant.cuda is None:
        return Verdict(OK, "the variant cpu (wheels without CUDA) needs no GPU and no driver")
    if driver is not None or newest_branch is None:
        return _under(facts, variant, build, device, driver)
    free = _under(facts, variant, build, device, None)
    best = _under(facts, variant, build, device, f"{newest_branch}.{_LAST}")
    if best.name in (OK, free.name):
        return free
    reason = best.reason.replace(f"driver {newest_branch}.{_LAST}", f"the last R{newest_branch}")
    return best._replace(reason=f"branches after R{newest_branch} dropped {dropped or 'a GPU'}; {reason}")


def _under(facts: Facts, variant: TorchVariant, build: Build, device: Device | None, driver: str | None) -> Verdict:
    verdicts, cuda = [Verdict(OK, "")], variant.cuda or ""
    if device is not None:
        verdicts += [_code(facts, cuda, build, device), _cudnn(variant, device)]
        if driver is not None:
            verdicts += [_dropped(facts, device, driver), _gpu_floor(facts, device, driver)]
    if driver is None:
        verdicts.append(_any_driver(facts, cuda))
    else:
        only_ptx = device is not None and not any(sass_runs(facts, sm, device.cc, cuda) for sm in build.sass or [])
        verdicts.append(_cuda_floor(facts, cuda, driver, device, only_ptx=only_ptx))
    return _first_wrong(verdicts)


def _first_wrong(verdicts: list[Verdict]) -> Verdict:
    for verdict in verdicts:
        if verdict.name not in LEGAL:
            return verdict
    worst = min(verdicts, key=lambda verdict: ORDER.index(verdict.name))
    reasons = [verdict.reason for verdict in verdicts if verdict.reason]
    return Verdict(worst.name, "; ".join(reasons), union(*(verdict.weak for verdict in verdicts)))


def _code(facts: Facts, cuda: str, build: Build, device: Device) -> Verdict:
    if build.sass is None:
        reason = f"what the {build.arch} wheel was compiled for is not known, so it is not used for {device.label}"
        return Verdict(NO_CODE, reason, (f"the architectures in the {build.arch} wheel",))
    weak = (
        *unless(device.verified, f"the compute capability of {device.label}"),
        *unless(build.sass_verified, f"the architectures in the {build.arch} wheel"),
    )
    for sm in sorted(build.sass, key=key, reverse=True):
        if sass_runs(facts, sm, device.cc, cuda):
            return Verdict(OK, f"its {_sm(sm)} code runs on {_named(device)}", weak)
    if any(ptx_runs(code, device.cc) for code in build.ptx):
        return Verdict(OK, f"its PTX is compiled for {_named(device)} by the driver", weak)
    row = facts.capability(device.cc)
    has = " ".join(_sm(sm) for sm in sorted(build.sass, key=key))
    if row is None or key(cuda) < key(row.min_cuda):
        since = f"which needs CUDA {row.min_cuda}" if row else "which no CUDA of the matrix supports"
        reason = f"CUDA {cuda} predates {_named(device)}, {since}; the wheel has {has}"
        verified = row is not None and row.verified
        return Verdict(TOO_NEW, reason, (*weak, *unless(verified, f"the first CUDA for {device.label}")))
    reason = f"the wheel has {has} and no usable PTX: nothing in it runs on {_named(device)}"
    return Verdict(NO_CODE, reason, (*weak, *unless(facts.can_build(row, cuda), f"the first CUDA for {device.label}")))


def _cudnn(variant: TorchVariant, device: Device) -> Verdict:
    needs = (least for first, least in _CUDNN_NEEDS if key(variant.cudnn or "0") >= key(first))
    if key(device.cc) >= key(next(needs, "0")):
        return Verdict(OK, "")
    return Verdict(NO_CODE, f"its cuDNN {variant.cudnn} has no code for {_named(device)}: convolutions fail there")


def _dropped(facts: Facts, device: Device, driver: str) -> Verdict:
    dropping = facts.dropped_by(device.architecture)
    if dropping is None or key(branch(driver)) < key(dropping.branch):
        verified = facts.branch(driver) is not None and device.architecture is not None
        return Verdict(OK, "", unless(verified, f"which GPUs driver branch R{branch(driver)} drives"))
    gpu = f"{device.architecture} ({device.label})"
    reason = f"driver {driver} no longer drives {gpu}: branches from R{dropping.branch} on dropped it"
    return Verdict(DROPPED, reason, unless(dropping.verified, f"which GPUs driver branch R{dropping.branch} drives"))


def _gpu_floor(facts: Facts, device: Device, driver: str) -> Verdict:
    floors, verified = _floors(facts, device)
    floor = (f"the first driver for {device.label}",)
    if not floors:
        return Verdict(OK, "", () if device.gpu is None else floor)
    listed = sorted(floors, key=key)
    needed = floors.get(branch(driver))
    if needed is None and key(branch(driver)) > key(listed[-1]):
        return Verdict(OK, "")
    unsure = facts.branch(driver) is None or (not verified and key(branch(driver)) <= key(listed[0]))
    weak = floor if unsure else ()
    if needed is not None and key(driver) >= key(needed):
        return Verdict(OK, "", weak)
    # Older than every listed branch, but not than the GPU's `min_driver`.
    lowest = device.gpu.min_driver if device.gpu is not None and key(branch(driver)) < key(listed[0]) else None
    if needed is None and lowest is not None and key(driver) >= key(lowest):
        return Verdict(OK, "", floor)
    if needed is None:
        later = [floors[name] for name in listed if key(name) > key(branch(driver))]
        reason = f"no driver of branch R{branch(driver)} drives {device.label}: it needs {later[0]}"
    else:
        reason = f"driver {driver} < {needed}, the first of R{branch(driver)} that drives {device.label}"
    # No branch before that of the first CUDA for an architecture drives it; within it, vendors ship earlier drivers:
    # DGX OS has 580.95.05 on GB10, which the open modules name from 580.119.02 on.
    if not verified and key(branch(driver)) >= key(branch(_of_capability(facts, device.cc) or "0")):
        return Verdict(OK, f"{reason} (inferred, so this is no refusal)", floor)
    return Verdict(TOO_OLD, reason, weak)


def _floors(facts: Facts, device: Device) -> tuple[dict[str, str], bool]:
    """Return the first driver per branch, and whether that is well sourced."""
    if device.gpu is not None:
        if device.gpu.first_driver:
            return device.gpu.first_driver, device.gpu.driver_verified
        lowest = device.gpu.min_driver or _of_capability(facts, device.cc)
        return ({branch(lowest): lowest} if lowest else {}), device.gpu.driver_verified
    alike = [gpu for gpu in facts.matrix.gpus if gpu.cc == device.cc]
    drivers = filter(None, (min(gpu.first_driver.values(), key=key, default=gpu.min_driver) for gpu in alike))
    least = min(drivers, key=key, default=None) or _of_capability(facts, device.cc)
    return ({branch(least): least} if least else {}), False


def _of_capability(facts: Facts, cc: str) -> str | None:
    row = facts.capability(cc)
    minor = facts.minors.get(row.min_cuda) if row else None
    return minor.native_driver if minor else None


def _any_driver(facts: Facts, cuda: str) -> Verdict:
    minor, family = facts.minor(cuda), facts.family(cuda)
    reason = f"CUDA {cuda} runs on drivers >= {family.floor}, with all features on drivers >= {minor.native_driver}"
    return Verdict(OK, reason, _weak_cuda(minor, family))


def _weak_cuda(minor: CudaMinor, family: CudaFamily | None = None) -> Weak:
    return (
        *unless(minor.verified, f"the native driver of CUDA {minor.cuda}"),
        *unless(family is None or family.verified, f"the lowest driver for CUDA {family.major if family else ''}.x"),
    )


def _cuda_floor(facts: Facts, cuda: str, driver: str, device: Device | None, *, only_ptx: bool = False) -> Verdict:
    minor, family = facts.minor(cuda), facts.family(cuda)
    if key(driver) >= key(minor.native_driver):
        return Verdict(OK, f"driver {driver} >= {minor.native_driver}, the driver of CUDA {cuda}", _weak_cuda(minor))
    weak = _weak_cuda(minor, family)
    if only_ptx:
        reason = f"only PTX fits, and driver {driver} < {minor.native_driver} cannot compile that of CUDA {cuda}"
        return Verdict(TOO_OLD, reason, weak)
    if key(driver) >= key(family.floor):
        between = f"{family.floor} <= driver {driver} < {minor.native_driver}"
        return Verdict(MINOR, f"{between}: CUDA {family.major}.x minor-version compatibility", weak)
    name, reason = _below_floor(minor, branch(driver), device.datacenter if device else None)
    below = f"driver {driver} < {family.floor}, the lowest for CUDA {family.major}.x"
    return Verdict(name, f"{below}{reason}", weak)


def _below_floor(minor: CudaMinor, driver_branch: str, datacenter: bool | None) -> tuple[str, str]:  # noqa: FBT001 (a fact)
    package = f"cuda-compat-{minor.cuda.replace('.', '-')}"
    if driver_branch not in minor.forward_compat_branches:
        listed = ", ".join(f"R{name}" for name in sorted(minor.forward_compat_branches, key=key)) or "none"
        return TOO_OLD, f", and R{driver_branch} is not a branch that {package} works on ({listed})"
    if datacenter:
        return FORWARD, f": install {package} and put it first on the loader path"
    if datacenter is None:
        return TOO_OLD, f"; {package} works on R{driver_branch}, but only with a data-centre GPU"
    return TOO_OLD, f", and {package} is for data-centre GPUs only"


def _sm(cc: str) -> str:
    return f"sm_{cc.replace('.', '')}"


def _named(device: Device) -> str:
    return device.label if device.gpu is None else f"{device.label} (compute capability {device.cc})"
