"""Where the pods of `fleet render kubernetes` go, what they get there, and what they may do."""

import re
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

from envcheck.errors import refuse

Gang = Literal["kubernetes-1.35", "kubernetes-1.37", "volcano"]
# Names of objects, keys and values of labels, amounts (kubernetes.io, "Object Names and IDs", "Labels and Selectors").
_NAME: Final = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_KEY: Final = rf"(?:{_NAME}/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
_OBJECT: Final = (rf"({_NAME})", "the name of an object of Kubernetes: a-z, 0-9, . and -")
_EFFECTS: Final = "NoSchedule|PreferNoSchedule|NoExecute"
# What may stand in a manifest, by option: its form, and what it is called.
_FORMS: Final = {
    "node_selector": (rf"({_KEY})=({_VALUE})", "KEY=VALUE, a label of the nodes"),
    "toleration": (rf"({_KEY})(?:=({_VALUE}))?(?::({_EFFECTS}))?", f"KEY[=VALUE][:{_EFFECTS}]"),
    "resource": (rf"({_KEY})=([1-9][0-9]{{0,8}}(?:Mi|Gi|Ti)?)", "NAME=COUNT, e.g. rdma/hca=8 or memory=256Gi"),
    "queue": (r"([a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?)", "the name of a LocalQueue: at most 63 of a-z, 0-9, . and -"),
    **dict.fromkeys(("claim", "pull_secret", "runtime_class", "priority_class", "scheduler"), _OBJECT),
}
GPU: Final = "nvidia.com/gpu"
# The label that NVIDIA's GPU feature discovery gives to nodes with a GPU (github.com/NVIDIA/k8s-device-plugin).
_GPU_NODES: Final = {"nvidia.com/gpu.present": "true"}
# CPUs and GiB that a pod asks for: by GPU, and without one; a g5.xlarge, the smallest node with an A10G, has 4 and 16.
_BY_GPU: Final = (2, 8)
_WITHOUT: Final = (1, 4)
GROUP: Final = "envcheck-group"


class PodOptions(NamedTuple):
    """What a cluster wants of pods, as it was typed."""

    node_selector: tuple[str, ...] = ()
    toleration: tuple[str, ...] = ()
    resource: tuple[str, ...] = ()
    claim: tuple[str, ...] = ()
    pull_secret: tuple[str, ...] = ()
    runtime_class: str | None = None
    priority_class: str | None = None
    scheduler: str | None = None
    queue: str | None = None
    gang: Gang | None = None
    host_network: bool = False


def pod_parts(asked: PodOptions, gpus: int, nodes: int, *, drain: bool) -> dict[str, Any]:
    """Return what the templates write into pods. Raises ConfigError for an option that is not safe there."""
    given = {name: parsed(name, getattr(asked, name), form) for name, form in _FORMS.items()}
    resources, selector = once("resource", given["resource"]), once("node-selector", given["node_selector"])
    if GPU in resources:
        refuse(f"--resource {GPU} is a second number of GPUs", "give --gpus")
    if asked.gang == "volcano" and asked.scheduler not in (None, "volcano"):
        refuse("--scheduler is not Volcano's, and --gang volcano needs it", "leave --scheduler out")
    claims = [{"name": f"claim-{at}", "resourceClaimTemplateName": name} for at, (name,) in enumerate(given["claim"])]
    require_gpu = bool(gpus or claims or any(name.startswith("nvidia.com/") for name in resources))
    tolerations = [_toleration(GPU, None, "NoSchedule")] if require_gpu else []
    tolerations += [_toleration(*parts) for parts in given["toleration"]]
    placed = {
        "nodeSelector": selector,
        "tolerations": tolerations,
        "runtimeClassName": asked.runtime_class,
        "priorityClassName": asked.priority_class,
        "imagePullSecrets": [{"name": name} for (name,) in given["pull_secret"]],
        "hostNetwork": asked.host_network,
        "dnsPolicy": "ClusterFirstWithHostNet" if asked.host_network else None,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    unfit = [{"key": "envcheck/unfit", "operator": "Exists"}] if drain else []
    daemon = {"nodeSelector": selector or (_GPU_NODES if require_gpu else {}), "tolerations": tolerations + unfit}
    gang = _gang(asked.gang, nodes) if asked.gang else {}
    used = placed | {"schedulerName": asked.scheduler, "resourceClaims": claims}
    return {
        "require_gpu": require_gpu,
        "queue": asked.queue,
        "pod": _given(used),
        "ranks": {**gang.get("pod", {}), **_given(used)},
        "daemon": _given(placed | daemon),
        "resources": _resources(resources, gpus, [{"name": claim["name"]} for claim in claims]),
        "daemon_resources": {"requests": {"cpu": "100m", "memory": "1Gi"}},
        "gang": gang,
    }


def parsed(name: str, texts: str | Iterable[str] | None, form: tuple[str, str]) -> list[Any]:
    """Return the parts of each value of an option; raise ConfigError for one that has not this form."""
    pattern, expected = form
    parts = []
    for text in (texts,) if isinstance(texts, str) else texts or ():
        match = re.fullmatch(pattern, text)
        if match is None:
            refuse(f"--{name.replace('_', '-')} {text[:200]!r} cannot stand in a launch file", f"give {expected}")
        parts.append(match.groups())
    return parts


def once(option: str, pairs: list[Any]) -> dict[str, str]:
    """Return the pairs by name; raise ConfigError where two have the same."""
    named = dict(pairs)
    if len(named) < len(pairs):
        refuse(f"--{option} gives a name twice", "give it once")
    return named


def _given(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parts.items() if value}


def _toleration(key: str, value: str | None, effect: str | None) -> dict[str, str]:
    matched = {"operator": "Exists"} if value is None else {"operator": "Equal", "value": value}
    return {"key": key, **matched, **({"effect": effect} if effect else {})}


def _resources(asked: dict[str, str], gpus: int, claims: list[dict[str, str]]) -> dict[str, Any]:
    """Ask for CPUs and memory without a limit of them: a limit slows the checks down, or ends them."""
    cpus, memory = (gpus * _BY_GPU[0], gpus * _BY_GPU[1]) if gpus else _WITHOUT
    requests = {"cpu": asked.get("cpu", str(cpus)), "memory": asked.get("memory", f"{memory}Gi")}
    devices = {name: count for name, count in asked.items() if name not in requests}
    limits = {**({GPU: str(gpus)} if gpus else {}), **devices}
    return _given({"requests": requests, "limits": limits, "claims": claims})


def _gang(name: Gang, nodes: int) -> dict[str, Any]:
    """Return the object that has all pods of a group placed, or none, and what makes a pod one of them."""
    policy, nodes_of = {"gang": {"minCount": nodes}}, {"name": GROUP, "podGroup": "nodes"}
    specs: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
        "kubernetes-1.35": ("k8s.io/v1alpha1", "Workload", {"podGroups": [{"name": "nodes", "policy": policy}]}, {}),
        "kubernetes-1.37": ("k8s.io/v1beta1", "PodGroup", {"schedulingPolicy": policy}, {}),
        "volcano": ("volcano.sh/v1beta1", "PodGroup", {"minMember": nodes}, {"scheduling.k8s.io/group-name": GROUP}),
    }
    pods: dict[str, dict[str, Any]] = {
        "kubernetes-1.35": {"workloadRef": nodes_of},
        "kubernetes-1.37": {"schedulingGroup": {"podGroupName": GROUP}},
        "volcano": {"schedulerName": "volcano"},
    }
    api, kind, spec, named = specs[name]
    return {"api": f"scheduling.{api}", "kind": kind, "spec": spec, "annotations": named, "pod": pods[name]}
