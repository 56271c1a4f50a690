"""The files that start envcheck on many nodes. Root runs them: values that could be more than a value are refused."""

import math
import shlex
from typing import Any, Final, Literal, NamedTuple

from envcheck.data import rendered
from envcheck.errors import refuse
from envcheck.fleet.hostlist import unfold
from envcheck.fleet.kubernetes_pods import PodOptions, once, parsed, pod_parts

# Slurm ends a HealthCheckProgram after 60 s (slurm.conf(5)); the script needs some of it to start and to end.
HEALTH_SECONDS: Final = 45
# Slurm keeps PrologEpilogTimeout, which is a little more than the budget, in 16 bits of seconds (slurm/slurm.h).
_LONGEST_BUDGET: Final = 18 * 3600
_REFERENCE: Final = r"[a-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}"
_PATH: Final = r"/[^\x00-\x1f\x7f-\x9f]*"
# What stands in slurm.conf, where nothing quotes it.
_PLAIN_PATH: Final = r"/[A-Za-z0-9._/+-]*"
# What may stand in a script or in YAML that root runs, by option.
_SAFE: Final = {
    "image": (_REFERENCE, "REPOSITORY@sha256:DIGEST; a tag can name another image tomorrow"),
    "python": (_PATH, "an absolute path without control characters"),
    "program": (_PATH, "an absolute path without control characters"),
    "reports": (_PATH, "an absolute path without control characters"),
    "scripts": (_PLAIN_PATH, "an absolute path of letters, digits and . _ + -"),
    "state": (_PLAIN_PATH, "an absolute path of letters, digits and . _ + -"),
    "namespace": (r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a namespace of Kubernetes: a-z, 0-9 and -"),
}
# What the network of a group needs. Others would steer the checks, or envcheck itself (NODE_NAME, ENVCHECK_HOME).
_VARIABLE: Final = (
    r"((?:NCCL|FI|UCX|GLOO|RDMAV|IBV|MLX5)_[A-Za-z0-9_]+)=([^\x00-\x1f\x7f-\x9f]*)",
    "NCCL_NAME=VALUE, or one of FI_*, UCX_*, GLOO_* and the like; set others in the image",
)


class LaunchValues(NamedTuple):
    """What the files are filled in with. Exactly one of `image` and `python` is given; times are whole seconds."""

    image: str | None
    python: str | None
    nodes: int
    gpus: int
    level: str
    max_age: float
    budget: float
    on_error: Literal["refuse", "admit"]
    program: str
    scripts: str
    reports: str
    state: str
    namespace: str
    variables: tuple[str, ...]
    drain: bool = False
    pods: PodOptions = PodOptions()
    max_drained: float = 10.0
    hosts: str = ""


def context(values: LaunchValues, system: str) -> dict[str, Any]:
    """Return what the templates of a system are rendered with. Raises ConfigError for one that is not safe there."""
    if system == "prometheus":
        return {"hosts": unfold(values.hosts)}
    for name, form in _SAFE.items():
        parsed(name, getattr(values, name), form)
    if (values.image is None) == (values.python is None) or (system == "kubernetes" and values.image is None):
        refuse(
            "a pod runs an image" if system == "kubernetes" else "one environment is judged",
            "give --image REPOSITORY@sha256:DIGEST, or for Slurm --python PATH on the nodes",
        )
    for option, value, least, most in (
        ("--max-age", values.max_age, 60, math.inf),
        ("--budget", values.budget, 5, _LONGEST_BUDGET),
    ):
        if not least <= value <= most:
            refuse(
                f"{option} {value:g}s is too short for a node, or longer than a gate may take",
                f"give {least}s or more{'' if most == math.inf else ', at most 18h'}",
            )
    max_age, budget = round(values.max_age), round(values.budget)
    target = f"--image {values.image}" if values.image else f"--python {shlex.quote(values.python or '')}"
    # Minutes that a run may take on a node, several times what it is planned for.
    return {
        **values._asdict(),
        "target": target,
        "variables": once("env", parsed("env", values.variables, _VARIABLE)).items(),
        "max_age": max_age,
        "budget": budget,
        "health_budget": min(budget, HEALTH_SECONDS),
        # Two more tries before the verdict is too old for the prolog.
        "renew_after": max(1, max_age // 3),
        "interval": max(30, max_age // 3),
        "minutes": {"static": 10, "quick": 15, "standard": 30, "full": 120}[values.level],
        **pod_parts(values.pods, values.gpus, values.nodes, drain=values.drain),
    }


FILES: Final = {
    "slurm": ("sweep.sbatch", "group.sbatch", "prolog.sh", "epilog.sh", "health.sh", "slurm.conf.part"),
    "kubernetes": ("sweep-job.yaml", "preflight.yaml", "watch-daemonset.yaml", "rbac.yaml", "gang-jobset.yaml"),
    "prometheus": ("prometheus.yml", "dcgm.rules.yml"),
}


def launch_files(system: str, values: LaunchValues) -> dict[str, str]:
    """Return the texts of a system's files by name. Raises ConfigError for a value that is not safe in them."""
    names, filled = FILES[system], context(values, system)
    return {n: rendered(f"{system}/{n}.j2", filled) for n in names if n != "rbac.yaml" or values.drain}
