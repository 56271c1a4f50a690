"""The wheel has no code for the GPU: "no kernel image is available for execution on the device", at the first kernel.

torch.cuda.is_available() is true all the same. SASS runs within its major, upwards; PTX is compiled by the driver.
"""

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, undecided, worst
from envcheck.checks import matrix_facts as facts
from envcheck.checks.gpu_readings import about as of_gpu
from envcheck.checks.gpu_readings import label, lost
from envcheck.matrix.facts.model import key
from envcheck.matrix.resolver.verdict import MINOR, OK, driver_verdict, runs_on
from envcheck.node.snapshot import Gpu

CHECK = Check("torch carries code for every GPU of this node", "quick", gpus=1)

SOURCE = (
    "CUDA C++ Programming Guide: binary compatibility within a major, PTX compatibility upwards; matrix.yaml: cuda.code"
)


def judge(view: View) -> Outcome:
    """Fail naming each GPU that nothing in the wheel runs on, with wheels that would."""
    listed = view.environment.get("arch_list")
    if not view.environment.get("torch"):
        return skipped(f"no torch to look into: {view.environment.get('error', 'none was asked')}", code="torch.none")
    if not view.environment.get("cuda"):
        return skipped("this torch carries no code for any GPU (see gpu-visible)", code="torch.no-cuda")
    if not listed:
        fix = "see build_facts_error in the report"
        return undecided("the wheel's arch list is empty or unread", fix=fix, code="arch-list.none-listed")
    findings = [finding for gpu in view.snapshot.gpus for finding in _one(view, gpu, list(listed))]
    summary = f"{' '.join(listed)} covers {', '.join(sorted({_name(gpu) for gpu in view.snapshot.gpus}))}"
    return worst(findings, passed(summary, value=list(listed), limit=Limit("code for every GPU", "", SOURCE, "equal")))


def _name(gpu: Gpu) -> str:
    return f"{gpu.signal('name').value} ({gpu.signal('compute_capability').value})"


def _one(view: View, gpu: Gpu, listed: list[str]) -> list[Outcome]:
    matrix, capability = facts.matrix(view), gpu.signal("compute_capability")
    about = of_gpu(gpu)
    if capability.value is None and lost(gpu):
        return [skipped(f"{label(gpu)} is lost (see gpu-lost)", code="gpu.lost", **about)]
    if capability.value is None:
        text = f"GPU {gpu.uuid}: its compute capability is unread: {capability.reason}"
        return [undecided(text, fix="look at NVML", code="arch-list.unread", **about)]
    sass = [code for code in listed if code.startswith("sm_")]
    ptx = [code for code in listed if code.startswith("compute_")]
    cc, torch, cuda = str(capability.value), str(view.environment["torch"]), str(view.environment["cuda"])
    if runs_on(matrix, sass, [], cc, cuda):
        return []
    driver = view.snapshot.signal("driver.version").value
    if not runs_on(matrix, [], ptx, cc, cuda):
        why, code = f"nothing in torch {torch} ({' '.join(listed)}) runs on {_name(gpu)}", "arch-list.none"
    elif driver is None:
        text = f"only PTX fits {_name(gpu)}, and the driver that must compile it is unread"
        return [undecided(text, fix="look at NVML", code="arch-list.driver-unread", **about)]
    elif driver_verdict(matrix, cuda, str(driver), facts.datacenter(view)).name != OK:
        why = f"only PTX fits {_name(gpu)}, and driver {driver} is too old to compile that of CUDA {cuda}"
        code = "arch-list.ptx"
    else:
        return []
    limit = Limit(f"code for {cc}", "", SOURCE, "equal")
    return [failed(why, fix=_alternatives(view, torch, cc), value=listed, limit=limit, code=code, **about)]


def _alternatives(view: View, torch: str, cc: str) -> str:
    """Return the wheels with SASS for this GPU, host and driver: of the same torch, else of the newest that has any."""
    matrix, datacenter = facts.matrix(view), facts.datacenter(view)
    arch, driver = (view.snapshot.signal(name).value for name in ("host.arch", "driver.version"))
    releases = sorted(matrix.torch, key=lambda row: key(row.torch), reverse=True)
    same = [row for row in releases if row.torch == torch.partition("+")[0]]
    fitting = [
        (release.torch, variant.variant, str(variant.cuda))
        for release in (*same, *releases)
        for variant in release.variants
        if variant.cuda
        and any(runs_on(matrix, b.sass or [], [], cc, variant.cuda) for b in variant.builds if arch in (None, b.arch))
    ]
    if not fitting:
        return f"no wheel runs on compute capability {cc}: build torch for it, or use another GPU"
    runs = (OK, MINOR)
    now = [row for row in fitting if not driver or driver_verdict(matrix, row[2], str(driver), datacenter).name in runs]
    newest, newer = (now or fitting)[0][0], "" if now else " with a newer driver"
    names = dict.fromkeys(variant for release, variant, _ in now or fitting if release == newest)
    return f"install torch {newest} as {' or '.join(names)}{newer}; see `envcheck resolve --cc {cc}`"
